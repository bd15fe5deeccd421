/// Thread blocks on the CPU: every thread is a fiber, collective instructions meet in their warp.
/// Blocks run one after another (run_block), or together where they wait for each other
/// (run_grid). Enough of CUDA's built-in names for the device files of src/cuda; what the wrappers
/// of tile/ptx do is in emulator/cuda. It finds wrong indices, masks, formulas, missing
/// writes, and missing waits and barriers: warps and lanes stall at random, by the seed of
/// chance.h; asynchronous operations take effect as late as they may and look whether anybody
/// touched what was theirs (bulk_copy.h, products.h; shared_memory.h for those of sm_80), and
/// accesses of two warps must be in order by barriers, whoever comes first (order.h).
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chance.h"
#include "order.h"
#include "shared_memory.h"

#define __forceinline__ inline
#define __shared__
#define __align__(bytes)

namespace emulator {

struct Index {
  unsigned x;
  unsigned y = 0;
};
/// What a lane brings to a collective instruction.
struct Slot {
  unsigned words[6];
};
struct Products;
struct Warp {
  Slot slots[2][32];
  unsigned long arrived = 0;
  unsigned long stalled_until = 0;  ///< a round of the scheduler
  Clocks clocks;
  std::map<unsigned, unsigned> seen;   ///< phases of barriers that a lane has seen complete
  std::shared_ptr<Products> products;  ///< wgmma's
};
inline void yield();
inline void wait_for(const unsigned long& counter, unsigned long target);
inline void stall_behind_wait();

/// What brings a run forward. A run in which nothing of it happens any more is a deadlock.
inline unsigned long events = 0;

/// A barrier in shared memory, by its address.
struct Mbarrier {
  unsigned arrivals = 0, pending = 0;
  long bytes = 0;
  unsigned phases = 0;  ///< that are complete
  Clocks clocks = {};

  void settle() {
    ++events;
    if (pending > 0 || bytes > 0) return;
    ++phases;
    pending = arrivals;
  }
  void arrive() {
    release(clocks);
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
  bool passed(unsigned parity) const { return phases % 2 != parity; }
};

/// A barrier of some threads of a block. All who come to a phase must name as many as it is for.
struct NamedBarrier {
  unsigned arrived = 0, threads = 0;  ///< of this phase
  unsigned long phases = 0;           ///< that are complete
  Clocks clocks;
  inline void arrive(unsigned of);
  void sync(unsigned of) {
    const unsigned long next = phases + 1;
    arrive(of);
    wait_for(phases, next);
    acquire(clocks);
    stall_behind_wait();
  }
};

/// A bulk copy on its way to shared memory. `place` is what lies there meanwhile.
struct Landing {
  unsigned long due;  ///< a round of the scheduler
  unsigned shared, barrier;
  std::vector<unsigned char> place, data;  ///< data: empty before it is read
  std::function<void(std::vector<unsigned char>&)> read;
};
/// A bulk copy or addition on its way from shared memory. `data` is what lay there at its start.
struct Departure {
  unsigned shared;
  std::vector<unsigned char> data;
  std::function<void(const std::vector<unsigned char>&)> write;
};
/// Those of a thread that it ended with a commit.
struct DepartureGroup {
  std::vector<Departure> departures;
  bool is_read = false, is_written = false;
};

/// setmaxnreg: a warp that takes registers waits until others of its block have given as many.
/// `given` counts those that were given back and not taken since, of a lane of each warp.
struct Registers {
  std::vector<unsigned> of;  ///< a lane, by warp
  unsigned given = 0;

