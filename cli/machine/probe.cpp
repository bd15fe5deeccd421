#include "cli/machine/probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cpu/micro/isa.h"
#include "harness/fma_loops.h"
#include "harness/timer.h"

namespace tilewise::cli {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::int64_t kRounds = 20'000'000;
constexpr int kRepeats = 3;

/// Seconds of the fastest of a few runs.
template <class Work>
double best_seconds(const Work& work) {
  double best = 0.0;
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const double seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

}  // namespace

double measure_fma_tflops(Executor& executor) {
  const cpu::Isa isa = cpu::best_isa();
  const auto loop = isa >= cpu::Isa::avx512 ? fma_avx512
                    : isa == cpu::Isa::avx2 ? fma_avx2
                                            : fma_sse;
  const int lanes = isa >= cpu::Isa::avx512 ? 16 : isa == cpu::Isa::avx2 ? 8 : 4;
  const int threads = executor.concurrency();
  std::vector<float> sums(static_cast<std::size_t>(threads));
  const double seconds = best_seconds([&] {
    executor.parallel_for(threads, [&](std::int64_t task, int) {
      sums[static_cast<std::size_t>(task)] = loop(kRounds);
    });
  });
  const double flops = 2.0 * lanes * kFmaChains * static_cast<double>(kRounds) * threads;
  return flops / seconds * 1e-12;
}

double measure_copy_gbps(Executor& executor) {
  constexpr std::int64_t kLeastBytes = std::int64_t{128} << 20;
  constexpr std::int64_t kPieces = 64;
  const std::int64_t bytes = std::max(kLeastBytes, 4 * cpu::last_level_cache_bytes());
  const std::int64_t piece = bytes / kPieces;
  std::vector<char> from(static_cast<std::size_t>(bytes), 1);
  std::vector<char> to(static_cast<std::size_t>(bytes), 0);
  const double seconds = best_seconds([&] {
    executor.parallel_for(kPieces, [&](std::int64_t task, int) {
      std::memcpy(to.data() + task * piece, from.data() + task * piece,
                  static_cast<std::size_t>(piece));
    });
  });
  return 2.0 * static_cast<double>(piece * kPieces) / seconds * 1e-9;
}

double measure_cache_gbps(Executor& executor) {
  constexpr std::size_t kTileBytes = 8192;  // two of them stay in a first-level cache
  constexpr std::int64_t kCopies = 200'000;
  const int threads = executor.concurrency();
  const double seconds = best_seconds([&] {
    executor.parallel_for(threads, [&](std::int64_t, int) {
      std::vector<char> a(kTileBytes, 1);
      std::vector<char> b(kTileBytes, 0);
      for (std::int64_t i = 0; i < kCopies; ++i) {
        std::memcpy(b.data(), a.data(), kTileBytes);
        // Keeps the compiler from copying once.
        asm volatile("" : : "r"(a.data()), "r"(b.data()) : "memory");
      }
    });
  });
  return 2.0 * static_cast<double>(kTileBytes) * kCopies * threads / seconds * 1e-9;
}

double measure_region_us(Executor& executor) {
  constexpr int kRegions = 2000;
  const double seconds = best_seconds([&] {
    for (int i = 0; i < kRegions; ++i) {
      executor.parallel_for(executor.concurrency(), [](std::int64_t, int) {});
    }
  });
  return seconds / kRegions * 1e6;
}

}  // namespace tilewise::cli
