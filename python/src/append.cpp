#include "append.h"

#include <optional>

#include "spec.h"
#include "tilewise/kv_cache.h"

namespace tilewise::python {

void append_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& options) {
  Arrays arrays;
  const bool heads_first = is_heads_first(options[8]);
  AppendSpec spec;
  spec.block_table = arrays.take(options[0], "block_table");
  spec.cu_seqlens = arrays.take(options[1], "cu_seqlens");
  spec.max_seqlen = nb::cast<std::int64_t>(options[2]);
  spec.rotary.cos = arrays.take(options[3], "rotary_cos");
  spec.rotary.sin = arrays.take(options[4], "rotary_sin");
  spec.rotary.positions = arrays.take(options[5], "positions");
  spec.rotary.interleaved = nb::cast<bool>(options[6]);
  spec.rotary.one_query_position = nb::cast<bool>(options[7]);
  const bool packed = spec.cu_seqlens.defined();
  const auto rows = [&](nb::handle object, const char* name) {
    return values_of(arrays.take(object, name), packed, heads_first);
  };
  const AppendTensors tensors{.k = rows(inputs[0], "k"),
                              .v = rows(inputs[1], "v"),
                              .k_cache = rows(inputs[2], "k_cache"),
                              .v_cache = rows(inputs[3], "v_cache"),
                              .lengths = arrays.take(inputs[4], "lengths"),
                              .new_lengths = arrays.take(outputs[0], "new_lengths"),
                              .skipped = arrays.take(outputs[1], "skipped"),
                              .q = rows(inputs[5], "q"),
                              .rotated_q = rows(outputs[2], "rotated_q")};
  Launch launch;
  const ExchangeApi* api = exchange_api(inputs[0]);
  if (api != nullptr && tensors.k.device.type == DeviceType::cuda)
    launch.stream = current_stream(*api, tensors.k.device);
  const nb::gil_scoped_release unlocked;
  append(tensors, spec, launch);
}

}  // namespace tilewise::python
