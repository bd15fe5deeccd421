/// Memory barriers in shared memory (sm_90). One instruction per wrapper; sections are those of the
/// PTX ISA manual, "mbarrier".
#pragma once

#include "cuda/tile/words.cuh"

namespace tilewise::tile {

/// A new phase 0 that completes after `arrivals`. "mbarrier.init"
__forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the copy engine. "membar / fence", .mbarrier_init
__forceinline__ void mbarrier_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival; releases what this thread has read and written. "mbarrier.arrive"
__forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival, and `bytes` that copies must deliver before the phase completes. "mbarrier.arrive",
/// .expect_tx
__forceinline__ void mbarrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// One arrival, once this thread's copies by cp.async so far have landed.
/// "cp.async.mbarrier.arrive", .noinc
__forceinline__ void mbarrier_arrive_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Whether the phase of this parity is complete; may sleep a while first. "mbarrier.try_wait",
/// .parity
__forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// Whether the phase of this parity is complete, at once. "mbarrier.test_wait", .parity
__forceinline__ bool mbarrier_test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
      "p;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace tilewise::tile
