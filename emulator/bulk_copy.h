/// The bulk copy engine on the emulator, and tensor maps as it takes them.
///
/// A copy to shared memory lands some rounds after its start, when its bytes arrive at their
/// barrier; its source is read at the start or then, and its place holds meanwhile what it held,
/// NaN, or the data. A copy or addition from shared memory reaches memory at its start or only
/// when its thread waits for that, or ends. Whoever writes to the place of either while it is on
/// its way is reported, whatever was written: what a copy from shared memory reads is on its way
/// until its thread has waited for the reads.
#pragma once

#include "emulator.h"

namespace emulator {

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
inline unsigned box_bytes(const Box& b) {
  unsigned bytes = 2;
  for (int axis = 0; axis < b.rank; ++axis) bytes *= b.box[axis];
  return bytes;
}
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

using Bytes = std::vector<unsigned char>;

/// Calls visit(index of 16 bytes in the box at `shared`, where they lie in memory, how many of
/// them); none of those outside of the tensor.
template <class Visit>
void visit_box(const Box& b, unsigned shared, const std::array<int, 5>& at, long columns,
               Visit visit) {
  const int rows = static_cast<int>(box_bytes(b) / 2 / b.box[0]);
  for (int row = 0; row < rows; ++row) {
    int rest = row;
    bool inside = true;
    long offset = 0;
    for (int axis = 1; axis < b.rank; ++axis) {
      const long index = at[axis] + rest % b.box[axis];
      rest /= b.box[axis];
      inside &= index >= 0 && index < b.sizes[axis];
      offset += index * b.strides[axis];
    }
    for (int column = 0; inside && column < b.box[0]; column += 8) {
      const long count = std::min(8L, columns - at[0] - column);
      if (count <= 0) break;
      visit(swizzled(shared + 2 * (row * b.box[0] + column)) - shared,
            b.data + offset + 2 * (at[0] + column), 2 * static_cast<std::size_t>(count));
    }
  }
}
/// A box that a copy may take.
inline Box checked_box(const void* map, const std::array<int, 5>& at, int rank) {
  const Box b = box_of(map);
  if (b.rank != rank || b.box[0] % 8 != 0 || at[0] < 0) on_fault("a map used as of another rank");
  // Seen to be an illegal access on an H100 where two axes share a stride (fwd_sm90/args.h).
  if (rank == 5 && b.strides[2] == b.strides[3]) {
    if (at[2] >= b.sizes[2]) on_fault("a box wholly behind its sequence");
    // The same on an H200.
    if (at[0] >= b.sizes[0]) on_fault("a box wholly behind the columns of packed rows");
  }
  return b;
}

// ---- to shared memory

inline void land(Block& block, Landing& landing) {
  if (landing.data.empty()) landing.read(landing.data);
  unsigned char* to = block.shared + landing.shared;
  if (std::memcmp(to, landing.place.data(), landing.place.size()) != 0) {
    on_fault("race: block " + std::to_string(block.index) +
             ": a write where a bulk copy is on its way, to byte " +
             std::to_string(landing.shared) + " of shared memory");
  }
  std::copy(landing.data.begin(), landing.data.end(), to);
  block.mbarriers[landing.barrier].deliver(static_cast<unsigned>(landing.data.size()));
}
inline void land_what_is_due(Block& block) {
  for (std::size_t i = 0; i < block.landings.size();) {
    if (block.landings[i].due > round_now) {
      ++i;
      continue;
    }
    land(block, block.landings[i]);
    block.landings.erase(block.landings.begin() + static_cast<long>(i));
  }
}
/// `read` makes the bytes as they are to lie at `shared`.
inline void start_load(unsigned shared, unsigned bytes, unsigned barrier,
                       std::function<void(Bytes&)> read) {
  ++events;
  Landing landing = {0, shared, barrier, {}, {}, std::move(read)};
  order_write(shared, bytes, true);
  unsigned char* to = shared_base + shared;
  if (!is_late || one_in(2)) landing.read(landing.data);
  switch (is_late ? draw(3) : 0) {
    case 1:
      std::memset(to, 0xff, bytes);
      break;
    case 2:
      std::copy(landing.data.begin(), landing.data.end(), to);
      break;
    default:;
  }
  landing.place.assign(to, to + bytes);
  if (!is_late) return land(*current->block, landing);
  landing.due = round_now + draw(one_in(4) ? 200 : 10);
  current->block->landings.push_back(std::move(landing));
}
inline void load_box(const void* map, unsigned shared, unsigned barrier, std::array<int, 5> at,
                     int rank) {
  const Box b = checked_box(map, at, rank);
  start_load(shared, box_bytes(b), barrier, [=](Bytes& to) {
    to.assign(box_bytes(b), 0);
    visit_box(b, shared, at, b.sizes[0], [&](unsigned index, const void* from, std::size_t bytes) {
      std::memcpy(to.data() + index, from, bytes);
    });
  });
}
inline void load_bytes(const void* global, unsigned shared, unsigned bytes, unsigned barrier) {
  start_load(shared, bytes, barrier, [=](Bytes& to) {
    to.resize(bytes);
    std::memcpy(to.data(), global, bytes);
  });
}

/// An arrival behind the thread's copies of 16 bytes: they land at the latest now.
inline void arrive_copies(unsigned barrier) {
  Copies& copies = current->copies;
  for (const Copy& copy : copies.open) {
    if (!copy.landed) land(copy, shared_base);
    order_write(copy.shared, static_cast<unsigned>(copy.size));
  }
  copies.open.clear();
  current->block->mbarriers[barrier].arrive();
}

// ---- from shared memory

inline void start_store(unsigned shared, unsigned bytes, std::function<void(const Bytes&)> write) {
  ++events;
  order_read(shared, bytes);
  const unsigned char* from = shared_base + shared;
  current->open.departures.push_back({shared, Bytes(from, from + bytes), std::move(write)});
}
/// The 16 bytes in which a row ends are written whole, as an H200 was seen to do.
inline void store_box(const void* map, unsigned shared, std::array<int, 5> at, int rank) {
  const Box b = checked_box(map, at, rank);
  start_store(shared, box_bytes(b), [=](const Bytes& data) {
    visit_box(b, shared, at, (b.sizes[0] + 7) / 8 * 8,
              [&](unsigned index, void* to, std::size_t bytes) {
                std::memcpy(to, data.data() + index, bytes);
              });
  });
}
inline void add_floats(float* global, unsigned shared, unsigned bytes) {
  start_store(shared, bytes, [=](const Bytes& data) {
    for (std::size_t i = 0; i < data.size() / 4; ++i) {
      float x;
      std::memcpy(&x, data.data() + 4 * i, 4);
      global[i] += x;
    }
  });
}

inline void end_reads(DepartureGroup& group) {
  if (group.is_read) return;
  group.is_read = true;
  for (const Departure& d : group.departures) {
    order_read(d.shared, static_cast<unsigned>(d.data.size()));
    if (std::memcmp(shared_base + d.shared, d.data.data(), d.data.size()) != 0) {
      report("a write where a bulk store of its has not been waited for", d.shared);
    }
  }
}
inline void end_writes(DepartureGroup& group) {
  if (group.is_written) return;
  group.is_written = true;
  for (const Departure& d : group.departures) d.write(d.data);
}
inline void commit_departures() {
  Fiber& fiber = *current;
  fiber.departures.push_back(std::move(fiber.open));
  fiber.open = {};
  if (!is_late || one_in(2)) end_writes(fiber.departures.back());
  stall_here();
}
/// Until at most `pending` groups have not been read.
inline void wait_reads(std::size_t pending) {
  std::deque<DepartureGroup>& groups = current->departures;
  for (std::size_t i = 0; i + pending < groups.size(); ++i) end_reads(groups[i]);
  while (!groups.empty() && groups.front().is_read && groups.front().is_written) groups.pop_front();
}
inline void wait_writes() {
  for (DepartureGroup& group : current->departures) end_reads(group), end_writes(group);
  current->departures.clear();
}
/// The thread ends.
inline void end_departures() {
  if (!current->open.departures.empty()) on_fault("a bulk store without a commit");
  for (DepartureGroup& group : current->departures) {
    if (!group.is_read) report("the end of a thread whose bulk stores may still read", 0);
  }
  wait_writes();
}

}  // namespace emulator
