#include "torch_side.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "name.h"
#include "spec.h"
#include "tilewise/error.h"

namespace tilewise::python {
namespace {

/// Never released: a call may come while the interpreter ends.
struct Torch {
  nb::tuple plain_types, watches;
  nb::object grad_enabled, forward_mode, is_batched, make_context_current, empty_like, float32;
  nb::tuple dtype_keyword;  ///< ("dtype",), as a vector call names a keyword
};

Torch* torch = nullptr;

/// The truth of what a function without arguments gives.
bool asks(nb::handle function) { return is_true(checked(PyObject_CallNoArgs(function.ptr()))); }

bool somebody_looks_on() {
  for (const nb::handle watch : torch->watches) {
    if (asks(watch)) return true;
  }
  return false;
}

bool requires_grad(nb::handle tensor) {
  static const Name name("requires_grad");
  return !tensor.is_none() && is_true(name.of(tensor));
}

/// A tensor's sizes, which may be a compiler's symbols.
nb::tuple sizes_of(nb::handle tensor) {
  static const Name shape("shape");
  return nb::borrow<nb::tuple>(shape.of(tensor));
}

/// The same sizes with another last one.
nb::tuple with_last(const nb::tuple& sizes, nb::handle last) {
  const Py_ssize_t rank = PyTuple_GET_SIZE(sizes.ptr());
  const nb::tuple made = nb::steal<nb::tuple>(PyTuple_New(rank));
  for (Py_ssize_t i = 0; i < rank; ++i) {
    const nb::handle size = i + 1 < rank ? nb::handle(PyTuple_GET_ITEM(sizes.ptr(), i)) : last;
    PyTuple_SET_ITEM(made.ptr(), i, size.inc_ref().ptr());
  }
  return made;
}

/// Uninitialised, of a tensor's sizes but for the last; heads and rows lie in memory as its own do.
nb::object empty_strided_like(nb::handle tensor, const nb::tuple& sizes, nb::handle last) {
  static const Name new_empty("new_empty"), stride("stride");
  const std::size_t rank = nb::len(sizes);
  const nb::tuple wanted = with_last(sizes, last);
  if (rank < 3) return new_empty.call(tensor, wanted);
  const nb::object strides = stride.call(tensor);
  if (strides[rank - 3] >= strides[rank - 2]) return new_empty.call(tensor, wanted);
  nb::list swapped(wanted);
  swapped[rank - 3] = wanted[rank - 2];
  swapped[rank - 2] = wanted[rank - 3];
  return new_empty.call(tensor, nb::tuple(swapped)).attr("transpose")(-3, -2);
}

bool is_contiguous(nb::handle tensor) {
  static const Name name("is_contiguous");
  return is_true(name.call(tensor));
}

nb::object empty_contiguous_like(nb::handle tensor) {
  return checked(PyObject_CallOneArg(torch->empty_like.ptr(), tensor.ptr()));
}

nb::object empty_like(nb::handle tensor) {
  if (is_contiguous(tensor)) return empty_contiguous_like(tensor);
  const nb::tuple sizes = sizes_of(tensor);
  return empty_strided_like(tensor, sizes, sizes[nb::len(sizes) - 1]);
}

void check_rank(std::size_t rank) {
  if (rank == 3 || rank == 4) return;
  throw InvalidArgument("q has " + std::to_string(rank) +
                        " axes: expected (B, S, H, D), or (total, H, D) packed");
}

/// O: q's sizes with the values' head dim.
nb::object empty_output(nb::handle q, const nb::tuple& sizes, nb::handle v) {
  const nb::tuple values = sizes_of(v);
  const std::size_t rank = nb::len(values);
  if (rank == 0) {
    throw InvalidArgument("v has 0 axes: expected (B, S, H, D), or (total, H, D) packed");
  }
  const nb::handle q_dim = sizes[nb::len(sizes) - 1], v_dim = values[rank - 1];
  const bool same = q_dim.is(v_dim) || q_dim.equal(v_dim);
  return same && is_contiguous(q) ? empty_contiguous_like(q) : empty_strided_like(q, sizes, v_dim);
}

/// LSE: (B, H, S); packed (H, S); of q (B, S, D) without heads, (B, S).
nb::object empty_statistics(nb::handle q, const nb::tuple& sizes, const nb::tuple& spec) {
  static const Name new_empty("new_empty");
  const std::size_t rank = nb::len(sizes);
  const bool heads = rank == 4 || !nb::handle(spec[kCuSeqlensQ]).is_none();
  const bool rows_first = heads && !is_heads_first(spec[kLayout]);
  const nb::object a = sizes[rank - 3], b = sizes[rank - 2];
  const nb::handle first = rows_first ? b : a, second = rows_first ? a : b;
  // Sizes one by one: a tuple of them costs the call half a microsecond.
  if (rank == 3) return new_empty.call(q, {first, second, torch->float32}, torch->dtype_keyword);
  const nb::object batch = sizes[0];
  return new_empty.call(q, {batch, first, second, torch->float32}, torch->dtype_keyword);
}

bool is_contiguous(const Tensor& t) {
  std::int64_t dense = 1;
  bool in_order = true;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto axis = static_cast<std::size_t>(i);
    in_order = in_order && (t.sizes[axis] == 1 || t.strides[axis] == dense);
    dense *= t.sizes[axis];
  }
  return in_order || dense == 0;
}

/// Rank, sizes and place of LSE.
using StatisticsKey = std::array<std::int64_t, 6>;

/// A tensor with these sizes and strides of 0, which has one element's memory.
nb::object statistics_prototype(nb::handle q, const StatisticsKey& key) {
  static const Name new_empty("new_empty"), expand("expand");
  nb::list sizes;
  for (std::size_t i = 0; i < static_cast<std::size_t>(key[0]); ++i) sizes.append(key[i + 1]);
  const nb::object one = new_empty.call(q, {nb::int_(1), torch->float32}, torch->dtype_keyword);
  return expand.call(one, nb::tuple(sizes));
}

}  // namespace

