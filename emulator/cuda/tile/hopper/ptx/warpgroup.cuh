/// The wrappers of src/cuda/tile/hopper/ptx/warpgroup.cuh on the emulator.
#pragma once

#include "cuda/tile/words.cuh"
#include "emulator.h"

namespace tilewise::tile {

template <int kRegisters>
__forceinline__ void take_registers() {
  emulator::current->block->registers.change(kRegisters);
}
template <int kRegisters>
__forceinline__ void give_registers() {
  emulator::current->block->registers.change(kRegisters);
}
__forceinline__ void named_barrier_sync(int id, int threads) {
  emulator::current->block->named_barriers[id].sync(threads);
}
__forceinline__ void named_barrier_arrive(int id, int threads) {
  emulator::current->block->named_barriers[id].arrive(threads);
}

}  // namespace tilewise::tile
