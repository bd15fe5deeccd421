/// What a device gives for formulas at points: a check of the text that kernels are made with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/expression_values_args.h"
#include "expression/program.h"

namespace tilewise::cuda {

/// Formulas whose captured tensors lie on the device. `gradients`: of each of `scores`.
struct AskedFunctions {
  std::vector<expression::Function> scores, masks;
  std::vector<const expression::Gradient*> gradients;
};

KernelUnit expression_values_unit(const AskedFunctions& functions);

/// Floats that expression_values() writes for so many points.
std::int64_t expression_values_size(const AskedFunctions& functions, std::int64_t points);

/// All pointers are of the device. `captures` holds expression_captures().
void expression_values(const AskedFunctions& functions, const expression_values::Point* points,
                       std::int64_t count, const tile::Captures* captures, float* values,
                       int device, void* stream);

/// Those of each score function, then of each mask.
std::vector<tile::Captures> expression_captures(const AskedFunctions& functions);

}  // namespace tilewise::cuda
