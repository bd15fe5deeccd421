/// The wrappers of src/cuda/tile/hopper/ptx/tma.cuh on the emulator. Copies take effect late
/// (bulk_copy.h).
#pragma once

#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/words.cuh"
#include "emulator.h"

namespace tilewise::tile {

__forceinline__ void tma_prefetch_map(const TensorMapBytes* /*map*/) {}
__forceinline__ void tma_load(u32 shared, const TensorMapBytes* map, u32 barrier, int d, int h,
                              int s, int b, u64 /*policy*/) {
  emulator::load_box(map, shared, barrier, {d, h, s, b, 0}, 4);
}
__forceinline__ void tma_load_5d(u32 shared, const TensorMapBytes* map, u32 barrier, int d,
                                 const int (&c)[4], u64 /*policy*/) {
  emulator::load_box(map, shared, barrier, {d, c[0], c[1], c[2], c[3]}, 5);
}
__forceinline__ void tma_store(const TensorMapBytes* map, u32 shared, int d, int h, int s, int b) {
  emulator::store_box(map, shared, {d, h, s, b, 0}, 4);
}
__forceinline__ void tma_store_5d(const TensorMapBytes* map, u32 shared, int d, const int (&c)[4]) {
  emulator::store_box(map, shared, {d, c[0], c[1], c[2], c[3]}, 5);
}

__forceinline__ void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  emulator::load_bytes(global, shared, bytes, barrier);
}
__forceinline__ void bulk_add(float* global, u32 shared, u32 bytes) {
  emulator::add_floats(global, shared, bytes);
}
__forceinline__ void bulk_commit() { emulator::commit_departures(); }
template <int kPending = 0>
__forceinline__ void bulk_wait_read() {
  emulator::wait_reads(kPending);
}
__forceinline__ void bulk_wait() { emulator::wait_writes(); }
__forceinline__ void fence_async() {}
__forceinline__ void fence_async_shared() {}

__forceinline__ void store_matrix_x4(u32 shared, const u32 (&r)[4]) {
  emulator::note_write(emulator::access(shared, 16));
  const emulator::Slot* slots = emulator::meet({{shared}});
  const int lane = emulator::current->thread % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const u32 row = slots[matrix * 8 + lane / 4].words[0];
    std::memcpy(emulator::shared_base + row + 4 * (lane % 4), &r[matrix], 4);
  }
}

}  // namespace tilewise::tile