  /// What a lane has at the start: as many as fit, a multiple of 8.
  void start(unsigned threads) {
    constexpr unsigned kFile = 64 * 1024, kMost = 256;
    of.assign(threads / 32, std::min(kFile / threads, kMost) / 8 * 8);
    given = 0;
  }
  inline void change(unsigned to);
};

struct Block {
  unsigned index = 0, threads = 0;
  unsigned char* shared = nullptr;
  std::vector<Warp> warps;
  unsigned slow_warp = 0;
  unsigned long arrived_at_barrier = 0;
  Clocks clocks;  ///< of the barrier of all threads
  std::vector<Granule> granules;
  std::map<unsigned, Mbarrier> mbarriers;
  std::array<NamedBarrier, 16> named_barriers;
  Registers registers;
  std::vector<Landing> landings;
};
struct Fiber {
  ucontext_t context;  ///< where it begins
  jmp_buf at;          ///< where it goes on
  Block* block = nullptr;
  unsigned thread = 0;
  unsigned long collectives = 0, barriers = 0;
  unsigned long stalled_until = 0;
  const unsigned long* counter = nullptr;  ///< waits until it has reached `target`
  unsigned long target = 0;
  std::map<unsigned, unsigned> seen;
  unsigned asked = 0;  ///< the last barrier in shared memory that was not complete
  Copies copies;
  DepartureGroup open;
  std::deque<DepartureGroup> departures;
  bool begun = false, done = false;
};

inline Fiber* current = nullptr;
inline jmp_buf scheduler;
inline unsigned long round_now = 0;
inline Index block_index;
inline std::function<void()> body;
/// Shared memory of the running fiber's block; where the device's name for it points.
inline unsigned char* shared_base = nullptr;
inline unsigned char* shared_name = nullptr;
inline Index grid_size{1};

/// An access of the running thread.
inline unsigned own_warp() { return current->thread / 32; }
inline Clocks& own_clocks() { return current->block->warps[own_warp()].clocks; }
inline std::vector<Granule>& granules() { return current->block->granules; }

/// What to do about a fault, which is the end of the run unless a test expects it.
inline std::function<void(const std::string&)> on_fault = [](const std::string& what) {
  std::printf("FAILED %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
};
inline void NamedBarrier::arrive(unsigned of) {
  if (arrived == 0) threads = of;
  if (of != threads || of % 32 != 0 || of > current->block->threads)
    on_fault("a barrier of " + std::to_string(threads) + " threads is one of " +
             std::to_string(of) + " for another");
  release(clocks);
  ++events;
  if (++arrived < threads) return;
  arrived = 0;
  ++phases;
}
inline void report(const char* what, unsigned shared) {
  char text[200];
  std::snprintf(text, sizeof(text), "race: block %u, warp %u: %s, at byte %u of shared memory",
                current->block->index, current->thread / 32, what, shared);
  on_fault(text);
}
/// An access of so many bytes must begin at a multiple of them.
inline Access access(unsigned shared, int size) {
  if (shared % static_cast<unsigned>(size) != 0)
    on_fault("misaligned byte " + std::to_string(shared));
  return {shared, size, current->barriers + 1, current->thread / 32};
}

inline void yield() {
  if (_setjmp(current->at) == 0) _longjmp(scheduler, 1);
}
/// How long a warp may stall at a time, in rounds; of a run.
inline unsigned stall_length = 0;
/// One warp of a block is slow for a while, and the others run ahead of it; now and then another
/// stalls too.
inline bool may_stall(const Block& block, unsigned warp, unsigned odds) {
  return one_in(warp == block.slow_warp ? odds : 32 * odds);
}
inline void stall(Warp& warp) { warp.stalled_until = round_now + draw(2 * stall_length); }
inline void wait_for(const unsigned long& counter, unsigned long target) {
  current->counter = &counter;
  current->target = target;
  while (counter < target) yield();
  current->counter = nullptr;
}
/// Behind a barrier, and where a thread has started what only it waits for: others may run ahead.
inline void stall_here() {
  const unsigned warp = current->thread / 32;
  if (!may_stall(*current->block, warp, 2)) return;
  stall(current->block->warps[warp]);
  yield();
}
inline void stall_behind_wait() {
  if (current->thread % 32 == 0) stall_here();
}
/// The phase of `parity` is complete, or was when another lane of the warp asked for it: lanes ask
/// together, and none may miss a phase because it stalls. A thread that asks in vain sleeps.
inline bool try_wait(unsigned barrier, unsigned parity) {
  const Mbarrier& at = current->block->mbarriers[barrier];
  unsigned& of_warp = current->block->warps[current->thread / 32].seen[barrier];
  unsigned& of_lane = current->seen[barrier];
  const unsigned next = of_lane + (of_lane % 2 != parity);
  const bool behind = next < of_warp;
  if (behind || at.passed(parity)) {
    of_lane = behind ? next + 1 : at.phases;
    of_warp = std::max(of_warp, of_lane);
    acquire(at.clocks);
    stall_behind_wait();
    return true;
  }
  current->asked = barrier;
  if (is_late) current->stalled_until = round_now + 4;
  yield();
  return false;
}

/// Leaves `slot` and gives those of all lanes, once they have come; the last runs `once`. Two sets
/// in turn: a lane that comes to the next but one instruction knows that all have read this one's.
template <class Once>
const Slot* meet(const Slot& slot, Once once) {
  Warp& warp = current->block->warps[current->thread / 32];
  Slot* slots = warp.slots[current->collectives % 2];
  slots[current->thread % 32] = slot;
  ++warp.arrived;
  ++events;
  const unsigned long all = 32 * ++current->collectives;
  if (warp.arrived == all) once();
  wait_for(warp.arrived, all);
  return slots;
}
inline const Slot* meet(const Slot& slot) {
  return meet(slot, [] {});
}

/// All lanes of a warp together. One that waits for registers lets the others of the block run.
inline void Registers::change(unsigned to) {
  const unsigned warp = own_warp();
  meet({}, [] {});
  if (current->thread % 32 == 0) {
    while (to > of[warp] && to - of[warp] > given) yield();
    given += of[warp] - to;
    of[warp] = to;
    ++events;
  }
  meet({}, [] {});
}

}  // namespace emulator

#include "bulk_copy.h"
#include "cuda_names.h"
#include "products.h"
#include "scheduler.h"
