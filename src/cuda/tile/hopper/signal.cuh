/// Signals between blocks of one launch: counters in memory.
#pragma once

#include "cuda/tile/hopper/ptx/signal.cuh"

namespace tilewise::tile {

/// Waits until a counter has reached `value`.
__forceinline__ void signal_wait(const u32* counter, u32 value) {
  while (signal_read(counter) < value) {
  }
}

}  // namespace tilewise::tile
