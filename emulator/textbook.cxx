/// baseline, softmax_rows (eager and fused) and copy_rows on the emulator: rows longer than a block
/// and rows that see no key, with softcap, ALiBi and a causal mask.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

// One block runs at a time, so its named shared memory is the program's.
#undef __shared__
#define __shared__ static
#include "cuda/kernels/rows/copy.cuh"
#include "cuda/kernels/textbook/baseline.cuh"
#include "cuda/kernels/textbook/softmax_rows.cuh"

namespace {

using namespace tilewise;
using textbook::Storage;

int failures = 0;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kBatch = 2, kHeads = 4, kKeyHeads = 2, kQueries = 5, kDim = 6, kDimV = 3;
constexpr int kRows = kBatch * kHeads * kQueries;
constexpr float kScale = 0.4F, kCap = 2.0F;
constexpr long long kUnbounded = 1LL << 40;

void report(const char* name, int keys, double worst, double bound) {
  std::printf("%s %s, %d keys: off by %.2g\n", worst <= bound ? "ok" : "FAILED", name, keys, worst);
  failures += worst <= bound ? 0 : 1;
}

template <class Kernel>
void each_block(long long blocks, int threads, Kernel kernel) {
  static unsigned char shared[16];
  emulator::shared_base = shared;
  for (long long b = 0; b < blocks; ++b)
    emulator::run_block(static_cast<unsigned>(b), static_cast<unsigned>(threads), kernel);
}
long long blocks_of(long long elements) {
  return (elements + textbook::kThreads - 1) / textbook::kThreads;
}

std::vector<float> drawn(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

/// (B, H, S, D), row-major.
tile::View4 view(std::vector<float>& x, int heads, int rows, int dim) {
  return {x.data(), static_cast<long long>(heads) * rows * dim, static_cast<long long>(rows) * dim,
          dim, 1};
}
textbook::RowView row_view(std::vector<float>& x) {
  return {x.data(), kHeads * kQueries, kQueries, 1};
}

/// The problem, and what float64 makes of it.
struct Truth {
  int keys;
  std::mt19937 random{11};
  std::vector<float> q, k, v, slopes, d_p, d_lse;
  std::vector<double> products, p, d_s, o, lse = std::vector<double>(kRows);

  explicit Truth(int keys_)
      : keys(keys_),
        q(drawn(kRows * kDim, random)),
        k(drawn(static_cast<std::size_t>(kBatch) * kKeyHeads * keys * kDim, random)),
        v(drawn(static_cast<std::size_t>(kBatch) * kKeyHeads * keys * kDimV, random)),
        slopes{0.5F, 0.25F, 0.125F, 0.0625F},
        d_p(drawn(static_cast<std::size_t>(kRows) * keys, random)),
        d_lse(drawn(kRows, random)),
        products(d_p.size()),
        p(d_p.size()),
        d_s(d_p.size()),
        o(kRows * kDimV) {
    for (int r = 0; r < kRows; ++r) compute(r);
  }

  textbook::LogitRule rule() const {
    return {.scale = kScale,
            .softcap = kCap,
            .alibi = slopes.data(),
            .alibi_b = 0,
            .alibi_h = 1,
            .left = kUnbounded,
            .right = 0,
            .heads = kHeads,
            .seq_q = kQueries,
            .seq_k = keys};
  }

 private:
  void compute(int r) {
    const int b = r / kQueries / kHeads, h = r / kQueries % kHeads, i = r % kQueries;
    const std::size_t first = static_cast<std::size_t>(r) * keys;
    const std::size_t of_head = static_cast<std::size_t>(b * kKeyHeads + h / 2) * keys;
    std::vector<double> y(keys, -kInfinity), cap_slope(keys);
    double most = -kInfinity, sum = 0.0, delta = -d_lse[r];
    for (int j = 0; j < keys; ++j) {
      for (int d = 0; d < kDim; ++d)
        products[first + j] += double{q[r * kDim + d]} * k[(of_head + j) * kDim + d];
      const double t = std::tanh(kScale * products[first + j] / kCap);
      cap_slope[j] = 1.0 - t * t;
      if (j > i + keys - kQueries) continue;
      y[j] = kCap * t - slopes[h] * std::abs(i + keys - kQueries - j);
      most = std::max(most, y[j]);
    }
    for (int j = 0; j < keys; ++j) sum += y[j] == -kInfinity ? 0.0 : std::exp(y[j] - most);
    lse[r] = sum == 0.0 ? -kInfinity : most + std::log(sum);
    for (int j = 0; j < keys; ++j) {
      p[first + j] = y[j] == -kInfinity ? 0.0 : std::exp(y[j] - lse[r]);
      delta += p[first + j] * d_p[first + j];
      for (int d = 0; d < kDimV; ++d)
        o[r * kDimV + d] += p[first + j] * v[(of_head + j) * kDimV + d];
    }
    for (int j = 0; j < keys; ++j)
      d_s[first + j] = kScale * cap_slope[j] * p[first + j] * (d_p[first + j] - delta);
  }
};

double largest_difference(const std::vector<double>& expected, const std::vector<float>& got) {
  double worst = 0.0;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    if (expected[n] == -kInfinity && got[n] == -kInfinity) continue;
    const double off = std::fabs(expected[n] - got[n]);
    worst = std::isnan(off) ? kInfinity : std::max(worst, off);
  }
  return worst;
}

void check_baseline(Truth t) {
  constexpr baseline::Config kConfig{};
  std::vector<float> s(t.p.size(), NAN), maximum(kRows, NAN), sum(kRows, NAN), lse(kRows, NAN);
  std::vector<float> o(kRows * kDimV, NAN);
  const baseline::Args args{.q = view(t.q, kHeads, kQueries, kDim),
                            .k = view(t.k, kKeyHeads, t.keys, kDim),
                            .v = view(t.v, kKeyHeads, t.keys, kDimV),
                            .o = view(o, kHeads, kQueries, kDimV),
                            .s = s.data(),
                            .maximum = maximum.data(),
                            .sum = sum.data(),
                            .lse = row_view(lse),
                            .rule = t.rule(),
                            .group = kHeads / kKeyHeads,
                            .head_dim = kDim,
                            .head_dim_v = kDimV,
                            .rows = kRows};
  each_block(blocks_of(kRows * t.keys), textbook::kThreads,
             [&] { baseline::scores<kConfig>(args); });
  each_block(kRows, textbook::kThreads, [&] { baseline::row_max<kConfig>(args); });
  each_block(kRows, textbook::kThreads, [&] { baseline::exponentials<kConfig>(args); });
  each_block(kRows, textbook::kThreads, [&] { baseline::normalise<kConfig>(args); });
  each_block(blocks_of(kRows * kDimV), textbook::kThreads,
             [&] { baseline::output<kConfig>(args); });
  report("baseline, P", t.keys, largest_difference(t.p, s), 1e-5);
  report("baseline, O", t.keys, largest_difference(t.o, o), 1e-5);
  report("baseline, LSE", t.keys, largest_difference(t.lse, lse), 1e-5);
}

/// `kEager`: a pass a step. Else fused: one pass for each direction.
template <softmax_rows::Config kConfig, bool kEager>
void check_softmax(const char* name, Truth t) {
  std::vector<float> s(t.products.begin(), t.products.end());
  std::vector<float> p(t.p.size(), NAN), lse(kRows, NAN), delta(kRows, NAN);
  std::vector<float> statistics(2 * kRows, NAN);
  const softmax_rows::Args args{.s = s.data(),
                                .p = p.data(),
                                .dp = t.d_p.data(),
                                .statistics = statistics.data(),
                                .delta = delta.data(),
                                .lse = row_view(lse),
                                .d_lse = row_view(t.d_lse),
                                .rule = t.rule()};
  const auto each_row = [](auto kernel) { each_block(kRows, kConfig.threads, kernel); };
  if constexpr (kEager) {
    each_row([&] { softmax_rows::logits<kConfig>(args); });
    each_row([&] { softmax_rows::statistics<kConfig>(args); });
    each_row([&] { softmax_rows::probabilities<kConfig>(args); });
    each_row([&] { softmax_rows::row_delta<kConfig>(args); });
    each_row([&] { softmax_rows::score_gradient<kConfig>(args); });
    each_row([&] { softmax_rows::scale_gradient<kConfig>(args); });
  } else {
    each_row([&] { softmax_rows::forward<kConfig>(args); });
    each_row([&] { softmax_rows::backward<kConfig>(args); });
  }
  // Of 16 bits, a row of P or dS takes the first half of a row of dP.
  constexpr bool kNarrow = kConfig.storage == Storage::bf16;
  const auto wide = [&](const std::vector<float>& from, std::size_t pitch) {
    std::vector<float> all(t.p.size());
    const auto* bits = reinterpret_cast<const unsigned short*>(from.data());
    for (std::size_t n = 0; n < all.size(); ++n) {
      const std::size_t row = n / t.keys, j = n % t.keys;
      all[n] = kNarrow ? emulator::number(unsigned{bits[row * pitch + j]} << 16) : from[n];
    }
    return all;
  };
  const auto keys = static_cast<std::size_t>(t.keys);
  report(name, t.keys, largest_difference(t.p, wide(p, keys)), kNarrow ? 4e-3 : 1e-5);
  report(name, t.keys, largest_difference(t.d_s, wide(t.d_p, 2 * keys)), kNarrow ? 8e-3 : 1e-5);
  report(name, t.keys, largest_difference(t.lse, lse), 1e-5);
}

void check_copy() {
  std::mt19937 random(5);
  std::vector<float> from = drawn(kRows * kDim, random), to(2 * kRows * kDim, NAN), lse(kRows);
  for (int r = 0; r < kRows; ++r) lse[r] = r % 3 == 1 ? -std::numeric_limits<float>::infinity() : 0;
  copy_rows::Args args{.from = view(from, kHeads, kQueries, kDim),
                       .heads = kHeads,
                       .rows = kQueries,
                       .dim = kDim,
                       .elements = kRows * kDim,
                       .lse = lse.data(),
                       .lse_b = kHeads * kQueries,
                       .lse_h = kQueries,
                       .lse_s = 1};
  // To (B, S, H, 2 D), every second element.
  args.to = {to.data(), kQueries * kHeads * 2 * kDim, 2 * kDim, kHeads * 2 * kDim, 2};
  constexpr copy_rows::Config kConfig{.element_bytes = 4, .hides = true};
  each_block(blocks_of(args.elements), copy_rows::kThreads,
             [&] { copy_rows::kernel<kConfig>(args); });
  double worst = 0.0;
  for (int n = 0; n < kRows * kDim; ++n) {
    const int d = n % kDim, r = n / kDim, i = r % kQueries, h = r / kQueries % kHeads;
    const int b = r / kQueries / kHeads;
    const int at = ((b * kQueries + i) * kHeads + h) * 2 * kDim + 2 * d;
    if (to[at] != (std::isinf(lse[r]) ? 0.0F : from[n]) || !std::isnan(to[at + 1])) worst = 1.0;
  }
  report("copy_rows", kQueries, worst, 0.0);
}

}  // namespace

int main() {
  for (const int keys : {3, 300}) {
    const Truth t(keys);
    check_baseline(t);
    check_softmax<softmax_rows::Config{.threads = 64}, true>("eager", t);
    check_softmax<softmax_rows::Config{.threads = 64}, false>("fused, rows read again", t);
    check_softmax<softmax_rows::Config{.threads = 64, .items = 5}, false>("fused, rows kept", t);
    check_softmax<softmax_rows::Config{Storage::bf16, 64}, true>("eager, bf16", t);
    check_softmax<softmax_rows::Config{Storage::bf16, 64}, false>("fused, bf16, read again", t);
    check_softmax<softmax_rows::Config{Storage::bf16, 64, 5}, false>("fused, bf16, kept", t);
  }
  check_copy();
  return failures == 0 ? 0 : 1;
}
