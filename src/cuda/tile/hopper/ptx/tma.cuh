/// The bulk tensor copy engine (sm_90). One instruction per wrapper; sections are those of the PTX
/// ISA manual.
#pragma once

#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/words.cuh"

namespace tilewise::tile {

/// Fetches a tensor map ahead of its first use. "prefetch", .tensormap
__forceinline__ void tma_prefetch_map(const TensorMapBytes* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// A box at coordinates (d, h, s, b) to shared memory; its whole size in bytes arrives at
/// `barrier`, zeros where it lies outside the tensor. "cp.async.bulk.tensor"
__forceinline__ void tma_load(u32 shared, const TensorMapBytes* map, u32 barrier, int d, int h,
                              int s, int b, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(d), "r"(h), "r"(s), "r"(b), "l"(policy)
      : "memory");
}

/// The same with coordinates (d, c1, c2, c3, c4) of a map of rank 5.
__forceinline__ void tma_load_5d(u32 shared, const TensorMapBytes* map, u32 barrier, int d,
                                 const int (&c)[4], u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(d), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "l"(policy)
      : "memory");
}

/// A box from shared memory; what lies outside the tensor is not written. "cp.async.bulk.tensor"
__forceinline__ void tma_store(const TensorMapBytes* map, u32 shared, int d, int h, int s, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
          "l"(map),
      "r"(shared), "r"(d), "r"(h), "r"(s), "r"(b)
      : "memory");
}

/// The same with coordinates (d, c1, c2, c3, c4) of a map of rank 5.
__forceinline__ void tma_store_5d(const TensorMapBytes* map, u32 shared, int d, const int (&c)[4]) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];" ::"l"(map),
      "r"(shared), "r"(d), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3])
      : "memory");
}

/// `bytes` (a multiple of 16) of plain memory to shared memory; they arrive at `barrier`.
/// "cp.async.bulk"
__forceinline__ void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Adds `bytes` (a multiple of 16) of floats in shared memory to floats in memory, each atomically.
/// "cp.reduce.async.bulk"
__forceinline__ void bulk_add(float* global, u32 shared, u32 bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared), "r"(bytes)
      : "memory");
}

/// Ends this thread's group of bulk stores. "cp.async.bulk.commit_group"
__forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until this thread's bulk stores, but for the kPending youngest groups, have read their
/// shared memory. "cp.async.bulk.wait_group", .read
template <int kPending = 0>
__forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until this thread's bulk stores and additions are complete: their results are in memory.
/// "cp.async.bulk.wait_group"
__forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Orders this thread's ordinary accesses of memory of any kind and those of the copy engine.
/// "membar / fence", .proxy.async
__forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Orders this thread's ordinary accesses of shared memory before later ones of the copy engine and
/// of wgmma. "membar / fence", .proxy.async
__forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l addresses row l % 8 of matrix l / 8. "stmatrix"
__forceinline__ void store_matrix_x4(u32 shared, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace tilewise::tile
