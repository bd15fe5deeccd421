/// The bulk tensor copy engine (sm_90).
#pragma once

#include "cuda/tile/hopper/ptx/tma.cuh"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::tile {

/// L2 eviction priorities in the encoding that createpolicy.fractional gives for a fraction of 1.
inline constexpr u64 kEvictFirst = 0x12F0000000000000ULL;
inline constexpr u64 kEvictNormal = 0x1000000000000000ULL;
inline constexpr u64 kEvictLast = 0x14F0000000000000ULL;

}  // namespace tilewise::tile
