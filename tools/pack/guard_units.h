/// Units whose machine code a refactoring must leave alone: `tilewise_pack --guard`.
#pragma once

#include <vector>

#include "cuda/jit/pack.h"

namespace tilewise::cuda {

/// The packed units of sm_80 and sm_90, the units that the pack leaves out but tests compile, and
/// units that problems of a fixed seed reach on sm_90. The same list for the same sources.
std::vector<TargetUnit> guard_units();

}  // namespace tilewise::cuda