void use_torch(const nb::tuple& plain_types, const nb::tuple& watches, nb::object grad_enabled,
               nb::object forward_mode, nb::object is_batched, nb::object make_context_current,
               nb::object empty_like, nb::object float32) {
  torch = new Torch{plain_types,
                    watches,
                    std::move(grad_enabled),
                    std::move(forward_mode),
                    std::move(is_batched),
                    std::move(make_context_current),
                    std::move(empty_like),
                    std::move(float32),
                    nb::make_tuple(nb::str("dtype"))};
}

bool is_plain(nb::handle tensor) {
  static const Name is_neg("is_neg");
  const nb::handle type = tensor.type();
  for (const nb::handle plain : torch->plain_types) {
    if (type.is(plain)) return !is_true(is_neg.call(tensor));
  }
  return false;
}

bool is_plain_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec) {
  static const Name is_meta("is_meta");
  if (somebody_looks_on()) return false;
  for (std::size_t i = 0; i < kTensorFields; ++i) {
    const nb::handle given = PyTuple_GET_ITEM(spec.ptr(), static_cast<Py_ssize_t>(i));
    if (!given.is_none() && !is_plain(given)) return false;
  }
  for (const nb::handle captured : captures_of(spec)) {
    if (!is_plain(captured)) return false;
  }
  return is_plain(q) && is_plain(k) && is_plain(v) && !is_true(is_meta.of(q));
}

void make_context_current() { checked(PyObject_CallNoArgs(torch->make_context_current.ptr())); }

bool in_forward_mode() {
  static const Name current_level("_current_level");
  return nb::cast<int>(current_level.of(torch->forward_mode)) >= 0;
}

bool is_grad_enabled() { return asks(torch->grad_enabled); }

