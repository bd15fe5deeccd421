/// The formulas of a sample of expression_samples.h, in float64.
#pragma once

#include <memory>

#include "cuda/host/expressions.h"
#include "expression/interpret.h"
#include "expression_samples.h"

namespace tilewise::samples {

struct Interpreted {
  Problem problem;  ///< that holds the functions
  std::unique_ptr<expression::Interpreter> score, slope, mask;

  explicit Interpreted(const Sample& sample) {
    const Expression of_score = score_of(sample), of_mask = mask_of(sample);
    if (of_score.defined()) {
      problem.score_function = expression::function_of(of_score);
      problem.score_gradient = expression::lower(of_score).gradient();
      problem.score_affine = expression::lower(of_score).affine();
      score = interpreter(*problem.score_function.program, problem.score_function);
      slope = interpreter(problem.score_gradient->program, problem.score_function);
    }
    if (of_mask.defined()) {
      problem.mask_function = expression::function_of(of_mask);
      mask = interpreter(*problem.mask_function.program, problem.mask_function);
    }
  }
  static std::unique_ptr<expression::Interpreter> interpreter(
      const expression::Program& program, const expression::Function& function) {
    return std::make_unique<expression::Interpreter>(program, function.captures);
  }

  double value(const expression::Point& at) const {
    if (score == nullptr) return at.score;
    score->turn_to(at);
    return score->real(problem.score_function.program->result);
  }
  double derivative(const expression::Point& at) const {
    if (score == nullptr) return 1.0;
    slope->turn_to(at);
    return slope->real(problem.score_gradient->of_score);
  }
  bool is_visible(const expression::Point& at) const {
    if (mask == nullptr) return true;
    mask->turn_to(at);
    return mask->boolean(problem.mask_function.program->result);
  }
};

/// The functions of a sample in a kernel's config.
constexpr tile::Expressions expressions_of(int sample, bool gradient) {
  const Sample& s = kSamples[sample];
  return {.score = *s.score == '\0' ? 0 : sample + 1 + (gradient ? kGradients : 0),
          .mask = *s.mask == '\0' ? 0 : sample + 1,
          .shifts = gradient && sample == kShifting};
}

}  // namespace tilewise::samples
