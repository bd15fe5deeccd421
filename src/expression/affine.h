/// Score functions that add to the score what grows evenly with i and j: kernels fold them into the
/// exponent.
#pragma once

#include <cstdint>
#include <optional>

#include "expression/program.h"
#include "expression/recognize.h"

namespace tilewise::expression {

/// score - distance |i - j + shift| + ahead (j - i) + row i + column j + constant. The coefficients
/// are nodes of `program`, reals that the batch entry and the head decide; -1: none.
struct Affine {
  Program program;
  std::int32_t distance = -1, ahead = -1, row = -1, column = -1, constant = -1;
  Linear shift;  ///< of lengths and a constant
};

/// nullopt for a score function of another form, and for the score alone.
std::optional<Affine> affine_of(const Program& score);

}  // namespace tilewise::expression
