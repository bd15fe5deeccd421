// Kernels that the pack leaves to their first use, held to what the census holds packed ones to.
#include <gtest/gtest.h>

#include "cuda/jit/census.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/kernels/bwd_sm80.hpp"
#include "cuda/kernels/fwd_sm80.hpp"

namespace tilewise::cuda {
namespace {

class OptionUnits : public testing::TestWithParam<int> {};

TEST_P(OptionUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  const int arch = GetParam();
  std::vector<PackUnit> units;
  add_fwd_sm80_dropout_units(units, arch);
  add_bwd_sm80_option_units(units, arch);
  EXPECT_GE(units.size(), 6U);
  for (const PackUnit& held : units) {
    const KernelEntry entry = make_entry(held.unit, arch, compile(held.unit, arch));
    for (const std::string& fault : census_faults(held, entry, arch)) {
      ADD_FAILURE() << held.unit.name() << " {" << held.unit.config << "} for " << arch << ": "
                    << fault;
    }
  }
}

// 86 and 89 have the shared memory of 120, and 100 that of 90.
INSTANTIATE_TEST_SUITE_P(Architectures, OptionUnits, testing::Values(80, 90, 120));

}  // namespace
}  // namespace tilewise::cuda