bool is_recorded(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec) {
  if (!is_grad_enabled()) return false;
  if (requires_grad(q) || requires_grad(k) || requires_grad(v)) return true;
  for (const std::size_t field : {kBias, kSlopes, kSinks}) {
    if (requires_grad(spec[field])) return true;
  }
  for (const nb::handle captured : captures_of(spec)) {
    if (requires_grad(captured)) return true;
  }
  return false;
}

bool has_tensors(const nb::tuple& spec) {
  for (std::size_t i = 0; i < kTensorFields; ++i) {
    if (!nb::handle(PyTuple_GET_ITEM(spec.ptr(), static_cast<Py_ssize_t>(i))).is_none())
      return true;
  }
  return nb::len(captures_of(spec)) > 0;
}

bool is_special(nb::handle tensor) {
  if (tensor.is_none()) return false;
  return !is_plain(tensor) ||
         is_true(checked(PyObject_CallOneArg(torch->is_batched.ptr(), tensor.ptr())));
}

void refuse_nested(nb::handle q) {
  static const Name is_nested("is_nested");
  if (is_true(is_nested.of(q))) {
    throw Unsupported(
        "q is a nested tensor: tilewise takes its values() packed, with cu_seqlens_q and "
        "cu_seqlens_k its offsets()");
  }
}

nb::tuple empty_outputs(nb::handle q, nb::handle v, const nb::tuple& spec, bool with_lse) {
  refuse_nested(q);
  const nb::tuple sizes = sizes_of(q);
  check_rank(nb::len(sizes));
  const nb::object o = empty_output(q, sizes, v);
  return nb::make_tuple(o, with_lse ? empty_statistics(q, sizes, spec) : nb::none());
}

nb::object empty_like(nb::handle tensor, const Tensor& view) {
  return is_contiguous(view) ? empty_contiguous_like(tensor) : empty_like(tensor);
}

nb::object empty_output_like(nb::handle q, const Tensor& view, nb::handle v, std::int64_t v_dim) {
  const bool same = view.sizes[static_cast<std::size_t>(view.rank - 1)] == v_dim;
  return same && is_contiguous(view) ? empty_contiguous_like(q) : empty_output(q, sizes_of(q), v);
}

nb::object empty_statistics_like(nb::handle q, const Tensor& rows, bool packed) {
  // Guarded by the interpreter lock. The cheapest call of torch is empty_like() of a tensor.
  static auto& prototypes = *new std::map<StatisticsKey, nb::object>;
  constexpr std::size_t kMostPrototypes = 4096;
  StatisticsKey key{packed ? 2 : rows.rank - 1};
  for (std::size_t i = 0; i < static_cast<std::size_t>(key[0]); ++i)
    key.at(i + 1) = rows.sizes.at(packed ? i + 1 : i);
  key[4] = static_cast<std::int64_t>(rows.device.type);
  key[5] = rows.device.index;
  auto found = prototypes.find(key);
  if (found == prototypes.end()) {
    if (prototypes.size() >= kMostPrototypes) prototypes.clear();
    found = prototypes.emplace(key, statistics_prototype(q, key)).first;
  }
  return empty_contiguous_like(found->second);
}

nb::tuple empty_gradients(nb::handle q, nb::handle k, nb::handle v, bool need_dbias,
                          bool need_dsinks, const nb::tuple& need_dcaptures,
                          const nb::tuple& spec) {
  static const Name new_empty("new_empty");
  const auto of = [&](bool needed, const nb::object& given) -> nb::object {
    return needed ? new_empty.call(given, sizes_of(given)) : nb::none();
  };
  const nb::tuple captures = captures_of(spec);
  nb::list dcaptures;
  for (std::size_t n = 0; n < nb::len(captures); ++n) {
    dcaptures.append(of(is_true(need_dcaptures[n]), captures[n]));
  }
  return nb::make_tuple(empty_like(q), empty_like(k), empty_like(v), of(need_dbias, spec[kBias]),
                        of(need_dsinks, spec[kSinks]), nb::tuple(dcaptures));
}

}  // namespace tilewise::python
