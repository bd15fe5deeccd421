/// Runs of blocks on the emulator: rounds in which every fiber goes on that need not wait.
#pragma once

#include "bulk_copy.h"
#include "emulator.h"

namespace emulator {

inline void start() {
  body();
  end_departures();
  current->done = true;
  ++events;
  yield();
}
inline void resume(Fiber& fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

/// Whether `fiber` has to wait this round. A warp stalls now and then, a lane sometimes.
inline bool is_held(Fiber& fiber) {
  Warp& warp = fiber.block->warps[fiber.thread / 32];
  if (warp.stalled_until > round_now) return true;
  if (fiber.thread % 32 == 0) {
    if (one_in(8192)) fiber.block->slow_warp = draw(fiber.block->threads / 32);
    if (may_stall(*fiber.block, fiber.thread / 32, stall_length)) stall(warp);
    // Lane 0 most: what one lane does for all, it does.
    if (one_in(16)) (&fiber)[one_in(2) ? 0 : draw(32)].stalled_until = round_now + draw(16);
    if (warp.stalled_until > round_now) return true;
  }
  return fiber.stalled_until > round_now ||
         (fiber.counter != nullptr && *fiber.counter < fiber.target);
}
inline std::vector<Fiber> make_fibers(std::vector<Block>& blocks) {
  constexpr std::size_t kStackBytes = 512 * 1024;
  static std::vector<std::unique_ptr<char[]>> stacks;
  std::vector<Fiber> fibers;
  for (Block& block : blocks) {
    block.warps.assign(block.threads / 32, {});
    if (block.warps.size() > kMostWarps) std::abort();
    block.slow_warp = draw(block.threads / 32);
    block.registers.start(block.threads);
    for (unsigned w = 0; w < block.warps.size(); ++w) block.warps[w].clocks.of[w] = 1;
    for (unsigned i = 0; i < block.threads; ++i) {
      fibers.emplace_back();
      fibers.back().block = &block;
      fibers.back().thread = i;
    }
  }
  for (std::size_t i = 0; i < fibers.size(); ++i) {
    if (i == stacks.size()) stacks.emplace_back(new char[kStackBytes]);
    getcontext(&fibers[i].context);
    fibers[i].context.uc_stack.ss_sp = stacks[i].get();
    // Tops of stacks that all lay alike would share a few lines of the caches.
    fibers[i].context.uc_stack.ss_size = kStackBytes - i % 128 * 1088;
    makecontext(&fibers[i].context, start, 0);
  }
  return fibers;
}

/// Who waits for what, a line for each warp.
inline std::string waiting(const std::vector<Fiber>& fibers) {
  std::string text;
  for (std::size_t first = 0; first < fibers.size(); first += 32) {
    const auto lane = std::find_if(fibers.begin() + first, fibers.begin() + first + 32,
                                   [](const Fiber& fiber) { return !fiber.done; });
    if (lane == fibers.begin() + first + 32) continue;
    text += "\n  block " + std::to_string(lane->block->index) + ", thread " +
            std::to_string(lane->thread);
    text += lane->counter != nullptr
                ? ": at a barrier of threads"
                : ": last at byte " + std::to_string(lane->asked) + " of shared memory for a phase";
  }
  return text;
}

/// Rounds in which nothing happens, after which a run is a deadlock.
inline unsigned long patience = 20'000;

/// Runs `kernel` as all of `blocks` together.
inline void run_together(std::vector<Block>& blocks, std::function<void()> kernel) {
  body = std::move(kernel);
  std::vector<Fiber> fibers = make_fibers(blocks);
  stall_length = 8U << 2 * draw(4);
  unsigned long seen = events, since = round_now;
  for (std::size_t left = fibers.size(); left > 0; ++round_now) {
    left = 0;
    for (Block& block : blocks) land_what_is_due(block);
    for (Fiber& fiber : fibers) {
      if (fiber.done) continue;
      ++left;
      if (is_held(fiber)) continue;
      current = &fiber;
      shared_base = fiber.block->shared;
      block_index.x = fiber.block->index;
      resume(fiber);
    }
    if (seen != events) seen = events, since = round_now;
    if (round_now - since > patience) {
      on_fault("deadlock: " + std::to_string(left) + " threads wait" + waiting(fibers));
      return;
    }
  }
  for (const Block& block : blocks) {
    if (!block.landings.empty()) on_fault("race: a block ends before the copies to it");
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

/// Runs `kernel` as `count` blocks together, each with poisoned shared memory of its own. `name`:
/// where the device's name for it points.
inline void run_grid(unsigned char* name, unsigned count, unsigned threads,
                     std::function<void()> kernel) {
  constexpr std::size_t kBytes = 256 * 1024;
  std::vector<std::vector<unsigned char>> shared(count, std::vector<unsigned char>(kBytes + 1024));
  std::vector<Block> blocks(count);
  for (unsigned i = 0; i < count; ++i) {
    std::fill(shared[i].begin(), shared[i].end(), 0xff);
    blocks[i].granules.resize(kBytes / kGranuleBytes);
    blocks[i].index = i, blocks[i].threads = threads, blocks[i].shared = shared[i].data();
  }
  shared_name = name;
  grid_size.x = count;
  run_together(blocks, std::move(kernel));
}

}  // namespace emulator
