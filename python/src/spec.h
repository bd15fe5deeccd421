/// What Python passes: flat tuples, in the order of python/tilewise/_spec.py.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "arrays.h"
#include "tilewise/attention.h"

namespace tilewise::python {

/// Places in the tuple of a spec; its tensors come first.
inline constexpr std::size_t kBias = 1, kSlopes = 2, kSinks = 3, kCuSeqlensQ = 5,
                             kTensorFields = 12;
inline constexpr std::size_t kLayout = kTensorFields, kCaptures = kTensorFields + 17;

/// The tensors that the expressions read, the last field. An operator of torch gives them as a
/// list.
nb::tuple captures_of(const nb::tuple& spec);

/// The same as c0, c1, ... of an expression's text.
std::vector<Captured> captured_tensors(Arrays& arrays, const nb::tuple& objects);

/// True when heads come before rows. Throws InvalidArgument for what is no layout.
bool is_heads_first(nb::handle layout);

/// Logical axes (B, H, S, D) of rows in the caller's layout; `packed`: without a batch axis.
Tensor values_of(Tensor rows, bool packed, bool heads_first);

/// One call's spec and what it needs to be read.
struct Call {
  Arrays arrays;
  AttentionSpec spec;
  Choice choice;
  bool heads_first = false;  ///< tensors are (B, H, S, D), not (B, S, H, D)
  bool packed = false;       ///< tensors have no batch axis

  /// `fields`: the tuple of _spec.py's Spec.
  explicit Call(const nb::tuple& fields);

  /// q, k, v, o or a gradient of theirs, with logical axes (B, H, S, D).
  Tensor values(nb::handle object, const char* name);
  Tensor rows_of(const Tensor& view) const { return values_of(view, packed, heads_first); }
  /// LSE or its gradient: (B, H, S), packed (H, S).
  Tensor statistics(nb::handle object, const char* name) { return arrays.take(object, name); }
  /// Gradients of the captured tensors, in the order of spec.score_expression; empty when nobody
  /// wants one.
  std::vector<Tensor> capture_gradients(const nb::tuple& objects);

 private:
  void take_expressions(const std::string& score, const std::string& mask,
                        const nb::tuple& objects);
};

}  // namespace tilewise::python
