/// bwd_convert on the host. See rows/README.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// A gradient that was summed in fragment order: (parts, B, H, padded_rows, padded) floats.
struct SummedGradient {
  const float* sums = nullptr;
  const Tensor* to = nullptr;
  std::int64_t padded_rows = 0;
  int padded = 0;
  float factor = 1.0F;
  int parts = 1;
};
/// Brings up to three of them into their tensors, which have one type.
void convert_gradients(const Problem& problem, std::span<const SummedGradient> gradients,
                       void* stream);

/// Writes zeros to up to three of them, packed or not: no query adds to them.
void clear_gradients(const Problem& problem, std::span<const Tensor* const> gradients,
                     void* stream);

void add_bwd_convert_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
