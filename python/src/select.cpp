#include "select.h"

#include <string>

#include "spec.h"
#include "tilewise/selection.h"

namespace tilewise::python {

void select_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& options) {
  Arrays arrays;
  const bool heads_first = is_heads_first(options[10]);
  const Tensor q = values_of(arrays.take(inputs[0], "q"), false, heads_first);
  const Tensor k = values_of(arrays.take(inputs[1], "k"), false, heads_first);
  BlockSelection by;
  by.key_lengths = arrays.take(inputs[2], "key_lengths");
  by.block_q = nb::cast<std::int64_t>(options[0]);
  by.block_k = nb::cast<std::int64_t>(options[1]);
  const auto weights = nb::cast<nb::tuple>(options[2]);
  if (weights.size() != 4) {
    throw InvalidArgument("weights has " + std::to_string(weights.size()) +
                          " numbers: expected mean, maximum, minimum and variance");
  }
  by.weights = {.mean = nb::cast<double>(weights[0]),
                .maximum = nb::cast<double>(weights[1]),
                .minimum = nb::cast<double>(weights[2]),
                .variance = nb::cast<double>(weights[3])};
  if (!options[3].is_none()) by.scale = nb::cast<double>(options[3]);
  by.causal = nb::cast<bool>(options[4]);
  by.rule = static_cast<BlockRule>(nb::cast<int>(options[5]));
  by.count = nb::cast<std::int64_t>(options[6]);
  by.mass = by.threshold = nb::cast<double>(options[7]);
  by.keep_diagonal = nb::cast<bool>(options[8]);
  by.keep_first = nb::cast<bool>(options[9]);
  by.scorer = static_cast<BlockScorer>(nb::cast<int>(options[11]));
  by.stride = nb::cast<std::int64_t>(options[12]);
  Launch launch;
  const ExchangeApi* api = exchange_api(inputs[0]);
  if (api != nullptr && q.device.type == DeviceType::cuda)
    launch.stream = current_stream(*api, q.device);
  const Tensor mask = arrays.take(outputs[2], "mask");
  BlockList list;
  list.row_offsets = arrays.take(outputs[0], "row_offsets");
  list.block_index = arrays.take(outputs[1], "block_index");
  const nb::gil_scoped_release unlocked;
  if (mask.defined()) {
    select_block_mask(q, k, by, mask, launch);
  } else {
    select_blocks(q, k, by, list, launch);
  }
}

}  // namespace tilewise::python
