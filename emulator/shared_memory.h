/// Shared memory as the emulator's threads see it: asynchronous copies that land late, and a check
/// for races between warps, for kernels whose warps meet in __syncthreads alone.
///
/// Half of the copies land at once and half when they are waited for, so that data that is used too
/// early is not there, and a place that is filled too early is overwritten. With `checks_races` on,
/// two accesses of different warps to a word, one of them a write, must have a __syncthreads
/// between them; a copy is a write from its start to the wait of its thread.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#include "order.h"

namespace emulator {

struct Copy {
  unsigned shared;
  const void* global;
  int bytes, size;  ///< read; filled, the rest with zeros
  bool landed = false;
};
/// Copies of a thread, by group.
struct Copies {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

/// Who touched a word last. Epochs count the thread's __syncthreads, from 1.
struct Word {
  unsigned long written = 0, read = 0;
  unsigned writer = 0, readers = 0;  ///< a warp; a bit a warp
  int in_flight = 0;
};
inline bool checks_races = false;
inline std::vector<Word> words;

struct Access {
  unsigned shared;
  int size;
  unsigned long epoch;
  unsigned warp;
};

[[noreturn]] inline void report_race(const Access& a, const char* what) {
  std::printf("race: warp %u, %s at byte %u of shared memory\n", a.warp, what, a.shared);
  std::exit(1);
}
template <class Visit>
void visit_words(const Access& a, Visit visit) {
  if (!checks_races) return;
  for (unsigned word = a.shared / 4; word < (a.shared + a.size + 3) / 4; ++word) {
    if (word >= words.size()) words.resize(2 * word + 1);
    visit(words[word]);
  }
}

inline void note_read(const Access& a) {
  order_read(a.shared, static_cast<unsigned>(a.size));
  visit_words(a, [&](Word& w) {
    if (w.in_flight > 0) report_race(a, "a read of what is being copied");
    if (w.written == a.epoch && w.writer != a.warp) report_race(a, "a read of another's write");
    if (w.read != a.epoch) w.read = a.epoch, w.readers = 0;
    w.readers |= 1U << a.warp;
  });
}
inline void check_write(const Access& a, const Word& w) {
  if (w.in_flight > 0) report_race(a, "a write where a copy is on its way");
  if (w.written == a.epoch && w.writer != a.warp) report_race(a, "a write over another's");
  if (w.read == a.epoch && (w.readers & ~(1U << a.warp)) != 0) {
    report_race(a, "a write over what another reads");
  }
}
inline void note_write(const Access& a) {
  order_write(a.shared, static_cast<unsigned>(a.size));
  visit_words(a, [&](Word& w) {
    check_write(a, w);
    w.written = a.epoch, w.writer = a.warp;
  });
}

inline void land(const Copy& copy, unsigned char* base) {
  std::memset(base + copy.shared, 0, static_cast<std::size_t>(copy.size));
  if (copy.bytes > 0) {
    std::memcpy(base + copy.shared, copy.global, static_cast<std::size_t>(copy.bytes));
  }
}
inline void start_copy(Copies& copies, Copy copy, const Access& a, unsigned char* base) {
  static unsigned count = 0;
  visit_words(a, [&](Word& w) {
    check_write(a, w);
    ++w.in_flight;
  });
  copy.landed = ++count / 3 % 2 == 0;
  if (copy.landed) land(copy, base);
  copies.open.push_back(copy);
}
inline void commit_copies(Copies& copies) {
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}
/// Until at most `pending` groups are on their way.
inline void wait_copies(Copies& copies, std::size_t pending, unsigned long epoch, unsigned warp,
                        unsigned char* base) {
  for (; copies.groups.size() > pending; copies.groups.pop_front()) {
    for (const Copy& copy : copies.groups.front()) {
      if (!copy.landed) land(copy, base);
      visit_words({copy.shared, copy.size, epoch, warp}, [&](Word& w) {
        --w.in_flight;
        w.written = epoch, w.writer = warp;
      });
    }
  }
}

}  // namespace emulator
