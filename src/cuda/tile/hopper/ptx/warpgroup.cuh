/// Roles of warpgroups (sm_90): registers moved between them, barriers among some warps of a block.
/// One instruction per wrapper; sections are those of the PTX ISA manual.
#pragma once

#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::tile {

/// Registers a thread for this warpgroup from here on. The sum over the block must not pass what
/// the launch gave: a warpgroup that asks for more waits until others have given theirs back, for
/// ever if they do not. "setmaxnreg"
template <int kRegisters>
__forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Waits at named barrier `id` until `threads` have come. "barrier", .sync
__forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Comes to named barrier `id` without waiting. "barrier", .arrive
__forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace tilewise::tile
