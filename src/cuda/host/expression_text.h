/// From a program of src/expression to the device functions that kernels apply to scores: text for
/// KernelUnit::prelude, in the words of cuda/tile/expression.cuh.
#pragma once

#include <string>
#include <vector>

#include "expression/affine.h"
#include "expression/program.h"

namespace tilewise::cuda {

/// Names the first thing of a program that kernels do not hold; empty when there is none.
std::string expression_refusal(const expression::Program& program);

/// What a function of a unit is: tile::ScoreFunction or MaskFunction, by an index (see
/// tile::Expressions), and where its tensors begin among the Captures.
struct FunctionName {
  int index = 1;
  int first_capture = 0;
  bool strip = false;  ///< what distances decide is read from Captures::strip
};

/// `struct ScoreFunction<1>`: the score after the function.
std::string score_text(const expression::Program& program, const FunctionName& name = {});
/// `struct ScoreSlant<1>`: what such a function adds to the score, as tile::Slant.
std::string slant_text(const expression::Affine& affine, const FunctionName& name = {});
/// score_text() with its derivative by the score.
std::string gradient_text(const expression::Gradient& gradient, const FunctionName& name = {});
/// The score after the function, and what a pair adds to the gradients of the captured tensors that
/// are `wanted`. `exact`: sums are those of cuda/tile/exact_sum.cuh.
std::string captures_text(const expression::Gradient& gradient, const std::vector<bool>& wanted,
                          bool exact, const FunctionName& name = {});
/// Number of 4-byte values per distance that score_text() or gradient_text() keeps in a strip.
/// 0 = no strip.
int strip_values(const expression::Program& score);
int strip_values(const expression::Gradient& gradient);
/// `struct MaskFunction<1>`: whether a pair is visible.
std::string mask_text(const expression::Program& program, const FunctionName& name = {});

}  // namespace tilewise::cuda
