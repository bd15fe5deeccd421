/// Numbers that several rows of the host side share.
#pragma once

#include <cstdint>

namespace tilewise::cuda {

inline constexpr double kLog2e = 1.4426950408889634;
inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;
/// Most rows of packed tensors on sm_90: positions are 32-bit, and so are sums of two of them.
inline constexpr std::int64_t kMostPackedRows = std::int64_t{1} << 29;

}  // namespace tilewise::cuda
