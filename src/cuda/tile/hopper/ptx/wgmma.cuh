/// Order of a warpgroup's matrix products (sm_90a). One instruction per wrapper; sections are those
/// of the PTX ISA manual, "Asynchronous warpgroup level matrix instructions".
#pragma once

#include "cuda/tile/words.cuh"

namespace tilewise::tile {

/// Before the first product of a group: orders earlier uses of its registers. "wgmma.fence"
__forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Ends a group of products. "wgmma.commit_group"
__forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending groups of this warp are in flight. "wgmma.wait_group"
template <int kPending>
__forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps plain reads and writes of these registers on this side of a wait: the compiler sees them
/// change here.
template <int kN>
__forceinline__ void pin(float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int kN>
__forceinline__ void pin(u32 (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

}  // namespace tilewise::tile
