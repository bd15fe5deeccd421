/// The tensors of a pass as plain row-major float64 arrays, so that the loops of the reference read
/// as formulas. Everything is O(S): only dbias has both a query and a key axis, where the caller's
/// own bias has both.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/kernel_row.h"

namespace tilewise::reference {

/// (batch, heads, rows, dim). Packed sequences lie in one batch entry.
struct Array {
  double* data = nullptr;
  std::int64_t batch = 0, heads = 0, rows = 0, dim = 0;

  std::int64_t elems() const { return batch * heads * rows * dim; }
  double* row(std::int64_t b, std::int64_t h, std::int64_t s) const {
    return data + (((batch == 1 ? 0 : b) * heads + h) * rows + s) * dim;
  }
  std::vector<double> values() const { return {data, data + elems()}; }
};

/// An array of pairs (B, Hq, Sq, Sk) that has one element along the axes that the bias broadcasts
/// over.
struct PairArray : Array {
  double& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return row(b, heads == 1 ? 0 : h, rows == 1 ? 0 : i)[dim == 1 ? 0 : j];
  }
};

/// What one pass reads and writes. Arrays that a pass does not have are empty.
struct Arrays {
  Array q, k, v, d_o, d_lse;
  Array o, lse;
  Array dq, dk, dv;
  Array dsinks_b;  ///< what each batch entry adds to dsinks: (B, Hq, 1, 1)
  PairArray dbias;
  std::vector<Array> dcaptures;  ///< one a capture, in its first axes; empty where not wanted

  /// Shapes only.
  Arrays(const Problem& problem, Pass pass);

  /// Every array as a workspace item, in the order in which place() cuts them.
  std::vector<MemoryPart> memory() const;

  /// Gives each array its memory, reads the inputs and clears the results: O = 0, LSE = -inf,
  /// gradients 0. Rows that belong to no sequence stay so.
  void place(const Problem& problem, void* memory);

  /// Whether the tasks of two heads may add to one element.
  bool shares_gradients() const;

  /// dsinks: dsinks_b summed over the batch; empty without sinks.
  std::vector<double> dsinks() const;
  std::vector<std::vector<double>> capture_gradients() const;

 private:
  template <class Self>
  static auto all(Self& self);
};

/// Arrays with memory of their own, for use outside the kernel table.
class OwnedArrays {
 public:
  OwnedArrays(const Problem& problem, Pass pass);
  const Arrays& arrays() const { return arrays_; }

 private:
  Arrays arrays_;
  std::vector<double> memory_;
};

/// Writes an array to a tensor with the Problem's canonical axes, rounding once.
void write(const Tensor& to, const Array& from);

}  // namespace tilewise::reference
