/// Thread blocks on the CPU: every thread is a fiber, collective instructions meet in their warp.
/// Blocks run one after another (run_block), or together where they wait for each other
/// (run_together). Enough of CUDA's built-in names for the device files of src/cuda; what the
/// wrappers of tile/ do is in kernel_emulation_test.py. It finds wrong indices, masks, formulas and
/// missing writes; waits and barriers that are missing as far as shared_memory.h says.
#pragma once

#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "shared_memory.h"

#define __forceinline__ inline
#define __shared__
#define __align__(bytes)

namespace emulator {

struct Index {
  unsigned x;
};
/// What a lane brings to a collective instruction.
struct Slot {
  unsigned words[6];
};
struct Warp {
  Slot slots[2][32];
  unsigned long arrived = 0;
};
inline void yield();

/// A barrier in shared memory, by its address.
struct Mbarrier {
  unsigned arrivals = 0, pending = 0;
  long bytes = 0;
  unsigned parity = 0;  ///< of the phase that is not complete

  void settle() {
    if (pending > 0 || bytes > 0) return;
    parity ^= 1;
    pending = arrivals;
  }
  void arrive() {
    --pending;
    settle();
  }
  void expect(unsigned more) {
    bytes += more;
    arrive();
  }
  void deliver(unsigned some) {
    bytes -= some;
    settle();
  }
  bool passed(unsigned wanted) const { return parity != wanted; }
};

struct NamedBarrier {
  long arrived = 0;
  void sync(int threads) {
    const long all = (arrived / threads + 1) * threads;
    ++arrived;
    while (arrived < all) yield();
  }
};

struct Block {
  unsigned index = 0, threads = 0;
  unsigned char* shared = nullptr;
  std::vector<Warp> warps;
  unsigned long arrived_at_barrier = 0;
  std::map<unsigned, Mbarrier> mbarriers;
  std::array<NamedBarrier, 16> named_barriers;
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Block* block = nullptr;
  unsigned thread = 0;
  unsigned long collectives = 0, barriers = 0;
  Copies copies;
  bool done = false;
};

inline Fiber* current = nullptr;
inline ucontext_t scheduler;
inline Index block_index;
inline std::function<void()> body;
/// Shared memory of the running fiber's block; where the device's name for it points.
inline unsigned char* shared_base = nullptr;
inline unsigned char* shared_name = nullptr;
inline Index grid_size{1};

/// An access of the running thread.
inline Access access(unsigned shared, int size) {
  return {shared, size, current->barriers + 1, current->thread / 32};
}

inline void yield() { swapcontext(&current->context, &scheduler); }
inline void start() {
  body();
  current->done = true;
  yield();
}

/// Runs `kernel` as all of `blocks` together.
inline void run_together(std::vector<Block>& blocks, std::function<void()> kernel) {
  body = std::move(kernel);
  std::vector<Fiber> fibers;
  for (Block& block : blocks) {
    block.warps.assign(block.threads / 32, {});
    for (unsigned i = 0; i < block.threads; ++i) {
      fibers.emplace_back();
      fibers.back().block = &block;
      fibers.back().thread = i;
    }
  }
  for (Fiber& fiber : fibers) {
    fiber.stack.resize(512 * 1024);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, start, 0);
  }
  for (std::size_t left = fibers.size(); left > 0;) {
    left = 0;
    for (Fiber& fiber : fibers) {
      if (fiber.done) continue;
      current = &fiber;
      shared_base = fiber.block->shared;
      block_index.x = fiber.block->index;
      swapcontext(&scheduler, &fiber.context);
      if (!fiber.done) ++left;
    }
  }
}

/// Runs `kernel` as thread block `index`, with shared memory where shared_base points.
inline void run_block(unsigned index, unsigned threads, std::function<void()> kernel) {
  std::vector<Block> block(1);
  block[0].index = index;
  block[0].threads = threads;
  block[0].shared = shared_name = shared_base;
  words.assign(words.size(), {});
  run_together(block, std::move(kernel));
}

/// Leaves `slot` and gives those of all lanes, once they have come. Two sets in turn: a lane that
/// comes to the next but one instruction knows that all have read this one's.
inline const Slot* meet(const Slot& slot) {
  Warp& warp = current->block->warps[current->thread / 32];
  Slot* slots = warp.slots[current->collectives % 2];
  slots[current->thread % 32] = slot;
  ++warp.arrived;
  const unsigned long all = 32 * ++current->collectives;
  while (warp.arrived < all) yield();
  return slots;
}

/// What a tensor map holds here: elements of 16 bits, strides in bytes, 128-byte swizzle.
struct Box {
  unsigned char* data;
  long sizes[5], strides[5];
  int box[5], rank;
};
inline Box box_of(const void* map) {
  Box box;
  static_assert(sizeof(box) <= 128);
  std::memcpy(&box, map, sizeof(box));
  return box;
}
inline unsigned box_bytes(const void* map) {
  const Box b = box_of(map);
  unsigned bytes = 2;
  for (int axis = 0; axis < b.rank; ++axis) bytes *= b.box[axis];
  return bytes;
}
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

/// One box between memory and shared memory; outside the tensor zeros are read and nothing is
/// written, but the 16 bytes in which a row ends are written whole, as an H200 was seen to do.
inline void copy_box(const void* map, unsigned shared, std::array<int, 5> at, int rank,
                     bool store) {
  const Box b = box_of(map);
  if (b.rank != rank) std::printf("a map of rank %d used as %d\n", b.rank, rank), std::exit(1);
  // Seen to be an illegal access on an H100 where two axes share a stride (fwd_sm90_args.h).
  if (rank == 5 && b.strides[2] == b.strides[3] && at[2] >= b.sizes[2]) {
    std::printf("a box wholly behind its sequence\n"), std::exit(1);
  }
  const int elems = static_cast<int>(box_bytes(map) / 2);
  for (int i = 0; i < elems; ++i) {
    int rest = i;
    bool inside = true;
    long offset = 0;
    const long size = store ? (b.sizes[0] + 7) / 8 * 8 : b.sizes[0];
    for (int axis = 0; axis < rank; ++axis) {
      const long index = at[axis] + rest % b.box[axis];
      rest /= b.box[axis];
      inside &= index >= 0 && index < (axis == 0 ? size : b.sizes[axis]);
      offset += index * (axis == 0 ? 2 : b.strides[axis]);
    }
    unsigned char* to = shared_base + swizzled(shared + 2 * i);
    if (store) {
      if (inside) std::memcpy(b.data + offset, to, 2);
    } else if (inside) {
      std::memcpy(to, b.data + offset, 2);
    } else {
      std::memset(to, 0, 2);
    }
  }
}

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

inline void __syncthreads() {
  using namespace emulator;
  Block& block = *current->block;
  ++block.arrived_at_barrier;
  const unsigned long all = block.threads * ++current->barriers;
  while (block.arrived_at_barrier < all) yield();
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
inline float __shfl_xor_sync(unsigned, float x, int mask) {
  const unsigned lane = emulator::current->thread % 32;
  return emulator::number(emulator::meet({{emulator::bits(x)}})[lane ^ mask].words[0]);
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
inline float __int_as_float(int i) { return emulator::number(static_cast<unsigned>(i)); }
inline float __uint_as_float(unsigned u) { return emulator::number(u); }
inline int __float_as_int(float x) { return static_cast<int>(emulator::bits(x)); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }

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
