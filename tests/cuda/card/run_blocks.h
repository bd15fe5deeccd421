/// Runs a grid of a kernel on the emulator: what the driver of tests/cuda/fake_driver launches.
#pragma once

#include <sys/mman.h>

#include "emulator.h"

#define CARD_EXPORT __attribute__((visibility("default")))

namespace card {

/// Shared memory of a block, filled with NaN. A page without rights follows.
class Shared {
 public:
  explicit Shared(std::size_t bytes) : bytes_((bytes + 1023) / 1024 * 1024) {
    void* all = mmap(nullptr, kMost + kPage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    all_ = static_cast<unsigned char*>(all);
    mprotect(all_ + kMost, kPage, PROT_NONE);
    poison();
  }
  Shared(const Shared&) = delete;
  ~Shared() { munmap(all_, kMost + kPage); }

  unsigned char* data() const { return all_ + kMost - bytes_; }
  void poison() { std::memset(data(), 0xff, bytes_); }

 private:
  static constexpr std::size_t kMost = 256 * 1024, kPage = 4096;
  std::size_t bytes_;
  unsigned char* all_;
};

/// Blocks that wait for each other run together.
inline void run_row_together(unsigned blocks, unsigned threads, unsigned shared_bytes,
                             const std::function<void()>& kernel) {
  std::deque<Shared> shared;
  std::vector<emulator::Block> row(blocks);
  for (unsigned x = 0; x < blocks; ++x) {
    shared.emplace_back(shared_bytes);
    row[x].index = x;
    row[x].threads = threads;
    row[x].shared = shared.back().data();
  }
  emulator::shared_name = row[0].shared;
  emulator::run_together(row, kernel);
}

inline void run_row(unsigned blocks, unsigned threads, unsigned shared_bytes,
                    const std::function<void()>& kernel) {
  Shared shared(shared_bytes);
  for (unsigned x = 0; x < blocks; ++x) {
    shared.poison();
    emulator::shared_base = shared.data();
    emulator::run_block(x, threads, kernel);
  }
}

inline void run(const unsigned* grid, unsigned threads, unsigned shared_bytes, bool wait,
                const std::function<void()>& kernel) {
  emulator::grid_size = {grid[0], grid[1]};
  for (unsigned y = 0; y < grid[1]; ++y) {
    emulator::block_index.y = y;
    (wait ? run_row_together : run_row)(grid[0], threads, shared_bytes, kernel);
  }
}

}  // namespace card
