/// The wrappers of src/cuda/tile/hopper/ptx/mbarrier.cuh on the emulator.
#pragma once

#include "cuda/tile/words.cuh"
#include "emulator.h"

namespace tilewise::tile {

__forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  emulator::current->block->mbarriers[barrier] = {arrivals, arrivals};
}
__forceinline__ void mbarrier_fence_init() {}
__forceinline__ void mbarrier_arrive(u32 barrier) {
  emulator::current->block->mbarriers[barrier].arrive();
}
__forceinline__ void mbarrier_expect(u32 barrier, u32 bytes) {
  emulator::current->block->mbarriers[barrier].expect(bytes);
}
__forceinline__ void mbarrier_arrive_copies(u32 barrier) { emulator::arrive_copies(barrier); }
__forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
  return emulator::try_wait(barrier, parity);
}
__forceinline__ bool mbarrier_test(u32 barrier, u32 parity) {
  return emulator::try_wait(barrier, parity);
}

}  // namespace tilewise::tile
