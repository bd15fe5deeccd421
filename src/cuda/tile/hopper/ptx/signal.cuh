/// Counters in memory that blocks of one launch signal by. One instruction per wrapper; sections
/// are those of the PTX ISA manual.
#pragma once

#include "cuda/tile/words.cuh"

namespace tilewise::tile {

/// Adds to a counter; who acquires the sum sees what this thread has written and observed.
/// 9.7.13.4 red, .release
__forceinline__ void signal_add(u32* counter, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

/// Adds one, gives the sum before: who adds sees what those have written who added before, and is
/// seen. 9.7.13.3 atom, .acq_rel
__forceinline__ u32 signal_count(u32* counter) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

/// Orders what this thread knows of before what it does next, for the whole device. 9.7.13.4
/// membar, fence.acq_rel
__forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// 9.7.9.8 ld, .acquire
__forceinline__ u32 signal_read(const u32* counter) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace tilewise::tile
