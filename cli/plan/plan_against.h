/// The plan's times beside measured ones: `plan --against RESULT.json`.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "cli/shell/table.h"
#include "plan/time_model.h"
#include "tilewise/plan.h"

namespace tilewise::cli {

/// A measured row of a result file and what the plan says of it.
struct Compared {
  std::string problem, pass, kernel;
  std::string implementation;
  int threads = 0;  ///< that it was measured with; 0: the file does not say, or a GPU
  double measured_ms = 0.0;
  double bound_ms = 0.0;  ///< the least that the machine allows: Bounds::least_ms()
  double predicted_ms = 0.0;
  double model_ms = 0.0;  ///< of the kernel's own cost function, before a fit
  bool backward = false, masked = false;
  Arithmetic arithmetic = Arithmetic::bits16;
  CpuForm form = CpuForm::unfused;              ///< CPU
  int arch = 0;                                 ///< 0: a CPU
  std::array<double, kCpuTerms> features = {};  ///< CPU: the terms of its model, see time_model.h
  double live_mib = 0.0, peak_mib = 0.0;        ///< measured; 0 when the file does not say
  double planned_live_mib = 0.0, planned_peak_mib = 0.0;
  std::string chosen;  ///< the kernel that the plan takes by itself, of the flash rows

  double error() const { return predicted_ms / measured_ms - 1.0; }
};

/// The rows of a result file that one of our kernels ran and that a case can express. `hardware`
/// names the machine; empty: the one that the file tells of. Throws BadInput.
std::vector<Compared> compare_with_results(const std::string& path, const std::string& hardware);

/// Both passes of a problem by one implementation of ours, measured as one.
struct MeasuredBoth {
  std::string implementation, problem;
  double ms = 0.0;
};

/// Those of a result file. Throws BadInput.
std::vector<MeasuredBoth> both_passes_of_results(const std::string& path);

/// A row for each of them.
Table compared_table(const std::vector<Compared>& rows);

/// Median and 90th percentile of |error| for each kernel and all, and how often the plan's choice
/// is within 5 % of the best kernel measured on the same problem.
Table error_table(const std::vector<Compared>& rows);

}  // namespace tilewise::cli
