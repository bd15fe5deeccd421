#include "spec.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <utility>

namespace tilewise::python {
namespace {

template <class T>
T value_of(nb::handle field, const char* name) {
  T value{};
  if (!nb::try_cast(field, value)) {
    throw InvalidArgument(std::string(name) + " is " + nb::repr(field).c_str() +
                          ": it has the wrong type");
  }
  return value;
}

/// Takes the fields of a tuple one after the other.
class Fields {
 public:
  explicit Fields(const nb::tuple& fields) : fields_(fields) {}
  nb::handle next() { return fields_[at_++]; }
  template <class T>
  T next(const char* name) {
    return value_of<T>(next(), name);
  }

 private:
  const nb::tuple& fields_;
  std::size_t at_ = 0;
};

Causal causal_of(const std::string& name) {
  if (name.empty()) return Causal::none;
  if (name == "bottom_right") return Causal::bottom_right;
  if (name == "top_left") return Causal::top_left;
  throw InvalidArgument("causal is \"" + name +
                        "\": expected a bool, \"bottom_right\" or \"top_left\"");
}

Precision precision_of(const std::string& name) {
  if (name == "exact") return Precision::exact;
  if (name == "tf32") return Precision::tf32;
  if (name == "refined") return Precision::refined;
  throw InvalidArgument("precision is \"" + name +
                        "\": expected \"exact\", \"tf32\" or \"refined\"");
}

/// Dropout's seed and offset, int64 (2) on the CPU; or int64 (1) where a GPU reads it, a counter.
void take_seed(AttentionSpec& spec, const Tensor& seed) {
  Dropout& dropout = spec.dropout;
  if (!seed.defined()) {
    if (dropout.p > 0.0) throw InvalidArgument("seed is not given: dropout needs one");
    return;
  }
  const bool on_host = seed.device.type == DeviceType::cpu;
  if (seed.rank != 1 || seed.sizes[0] != (on_host ? 2 : 1) || seed.dtype != DType::int64) {
    throw InvalidArgument("seed is " + seed.describe() +
                          ": expected int64 (2) on the CPU, or int64 (1) on a GPU");
  }
  if (!on_host) {
    spec.dropout_counter = seed;
    return;
  }
  const auto* words = static_cast<const std::int64_t*>(seed.data);
  dropout.seed = static_cast<std::uint64_t>(words[0]);
  dropout.offset = static_cast<std::uint64_t>(words[seed.strides[0]]);
}

}  // namespace

nb::tuple captures_of(const nb::tuple& spec) { return nb::tuple(nb::object(spec[kCaptures])); }

bool is_heads_first(nb::handle layout) {
  const std::string name = value_of<std::string>(layout, "layout");
  if (name == "bshd") return false;
  if (name == "bhsd") return true;
  throw InvalidArgument("layout is \"" + name + "\": expected \"bshd\" or \"bhsd\"");
}

Call::Call(const nb::tuple& fields) {
  Fields f(fields);
  spec.mask = arrays.take(f.next(), "mask");
  spec.bias = arrays.take(f.next(), "bias");
  spec.alibi_slopes = arrays.take(f.next(), "alibi_slopes");
  spec.sinks = arrays.take(f.next(), "sinks");
  spec.key_lengths = arrays.take(f.next(), "key_lengths");
  spec.cu_seqlens_q = arrays.take(f.next(), "cu_seqlens_q");
  spec.cu_seqlens_k = arrays.take(f.next(), "cu_seqlens_k");
  spec.block_table = arrays.take(f.next(), "block_table");
  spec.block_list.row_offsets = arrays.take(f.next(), "block_list.row_offsets");
  spec.block_list.block_index = arrays.take(f.next(), "block_list.block_index");
  spec.block_list.block_full = arrays.take(f.next(), "block_list.block_full");
  const Tensor seed = arrays.take(f.next(), "seed");
  heads_first = is_heads_first(f.next());
  spec.scale = f.next<std::optional<double>>("scale");
  spec.causal = causal_of(f.next<std::string>("causal"));
  spec.window.left = f.next<std::optional<std::int64_t>>("window's left");
  spec.window.right = f.next<std::optional<std::int64_t>>("window's right");
  spec.softcap = f.next<double>("softcap");
  spec.dropout.p = f.next<double>("dropout_p");
  spec.max_seqlen_q = f.next<std::int64_t>("max_seqlen_q");
  spec.max_seqlen_k = f.next<std::int64_t>("max_seqlen_k");
  spec.block_list.block_q = f.next<std::int64_t>("block_q");
  spec.block_list.block_k = f.next<std::int64_t>("block_k");
  spec.deterministic = f.next<bool>("deterministic");
  spec.precision = precision_of(f.next<std::string>("precision"));
  choice.implementation = f.next<std::string>("implementation");
  choice.kernel = f.next<std::string>("kernel");
  const std::string score = f.next<std::string>("score_expression");
  const std::string mask = f.next<std::string>("mask_expression");
  if (!score.empty() || !mask.empty()) take_expressions(score, mask, captures_of(fields));
  packed = spec.cu_seqlens_q.defined() || spec.cu_seqlens_k.defined();
  take_seed(spec, seed);
}

std::vector<Captured> captured_tensors(Arrays& arrays, const nb::tuple& objects) {
  std::vector<Captured> captures;
  for (const nb::handle object : objects) {
    const std::string name = "c" + std::to_string(captures.size());
    captures.emplace_back(name, arrays.take(object, name.c_str()));
  }
  return captures;
}

void Call::take_expressions(const std::string& score, const std::string& mask,
                            const nb::tuple& objects) {
  const std::vector<Captured> captures = captured_tensors(arrays, objects);
  if (!score.empty()) spec.score_expression = Expression::parse(score, captures);
  if (!mask.empty()) spec.mask_expression = Expression::parse(mask, captures);
}

std::vector<Tensor> Call::capture_gradients(const nb::tuple& objects) {
  std::vector<Tensor> gradients;
  bool wanted = false;
  for (const Captured& capture : spec.score_expression.captures()) {
    const std::size_t place = std::stoul(capture.name().substr(1));
    const nb::handle object = place < nb::len(objects) ? objects[place] : nb::none();
    wanted = wanted || !object.is_none();
    gradients.push_back(arrays.take(object, ("the gradient of " + capture.name()).c_str()));
  }
  return wanted ? gradients : std::vector<Tensor>();
}

Tensor Call::values(nb::handle object, const char* name) {
  return rows_of(arrays.take(object, name));
}

Tensor values_of(Tensor t, bool packed, bool heads_first) {
  if (packed && t.rank == 3) {
    t.rank = 4;
    t.sizes = {1, t.sizes[0], t.sizes[1], t.sizes[2]};
    t.strides = {0, t.strides[0], t.strides[1], t.strides[2]};
  }
  if (t.rank == 4 && !heads_first) {
    std::swap(t.sizes[1], t.sizes[2]);
    std::swap(t.strides[1], t.strides[2]);
  }
  return t;
}

}  // namespace tilewise::python
