#include "cuda/rows.h"

#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/baseline.hpp"
#include "cuda/kernels/softmax_rows.hpp"
#include "cuda/kernels/unfused.hpp"

namespace tilewise::cuda {

std::span<const KernelRow> cuda_rows() {
  static const std::vector<KernelRow> rows = {kFusedForward, kFusedBackward, kEagerForward,
                                              kEagerBackward, kBaselineForward};
  return rows;
}

std::vector<PackUnit> pack_units(int /*arch*/) {
  std::vector<PackUnit> units;
  add_softmax_units(units);
  add_baseline_units(units);
  return units;
}

}  // namespace tilewise::cuda
