/// merge_rows on the emulator: rows of any type and stride, dims that are no multiple of eight,
/// parts that saw no key.
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "cuda/kernels/rows/merge.cuh"

namespace {

using namespace tilewise;
using merge_rows::Args;
using merge_rows::Config;
using merge_rows::Type;
using Bits = unsigned short;

int failures = 0;
constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int kBatch = 2, kHeads = 3, kQueries = 5, kRows = kBatch * kHeads * kQueries;

template <class Element>
float widened(Element x) {
  if constexpr (sizeof(Element) == 4) return x;
  return emulator::number(static_cast<unsigned>(x) << 16);
}
template <class Element>
Element narrow(float x) {
  if constexpr (sizeof(Element) == 4) return x;
  const unsigned u = emulator::bits(x);
  return static_cast<Element>((u + 0x7fffU + (u >> 16 & 1U)) >> 16);
}

/// Rows (B, S, H, pitch), of which `dim` elements at `step` are a row's.
template <class Element>
struct Rows {
  int dim, step, pitch;
  std::vector<Element> data;
  Rows(int dim_, int step_, std::mt19937& random)
      : dim(dim_), step(step_), pitch((dim_ * step_ + 7) / 8 * 8), data(kRows * pitch) {
    std::normal_distribution<float> normal;
    for (Element& x : data) x = narrow<Element>(normal(random));
  }
  tile::View4 view() {
    const long long s = static_cast<long long>(kHeads) * pitch;
    return {data.data(), kQueries * s, pitch, s, step};
  }
  Element& at(int b, int h, int i, int d) {
    return data[((b * kQueries + i) * kHeads + h) * pitch + d * step];
  }
};

template <Config kConfig, class Element>
void check(const char* name, int dim, int step) {
  std::mt19937 random(7);
  Rows<Element> own(dim, step, random), other(dim, step, random);
  std::vector<float> lse(kRows), theirs(kRows);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  for (int r = 0; r < kRows; ++r) {
    lse[r] = r % 7 == 2 ? kNothing : normal(random);
    theirs[r] = r % 5 == 3 ? kNothing : normal(random);
  }
  Rows<Element> was = own;
  const std::vector<float> lse_was = lse;
  Args args;
  args.o = own.view(), args.other = other.view();
  args.lse = {lse.data(), kHeads * kQueries, kQueries, 1};
  args.other_lse = {theirs.data(), kHeads * kQueries, kQueries, 1};
  args.rows = kRows, args.heads = kHeads, args.seq_q = kQueries, args.head_dim_v = dim;
  constexpr int kOfBlock = merge_rows::kThreads / kConfig.lanes;
  static unsigned char memory[16];
  emulator::run_grid(memory, (kRows + kOfBlock - 1) / kOfBlock, merge_rows::kThreads,
                     [&] { merge_rows::kernel<kConfig>(args); });
  double worst = 0.0;
  for (int b = 0; b < kBatch; ++b) {
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kQueries; ++i) {
        const int r = (b * kHeads + h) * kQueries + i;
        const double high = std::max(lse_was[r], theirs[r]);
        const double a = lse_was[r] == kNothing ? 0.0 : std::exp(lse_was[r] - high);
        const double c = theirs[r] == kNothing ? 0.0 : std::exp(theirs[r] - high);
        const double expected = a + c == 0.0 ? kNothing : high + std::log(a + c);
        if (std::isinf(expected) ? lse[r] != expected : std::fabs(lse[r] - expected) > 1e-5)
          worst = 1e9;
        for (int d = 0; d < dim; ++d) {
          const double x = widened(was.at(b, h, i, d)), y = widened(other.at(b, h, i, d));
          const double z = a + c == 0.0 ? x : (a * x + c * y) / (a + c);
          const double off = std::fabs(z - widened(own.at(b, h, i, d)));
          // A part that saw nothing leaves the other's bits.
          worst = std::max(worst, (a == 0.0 || c == 0.0) && off > 0.0 ? 1e9 : off);
          was.at(b, h, i, d) = own.at(b, h, i, d);
        }
      }
    }
  }
  if (was.data != own.data) worst = 1e9;  // what lies beside the rows stays
  const double bound = sizeof(Element) == 4 ? 1e-5 : 0.01;
  std::printf("%s %s: off by %.2g\n", worst < bound ? "ok" : "FAILED", name, worst);
  failures += worst < bound ? 0 : 1;
}

}  // namespace

int main() {
  check<Config{Type::bf16, true, 8}, Bits>("bf16, dim 40", 40, 1);
  check<Config{Type::bf16, true, 32}, Bits>("bf16, dim 512", 512, 1);
  check<Config{Type::bf16, false, 4}, Bits>("bf16, dim 20, every third element", 20, 3);
  check<Config{Type::float32, true, 4}, float>("float32, dim 24", 24, 1);
  check<Config{Type::float32, false, 4}, float>("float32, dim 3", 3, 1);
  return failures == 0 ? 0 : 1;
}
