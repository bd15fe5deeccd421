/// Ceilings of this CPU for bench/cpu, called from Python beside each repetition: multiply-adds of
/// float32 from registers, and reading a buffer once. One thread each.
#include <immintrin.h>

#include <cstdint>
#include <ctime>

#include "harness/fma_loops.h"

namespace {

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

volatile float sink;

}  // namespace

extern "C" {

/// GFLOP/s of float32 multiply-adds from registers of `lanes` floats (8 or 16), on this thread.
double probe_fma_gflops(int lanes, std::int64_t rounds) {
  const double begin = thread_seconds();
  sink = lanes == 16 ? tilewise::fma_avx512(rounds) : tilewise::fma_avx2(rounds);
  const double seconds = thread_seconds() - begin;
  return 2.0 * lanes * tilewise::kFmaChains * static_cast<double>(rounds) / seconds * 1e-9;
}

/// GB/s of reading `bytes` bytes (a multiple of 256) at `data` once, in order, on this thread.
__attribute__((target("avx2"))) double probe_read_gbps(const char* data, std::int64_t bytes) {
  const double begin = thread_seconds();
  __m256i sums[8] = {};
  for (std::int64_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      sums[i] = _mm256_xor_si256(
          sums[i], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at) + i));
    }
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
  sink = static_cast<float>(_mm256_extract_epi32(sums[0], 0));
  return static_cast<double>(bytes) / (thread_seconds() - begin) * 1e-9;
}

/// Reads `count` rows of `bytes` bytes (a multiple of 64), which begin at data + at[n], in order.
__attribute__((target("avx2"))) void probe_read_rows(const char* data, const std::int64_t* at,
                                                     std::int64_t count, std::int64_t bytes) {
  __m256i sums[2] = {};
  for (std::int64_t n = 0; n < count; ++n) {
    const auto* row = reinterpret_cast<const __m256i*>(data + at[n]);
    for (std::int64_t i = 0; i < bytes / 32; i += 2) {
      sums[0] = _mm256_xor_si256(sums[0], _mm256_loadu_si256(row + i));
      sums[1] = _mm256_xor_si256(sums[1], _mm256_loadu_si256(row + i + 1));
    }
  }
  sink = static_cast<float>(_mm256_extract_epi32(_mm256_xor_si256(sums[0], sums[1]), 0));
}

/// An executor of one thread: tw_executor's parallel_for, without a way through Python.
void probe_run_alone(void* /*context*/, std::int64_t tasks,
                     void (*body)(void* context, std::int64_t task, std::int32_t worker),
                     void* body_context) {
  for (std::int64_t task = 0; task < tasks; ++task) body(body_context, task, 0);
}

}  // extern "C"
