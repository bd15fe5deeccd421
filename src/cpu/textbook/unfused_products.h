/// Operands and products of the implementations that multiply with BLAS.
#pragma once

#include <cstdint>

#include "cpu/textbook/blas.h"
#include "cpu/textbook/row_passes.h"
#include "tilewise/runtime.h"

namespace tilewise::cpu {

/// True when BLAS can read or write the rows of `t` (B, H, S, D) where they lie.
bool direct(const Tensor& t);

/// A (B, H, S, D) tensor as float32 matrices: the caller's own memory, or a copy in the workspace.
struct Operand {
  const float* data = nullptr;
  std::int64_t batch = 0, head = 0, ld = 0;
  const float* at(std::int64_t b, std::int64_t h, std::int64_t row) const {
    return data + b * batch + h * head + row * ld;
  }
};

/// `copy` holds what load_operand() put there; it is not looked at when the tensor is direct.
Operand operand(const Tensor& t, bool packed, const float* copy);

/// Converts a tensor that is not direct; `copy` has its sizes, packed ones with one batch entry.
void load_operand(const Tensor& t, bool packed, Executor& executor, int workers, float* copy);

struct Products {
  const Blas* blas = nullptr;
  const RowPasses* rows = nullptr;

  /// C (m x n) = A (m x k) B (k x n), or C += with `add`. Rows of B that are not finite enter only
  /// where their factor is not 0: a hidden key, or a query that sees nothing, never leaks as 0 *
  /// NaN. CONTRACT 3, 10.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Factor a, const float* b,
                std::int64_t ldb, bool add, float* c, std::int64_t ldc) const;
};

}  // namespace tilewise::cpu
