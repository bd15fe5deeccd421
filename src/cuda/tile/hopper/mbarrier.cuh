/// Memory barriers in shared memory (sm_90): how the copy engine and warps of different roles hand
/// tiles to each other.
#pragma once

#include "cuda/tile/hopper/ptx/mbarrier.cuh"

namespace tilewise::tile {

inline constexpr int kMbarrierBytes = 8;

/// Waits until the phase of this parity is complete. A barrier counts as having completed a phase
/// of parity 1 before its first.
__forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

/// A position in a ring of kSlots buffers that each have a barrier: the slot, and the parity of its
/// current use.
template <int kSlots>
struct Ring {
  u32 slot = 0, parity = 0;

  __forceinline__ void advance() {
    if constexpr (kSlots == 1) {
      parity ^= 1;
    } else {
      if (++slot == kSlots) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
};

}  // namespace tilewise::tile
