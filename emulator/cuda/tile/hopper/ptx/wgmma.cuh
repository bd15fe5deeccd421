/// The wrappers of src/cuda/tile/hopper/ptx/wgmma.cuh on the emulator. The products are in
/// emulator/wgmma.h.
#pragma once

#include "cuda/tile/words.cuh"
#include "emulator.h"

namespace tilewise::tile {

__forceinline__ void wgmma_fence() {}
__forceinline__ void wgmma_commit() { emulator::commit_products(); }
template <int kPending>
__forceinline__ void wgmma_wait() {
  emulator::wait_products(kPending);
}
template <int kN>
__forceinline__ void pin(float (&/*d*/)[kN]) {}
template <int kN>
__forceinline__ void pin(u32 (&/*d*/)[kN]) {}

}  // namespace tilewise::tile
