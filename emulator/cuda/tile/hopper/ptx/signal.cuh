/// The wrappers of src/cuda/tile/hopper/ptx/signal.cuh on the emulator.
#pragma once

#include "cuda/tile/words.cuh"
#include "emulator.h"

namespace tilewise::tile {

__forceinline__ void signal_add(u32* counter, u32 value) {
  ++emulator::events;
  *counter += value;
}
__forceinline__ u32 signal_count(u32* counter) {
  ++emulator::events;
  return (*counter)++;
}
__forceinline__ void fence_device() {}
__forceinline__ u32 signal_read(const u32* counter) {
  emulator::yield();
  return *counter;
}

}  // namespace tilewise::tile
