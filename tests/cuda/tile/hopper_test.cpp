// The words of tile/ for Hopper on a GPU: boxes with swizzle, matrix products of every kind,
// stmatrix and boxes back, bulk copies. Compiled wherever NVRTC is, run where the GPU is a Hopper.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/launch.h"
#include "cuda/driver/memory.h"
#include "cuda/host/tma_maps.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/kernel.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/kernels/rows/copy_args.h"

namespace tilewise::cuda {
namespace {

// One warpgroup. A and B are 64 x 64 panels of bf16; A has fewer rows in memory.
constexpr const char* kDeviceText = R"(
#include "cuda/kernels/rows/copy_args.h"
#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
namespace tilewise::copy_rows {
using namespace tile;
struct WordsArgs {
  TensorMapBytes a, b, c;
  unsigned short* plain;
  float *scores, *values, *transposed, *rows, *sum;
  const float* summand;
};
__forceinline__ void write(float* to, const float (&d)[32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 4; ++i)
      to[(16 * warp + lane / 4 + 8 * (i / 2)) * 64 + 8 * j + 2 * (lane % 4) + i % 2] = d[4 * j + i];
}
template <Config kConfig>
__forceinline__ void words(const WordsArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Product = Wgmma<Element::bf16, 64>;
  const u32 sA = shared_address(memory), sB = sA + 8192, sC = sB + 8192, barrier = sC + 8192;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_fence_init();
  }
  __syncthreads();
  if (thread == 0) {
    mbarrier_expect(barrier, 2 * 8192);
    tma_load(sA, &args.a, barrier, 0, 0, 0, 0, kEvictFirst);
    tma_load(sB, &args.b, barrier, 0, 0, 0, 0, kEvictLast);
  }
  mbarrier_wait(barrier, 0);
  const unsigned short* panel = reinterpret_cast<const unsigned short*>(memory);
  const auto at = [&](int r, int c) { return panel[r * 64 + (c / 8 ^ r % 8) * 8 + c % 8]; };
  for (int i = thread; i < 64 * 64; i += 128) args.plain[i] = at(i / 64, i % 64);
  u32 rA[16];
  for (int i = 0; i < 16; ++i) {
    const int row = 16 * warp + lane / 4 + 8 * (i % 2), col = i / 2 * 8 + 2 * (lane % 4);
    rA[i] = at(row, col) | static_cast<u32>(at(row, col + 1)) << 16;
  }
  float scores[32], values[32] = {}, transposed[32], rows[32];
  const u64 dA = panel_descriptor(sA, 8192), dB = panel_descriptor(sB, 8192);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    Product::multiply_shared(scores, dA + k * kStepColumns, dB + k * kStepColumns, k != 0);
    Product::multiply_register(values, rA[4 * k], rA[4 * k + 1], rA[4 * k + 2], rA[4 * k + 3],
                               dB + k * kStepRows);
    Product::multiply_transposed(transposed, dA + k * kStepRows, dB + k * kStepRows, k != 0);
    Product::multiply_register_rows(rows, rA[4 * k], rA[4 * k + 1], rA[4 * k + 2], rA[4 * k + 3],
                                    dB + k * kStepColumns, k != 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(scores);
  pin(values);
  pin(transposed);
  pin(rows);
  write(args.scores, scores);
  write(args.values, values);
  write(args.transposed, transposed);
  write(args.rows, rows);
  for (int k = 0; k < 4; ++k) {
    const int row = warp * 16 + lane % 16, chunk = (k * 2 + lane / 16) ^ (row % 8);
    store_matrix_x4(sC + row * 128 + chunk * 16,
                    {rA[4 * k], rA[4 * k + 1], rA[4 * k + 2], rA[4 * k + 3]});
  }
  fence_async_shared();
  __syncthreads();
  if (thread == 0) {
    tma_store(&args.c, sC, 0, 0, 0, 0);
    bulk_commit();
    bulk_wait();
    mbarrier_expect(barrier, 1024);
    bulk_load(sB, args.summand, 1024, barrier);
    mbarrier_wait(barrier, 1);
    bulk_add(args.sum, sB, 1024);
    bulk_commit();
    bulk_wait();
  }
}
}  // namespace tilewise::copy_rows
)";

/// The same struct on this side.
struct WordsArgs {
  tile::TensorMapBytes a, b, c;
  void* plain;
  void *scores, *values, *transposed, *rows, *sum;
  const void* summand;
};

KernelUnit words_unit() {
  KernelUnit unit = {.stem = "copy_rows", .file = "rows/copy", .config = "", .threads = 128};
  unit.entry = "words";
  unit.args = "WordsArgs";
  unit.shared_bytes = 3 * 8192 + 1024;
  unit.prelude = kDeviceText + wgmma_text(tile::Element::bf16, {64, true, true, true, true});
  return unit;
}

constexpr int kSize = 64, kRowsA = 50;  // rows of A and C in memory; C has room for more
using Bits = std::uint16_t;

Bits bits(int small) {  // an integer below 256 is a bf16
  const float x = static_cast<float>(small);
  std::uint32_t word = 0;
  std::memcpy(&word, &x, 4);
  return static_cast<Bits>(word >> 16);
}
int a_at(int r, int c) { return r < kRowsA ? (3 * r + 5 * c + r * c % 7) % 9 - 4 : 0; }
int b_at(int r, int c) { return (7 * r + 2 * c + r * c % 5) % 7 - 3; }

/// Memory of the device that starts as copies of one value, or of a vector.
template <class T>
struct OnCard {
  void* data;
  std::size_t count;
  explicit OnCard(const std::vector<T>& from) : count(from.size()) {
    data = allocate(bytes(), 0, nullptr);
    copy_to_device(data, from.data(), bytes(), 0, nullptr);
  }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;
  ~OnCard() { release(data, 0, nullptr); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(count * sizeof(T)); }
  std::vector<T> read() const {
    std::vector<T> to(count);
    copy_to_host(to.data(), data, bytes(), 0, nullptr);
    synchronize(0, nullptr);
    return to;
  }
};

tile::TensorMapBytes map_of(void* data, int rows) {
  tile::TensorMapBytes map;
  const Tensor tensor =
      Tensor::bshd(data, DType::bfloat16, 1, rows, 1, kSize, {DeviceType::cuda, 0});
  sm90_set_map(map, sm90_map_spec(tensor, kSize));
  return map;
}

TEST(TileSm90, WordsDoWhatTheySay) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  const KernelUnit unit = words_unit();
  EXPECT_TRUE(compile(unit, 90).report.notes.empty());
  if (device_count() == 0) GTEST_SKIP() << missing_driver_reason();
  if (hardware(0).arch != 90) GTEST_SKIP() << "not a Hopper GPU";

