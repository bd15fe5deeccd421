/// bwd_delta on the host. See rows/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// What the backward's main passes need of each row: lse2 and delta, (B, Hq, rows_q) floats; where
/// `clear` is given, (B, Hq, rows_q, clear_cols) floats become zero.
struct RowStatistics {
  float* lse2 = nullptr;
  float* delta = nullptr;
  float* lse2_low = nullptr;  ///< becomes zero where given
  std::int64_t rows_q = 0;
  float* clear = nullptr;
  int clear_cols = 0;
};
void prepare_rows(const Problem& problem, const RowStatistics& rows, void* stream);

void add_bwd_delta_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
