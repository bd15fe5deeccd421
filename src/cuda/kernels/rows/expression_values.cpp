#include "cuda/kernels/rows/expression_values.h"

#include <string>

#include "cuda/driver/launch.h"
#include "cuda/host/expression_text.h"
#include "cuda/host/expressions.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernel.h"
#include "problem/blocks.h"

namespace tilewise::cuda {

KernelUnit expression_values_unit(const AskedFunctions& functions) {
  KernelUnit unit;
  unit.stem = "expression_values";
  unit.file = "rows/expression_values";
  unit.config = ".scores = " + std::to_string(functions.scores.size()) +
                number_text("masks", static_cast<int>(functions.masks.size()));
  unit.threads = expression_values::kThreads;
  unit.prelude = "#include \"cuda/tile/expression.cuh\"\n";
  int index = 0;
  for (const expression::Gradient* gradient : functions.gradients)
    unit.prelude += gradient_text(*gradient, {.index = ++index});
  index = 0;
  for (const expression::Function& mask : functions.masks)
    unit.prelude += mask_text(*mask.program, {.index = ++index});
  return unit;
}

std::int64_t expression_values_size(const AskedFunctions& functions, std::int64_t points) {
  return static_cast<std::int64_t>(2 * functions.scores.size() + functions.masks.size()) * points;
}

std::vector<tile::Captures> expression_captures(const AskedFunctions& functions) {
  std::vector<tile::Captures> all;
  for (const std::vector<expression::Function>* some : {&functions.scores, &functions.masks}) {
    for (const expression::Function& function : *some) {
      Problem p;
      p.score_function = function;
      all.push_back(captures_of(p));
    }
  }
  return all;
}

void expression_values(const AskedFunctions& functions, const expression_values::Point* points,
                       std::int64_t count, const tile::Captures* captures, float* values,
                       int device, void* stream) {
  expression_values::Args args;
  args.points = points;
  args.count = static_cast<int>(count);
  args.captures = captures;
  args.values = values;
  const Grid grid = {.x = ceil_div(count, expression_values::kThreads),
                     .y = static_cast<int>(functions.scores.size() + functions.masks.size())};
  launch(load(expression_values_unit(functions), device), grid, stream, args);
}

}  // namespace tilewise::cuda
