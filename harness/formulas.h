/// Random formulas on a GPU: what the text that kernels are made with gives there, against the
/// float64 interpreter.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tilewise/runtime.h"

namespace tilewise {

struct FormulaCheck {
  std::int64_t formulas = 0, points = 0;
  std::int64_t differing = 0;  ///< points that differ, all formulas together
  std::vector<std::string> failures;
  double seconds = 0.0;
};

/// Draws `count` formulas, of depth to 8: scores with their derivative by the score, and masks in
/// turn. Compiles and runs 16 at a time, `threads` such units at once. A mask must be equal at
/// every point. A score may differ by 1e-4 of its size, and more at 2 % of its points: a rounding
/// on the other side of a comparison or a floor. Stops early after `seconds`, and once `stop` says
/// so, which every thread asks. Throws Unsupported for a device that is no GPU.
FormulaCheck check_formulas(Device device, std::int64_t count, std::uint64_t seed, int threads,
                            double seconds, const std::function<bool()>& stop);

}  // namespace tilewise