  std::vector<Bits> host_a(kRowsA * kSize), host_b(kSize * kSize);
  for (int i = 0; i < kRowsA * kSize; ++i) host_a[i] = bits(a_at(i / kSize, i % kSize));
  for (int i = 0; i < kSize * kSize; ++i) host_b[i] = bits(b_at(i / kSize, i % kSize));
  constexpr Bits kPoison = 0x7fff;
  std::vector<float> numbers(256);
  for (int i = 0; i < 256; ++i) numbers[i] = static_cast<float>(i);
  const std::vector<float> nothing(kSize * kSize, -1e30F);
  const OnCard<Bits> a(host_a), b(host_b), c(std::vector<Bits>(kSize * kSize, kPoison)),
      plain(std::vector<Bits>(kSize * kSize, kPoison));
  const OnCard<float> scores(nothing), values(nothing), transposed(nothing), rows(nothing),
      sum(std::vector<float>(256, 0.5F)), summand(numbers);
  WordsArgs args;
  const ContextScope scope(0);
  args.a = map_of(a.data, kRowsA);
  args.b = map_of(b.data, kSize);
  args.c = map_of(c.data, kRowsA);
  args.plain = plain.data;
  args.scores = scores.data;
  args.values = values.data;
  args.transposed = transposed.data;
  args.rows = rows.data;
  args.sum = sum.data;
  args.summand = summand.data;
  launch(load(unit, 0), {.x = 1}, nullptr, args);

  const std::vector<Bits> got_plain = plain.read(), got_c = c.read();
  const std::vector<float> got[] = {scores.read(), values.read(), transposed.read(), rows.read()};
  for (int r = 0; r < kSize; ++r) {
    for (int col = 0; col < kSize; ++col) {
      const std::size_t at = static_cast<std::size_t>(r * kSize + col);
      int want[4] = {};
      for (int k = 0; k < kSize; ++k) {
        want[0] += a_at(r, k) * b_at(col, k);
        want[1] += a_at(r, k) * b_at(k, col);
        want[2] += a_at(k, r) * b_at(k, col);
      }
      want[3] = want[0];
      for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(got[i][at], static_cast<float>(want[i])) << i << ": " << r << ' ' << col;
      }
      ASSERT_EQ(got_plain[at], bits(a_at(r, col))) << "zeros behind the last row";
      ASSERT_EQ(got_c[at], r < kRowsA ? bits(a_at(r, col)) : kPoison) << r << ' ' << col;
    }
  }
  const std::vector<float> got_sum = sum.read();
  for (int i = 0; i < 256; ++i) ASSERT_EQ(got_sum[i], static_cast<float>(i) + 0.5F);
}

}  // namespace
}  // namespace tilewise::cuda
