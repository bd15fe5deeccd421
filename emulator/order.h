/// Which accesses of shared memory are in order, between the warps of a block that run_grid runs.
///
/// A warp counts its releases (arrivals at barriers), and knows the counts of the others as of when
/// it last learnt of them through a barrier: vector clocks. An access of another warp comes before
/// one of this warp's only if this warp knows of it; where one of the two writes, all else is a
/// race, whatever the schedule of this run. What bulk copies and products read is read until they
/// have been waited for. Copies to shared memory are ordered by their barriers and the place that
/// they hold (bulk_copy.h).
#pragma once

#include <algorithm>
#include <array>
#include <vector>

namespace emulator {

constexpr int kMostWarps = 32;
struct Clocks {
  std::array<unsigned, kMostWarps> of{};
  void join(const Clocks& other) {
    for (int w = 0; w < kMostWarps; ++w) of[w] = std::max(of[w], other.of[w]);
  }
};
/// The last accesses of 4 bytes: the count of each reader then, and of the writer.
struct Granule {
  std::array<unsigned, kMostWarps> read{};
  unsigned written = 0, writer = 0;
};
constexpr unsigned kGranuleBytes = 4;

// The running warp's.
inline Clocks& own_clocks();
inline unsigned own_warp();
inline std::vector<Granule>& granules();
inline void report(const char* what, unsigned shared);

/// What this warp did is known to whoever acquires `to` later.
inline void release(Clocks& to) {
  to.join(own_clocks());
  ++own_clocks().of[own_warp()];
}
inline void acquire(const Clocks& from) { own_clocks().join(from); }

template <class Visit>
void visit_granules(unsigned shared, unsigned bytes, Visit visit) {
  std::vector<Granule>& all = granules();
  if (all.empty()) return;
  for (unsigned g = shared / kGranuleBytes; g * kGranuleBytes < shared + bytes; ++g)
    visit(all[g], g * kGranuleBytes);
}
inline void order_read(unsigned shared, unsigned bytes) {
  const Clocks& known = own_clocks();
  visit_granules(shared, bytes, [&](Granule& g, unsigned at) {
    if (g.writer != own_warp() && g.written > known.of[g.writer])
      report("a read of another warp's write without a barrier between them", at);
    g.read[own_warp()] = known.of[own_warp()];
  });
}
/// `is_copy`: a bulk copy begins, which nobody needs to know of.
inline void order_write(unsigned shared, unsigned bytes, bool is_copy = false) {
  const Clocks& known = own_clocks();
  visit_granules(shared, bytes, [&](Granule& g, unsigned at) {
    if (g.writer != own_warp() && g.written > known.of[g.writer])
      report("a write over another warp's without a barrier between them", at);
    for (unsigned w = 0; w < kMostWarps; ++w) {
      if (w != own_warp() && g.read[w] > known.of[w])
        report("a write to what another warp read without a barrier between them", at);
    }
    g = {};
    if (!is_copy) g.writer = own_warp(), g.written = known.of[own_warp()];
  });
}

}  // namespace emulator
