/// The wrappers of src/cuda/tile/ptx/copy.cuh, each with what its instruction does on the emulator.
#pragma once

#include "cuda/tile/words.cuh"
#include "emulator.h"

namespace tilewise::tile {

__forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(static_cast<const unsigned char*>(p) - emulator::shared_name);
}

/// Starts an asynchronous copy of kBytes, of which `bytes` are read.
template <int kBytes>
__forceinline__ void start_copy(u32 shared, const void* global, int bytes) {
  if (reinterpret_cast<unsigned long>(global) % kBytes != 0)
    emulator::on_fault("misaligned source of a copy");
  emulator::start_copy(emulator::current->copies, {shared, global, bytes, kBytes},
                       emulator::access(shared, kBytes), emulator::shared_base);
}
__forceinline__ void copy_async_16(u32 shared, const void* global, int bytes) {
  start_copy<16>(shared, global, bytes);
}
__forceinline__ void copy_async_commit() { emulator::commit_copies(emulator::current->copies); }
template <int kPending>
__forceinline__ void copy_async_wait() {
  emulator::wait_copies(emulator::current->copies, kPending, emulator::current->barriers + 1,
                        emulator::current->thread / 32, emulator::shared_base);
}

/// Lane l names row l % 8 of matrix l / 8. An element of the lane's words is read at row `along`
/// and column `across`, or the other way round where matrices are transposed.
template <bool kTransposed>
__forceinline__ void load_matrices(u32 (&r)[4], u32 shared) {
  emulator::note_read(emulator::access(shared, 16));
  const emulator::Slot* slots = emulator::meet({{shared}});
  u32 addresses[32];
  for (int i = 0; i < 32; ++i) addresses[i] = slots[i].words[0];
  const int lane = emulator::current->thread % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    r[matrix] = 0;
    for (int e = 0; e < 2; ++e) {
      const int along = lane / 4, across = 2 * (lane % 4) + e;
      const int row = kTransposed ? across : along, column = kTransposed ? along : across;
      unsigned short x;
      std::memcpy(&x, emulator::shared_base + addresses[matrix * 8 + row] + 2 * column, 2);
      r[matrix] |= static_cast<u32>(x) << (16 * e);
    }
  }
}
__forceinline__ void load_matrix_x4(u32 (&r)[4], u32 shared) { load_matrices<false>(r, shared); }
__forceinline__ void load_matrix_trans_x4(u32 (&r)[4], u32 shared) {
  load_matrices<true>(r, shared);
}

template <class Value>
__forceinline__ Value read_shared(u32 shared) {
  emulator::note_read(emulator::access(shared, sizeof(Value)));
  Value value;
  std::memcpy(&value, emulator::shared_base + shared, sizeof(Value));
  return value;
}
template <class Value>
__forceinline__ void write_shared(u32 shared, const Value& value) {
  emulator::note_write(emulator::access(shared, sizeof(Value)));
  std::memcpy(emulator::shared_base + shared, &value, sizeof(Value));
}
__forceinline__ void store_shared_4(u32 shared, u32 value) { write_shared(shared, value); }
__forceinline__ Bytes16 load_shared_16(u32 shared) { return read_shared<Bytes16>(shared); }
__forceinline__ u32 load_shared_2(u32 shared) { return read_shared<unsigned short>(shared); }
__forceinline__ u32 load_shared_4(u32 shared) { return read_shared<u32>(shared); }
__forceinline__ Floats2 load_shared_8(u32 shared) { return read_shared<Floats2>(shared); }
__forceinline__ void store_shared_16(u32 shared, float x, float y, float z, float w) {
  const float v[4] = {x, y, z, w};
  write_shared(shared, v);
}
__forceinline__ float load_shared_f32(u32 shared) { return read_shared<float>(shared); }

__forceinline__ u32 load_global_early(const u32* global) { return *global; }
__forceinline__ void prefetch_line(const void* /*global*/) {}
__forceinline__ Bytes16 load_global_16(const void* global) {
  Bytes16 r;
  std::memcpy(&r, global, 16);
  return r;
}
__forceinline__ void store_global_16(void* global, Bytes16 v) { std::memcpy(global, &v, 16); }
__forceinline__ void store_global_8(float* global, float x, float y) {
  global[0] = x;
  global[1] = y;
}
__forceinline__ void add_global(float* global, float v) { *global += v; }
__forceinline__ void add_global_x4(float* global, const float (&v)[4]) {
  for (int i = 0; i < 4; ++i) add_global(global + i, v[i]);
}

__forceinline__ void wait_for_previous() {}
__forceinline__ void let_next_start() {}

}  // namespace tilewise::tile
