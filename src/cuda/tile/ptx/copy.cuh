/// Copies between global memory, shared memory and registers. One instruction per wrapper; sections
/// are those of the PTX ISA manual.
#pragma once

#include "cuda/tile/words.cuh"

namespace tilewise::tile {

/// Address of shared memory as instructions take it.
__forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

/// 16 bytes, global to shared, past L1; `bytes` of them are read, the rest is zero. 9.7.9.25.3
/// cp.async
__forceinline__ void copy_async_16(u32 shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

/// Ends a group of asynchronous copies. 9.7.9.25.3 cp.async.commit_group
__forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending groups of this thread are in flight. 9.7.9.25.3 cp.async.wait_group
template <int kPending>
__forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l addresses row l % 8 of matrix l / 8. 9.7.14.5.15
/// ldmatrix
__forceinline__ void load_matrix_x4(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// The same, each matrix transposed. 9.7.14.5.15 ldmatrix
__forceinline__ void load_matrix_trans_x4(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// 4 bytes, register to shared. 9.7.9.11 st
__forceinline__ void store_shared_4(u32 shared, u32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(value) : "memory");
}

/// 16 bytes, shared to registers. 9.7.9.8 ld
__forceinline__ Bytes16 load_shared_16(u32 shared) {
  Bytes16 r;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(shared)
               : "memory");
  return r;
}

/// 2 bytes, shared to the low half of a register. 9.7.9.8 ld
__forceinline__ u32 load_shared_2(u32 shared) {
  unsigned short r;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(r) : "r"(shared) : "memory");
  return r;
}

/// 4 bytes, shared to register. 9.7.9.8 ld
__forceinline__ u32 load_shared_4(u32 shared) {
  u32 r;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(shared) : "memory");
  return r;
}

/// 8 bytes, shared to registers. 9.7.9.8 ld
__forceinline__ Floats2 load_shared_8(u32 shared) {
  Floats2 r;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "r"(shared) : "memory");
  return r;
}

/// 16 bytes, registers to shared. 9.7.9.11 st
__forceinline__ void store_shared_16(u32 shared, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
}

/// A float from shared memory. 9.7.9.8 ld
__forceinline__ float load_shared_f32(u32 shared) {
  float r;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(shared) : "memory");
  return r;
}

/// Asked for where this stands: ptxas moves ld.global.nc down to where it is used first, behind
/// barriers and into the issue of products, which then wait for it. 9.7.9.8 ld
__forceinline__ u32 load_global_early(const u32* global) {
  u32 x;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(global) : "memory");
  return x;
}
/// Asks for a line of 128 bytes in the L2 cache. 9.7.9.15 prefetch
__forceinline__ void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}
/// 16 bytes, global to registers. 9.7.9.8 ld
__forceinline__ Bytes16 load_global_16(const void* global) {
  Bytes16 r;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(global)
               : "memory");
  return r;
}

/// 16 bytes, registers to global. 9.7.9.11 st
__forceinline__ void store_global_16(void* global, Bytes16 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

/// 8 bytes, registers to global. 9.7.9.11 st
__forceinline__ void store_global_8(float* global, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(global), "f"(x), "f"(y) : "memory");
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// Adds four floats to memory, each atomically. 9.7.13.4 red (vector form, sm_90)
__forceinline__ void add_global_x4(float* global, const float (&v)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
}
#else
/// Adds a float to memory atomically. 9.7.13.4 red
__forceinline__ void add_global(float* global, float v) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(global), "f"(v) : "memory");
}
__forceinline__ void add_global_x4(float* global, const float (&v)[4]) {
  for (int i = 0; i < 4; ++i) add_global(global + i, v[i]);
}
#endif

/// Waits until the kernel before this one on the stream is done and what it wrote can be read;
/// returns at once when this kernel was started the ordinary way. 9.7.13.16 griddepcontrol (sm_90;
/// before that kernels never overlap)
__forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel on the stream start, as far as there is room; it waits by
/// wait_for_previous() for what this one writes. 9.7.13.16 griddepcontrol
__forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tilewise::tile
