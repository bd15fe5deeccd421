/// CUDA's built-in names on the emulator.
#pragma once

#include "emulator.h"

namespace emulator {

inline unsigned bits(float x) {
  unsigned u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float number(unsigned u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

}  // namespace emulator

#define threadIdx (emulator::Index{emulator::current->thread})
#define blockIdx emulator::block_index
#define gridDim emulator::grid_size

inline unsigned atomicAdd(unsigned* at, unsigned value) {
  const unsigned old = *at;
  *at += value;
  return old;
}
inline float atomicAdd(float* at, float value) {
  const float old = *at;
  *at += value;
  return old;
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  const unsigned long long old = *at;
  *at += value;
  return old;
}
inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long compare,
                                    unsigned long long value) {
  const unsigned long long old = *at;
  if (old == compare) *at = value;
  return old;
}

inline unsigned atomicOr(unsigned* at, unsigned value) {
  const unsigned old = *at;
  *at |= value;
  return old;
}
inline int __clz(int x) { return __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(both >> (shift & 31U));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }

inline void __syncthreads() {
  using namespace emulator;
  Block& block = *current->block;
  ++events;
  release(block.clocks);
  ++block.arrived_at_barrier;
  const unsigned long all = block.threads * ++current->barriers;
  wait_for(block.arrived_at_barrier, all);
  acquire(block.clocks);
  stall_behind_wait();
}
inline int __syncthreads_or(int value) {
  static int any[2];
  const unsigned long which = emulator::current->barriers / 2 % 2;
  if (value != 0) any[which] = 1;
  __syncthreads();
  const int result = any[which];
  __syncthreads();
  any[which] = 0;
  return result;
}
inline void __syncwarp() { emulator::meet({}); }
inline int __shfl_xor_sync(unsigned, int x, int mask) {
  const unsigned lane = emulator::current->thread % 32;
  return static_cast<int>(emulator::meet({{static_cast<unsigned>(x)}})[lane ^ mask].words[0]);
}
inline float __shfl_xor_sync(unsigned, float x, int mask) {
  const unsigned lane = emulator::current->thread % 32;
  return emulator::number(emulator::meet({{emulator::bits(x)}})[lane ^ mask].words[0]);
}
inline long long __shfl_sync(unsigned, long long x, int lane) {
  const auto bits = static_cast<unsigned long long>(x);
  const emulator::Slot& slot =
      emulator::meet({{static_cast<unsigned>(bits), static_cast<unsigned>(bits >> 32)}})[lane];
  return static_cast<long long>(static_cast<unsigned long long>(slot.words[1]) << 32 |
                                slot.words[0]);
}
inline float __shfl_sync(unsigned, float x, int lane) {
  return emulator::number(emulator::meet({{emulator::bits(x)}})[lane].words[0]);
}
inline int __shfl_sync(unsigned, int x, int lane) {
  return static_cast<int>(emulator::meet({{static_cast<unsigned>(x)}})[lane].words[0]);
}
inline bool __any_sync(unsigned, bool value) {
  const emulator::Slot* slots = emulator::meet({{value}});
  for (int lane = 0; lane < 32; ++lane) {
    if (slots[lane].words[0] != 0) return true;
  }
  return false;
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const emulator::Slot* slots = emulator::meet({{value}});
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= slots[lane].words[0] << lane;
  return bits;
}
inline float __int_as_float(int i) { return emulator::number(static_cast<unsigned>(i)); }
inline float __uint_as_float(unsigned u) { return emulator::number(u); }
inline int __float_as_int(float x) { return static_cast<int>(emulator::bits(x)); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
template <class T>
T __ldg(const T* at) {
  return *at;
}

namespace tilewise::tile {
template <class A, class B>
auto min(A a, B b) {
  return a < b ? a : static_cast<decltype(a + b)>(b);
}
template <class A, class B>
auto max(A a, B b) {
  return a > b ? a : static_cast<decltype(a + b)>(b);
}
}  // namespace tilewise::tile
