/// Matrix products of a warpgroup on the tensor cores (sm_90a). PTX ISA manual, "Asynchronous
/// warpgroup level matrix instructions".
///
/// Accumulator m64nN: thread t of the warpgroup, warp w = t / 32, lane l: register 4j + i is row
/// 16w + l/4 (+8 for i = 2, 3), column 8j + 2(l%4) + i%2. A operand from registers, k step of 16:
/// {d[8k], d[8k+1]}, {d[8k+2], d[8k+3]}, {d[8k+4], d[8k+5]}, {d[8k+6], d[8k+7]} of such an
/// accumulator, packed.
///
/// Shared memory: panels of 64 columns (128 bytes) x R rows, 128-byte swizzle, 1024-byte aligned,
/// as one box of the copy engine leaves them: element (r, c) lies at r*128 + ((c/8) ^ (r%8))*16 +
/// (c%8)*2.
#pragma once

#include "cuda/tile/hopper/ptx/wgmma.cuh"
#include "cuda/tile/math.cuh"

namespace tilewise::tile {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
/// Descriptors count 16-byte units: along the columns of a panel (K-major, 16 of them), along its
/// rows (MN-major, 16).
inline constexpr int kStepColumns = 32 / 16;
inline constexpr int kStepRows = 16 * kPanelRowBytes / 16;

/// Products for one shape, m64 x kN x k16; the host generates the ones that a config needs
/// (cuda/host/wgmma_text.h):
///   multiply_shared(d, a, b, accumulate)   d (+)= A B^T, A and B K-major in shared memory
///   multiply_register(d, a0..a3, b)        d += A B, A in registers, B MN-major in shared memory
///   multiply_register_rows(d, a0..a3, b, accumulate)  d (+)= A B^T, A in registers, B K-major
///   multiply_transposed(d, a, b, accumulate)  d (+)= A^T B, A and B MN-major in shared memory
template <Element kElement, int kN>
struct Wgmma;

/// Descriptor of panels with 128-byte swizzle. `panel_bytes`: from one panel to the next, for
/// MN-major operands (64 more columns of N); not read for K-major ones. `group_bytes`: from eight
/// rows to the next eight, a multiple of 1024. "Matrix descriptor"
__forceinline__ u64 panel_descriptor(u32 shared, u32 panel_bytes, u32 group_bytes = 1024) {
  return static_cast<u64>((shared & 0x3FFFF) >> 4) | static_cast<u64>(panel_bytes >> 4) << 16 |
         static_cast<u64>(group_bytes >> 4) << 32 | 1ULL << 62;
}

}  // namespace tilewise::tile
