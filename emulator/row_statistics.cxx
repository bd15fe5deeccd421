/// bwd_delta and bwd_sinks on the emulator: rows that see no key, beside a sink too.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda/kernels/rows/delta.cuh"
#include "cuda/kernels/rows/sinks.cuh"
#include "emulator.h"

namespace tilewise::bwd_sinks {
alignas(1024) unsigned char shared[1024];
}

namespace {

using namespace tilewise;

constexpr int kHeads = 2, kRows = 40, kPadded = 64, kDim = 16;
constexpr float kNan = NAN, kInf = INFINITY;
int failures = 0;

void expect(const char* name, float got, float truth) {
  const bool good = got == truth || std::fabs(got - truth) <= 1e-5F;
  std::printf("%s %s: %g, expected %g\n", good ? "ok" : "FAILED", name, got, truth);
  if (!good) ++failures;
}

template <class Kernel>
void run_blocks(unsigned blocks, unsigned threads, Kernel kernel) {
  emulator::shared_base = bwd_sinks::shared;
  for (unsigned b = 0; b < blocks; ++b) emulator::run_block(b, threads, kernel);
}

struct Statistics {
  std::vector<float> o, d_o, lse, d_lse, sinks, lse2, delta, d_sinks;

  explicit Statistics(std::vector<float> of_heads)
      : o(kHeads * kRows * kDim, 0.5F),
        d_o(o.size(), 1.0F),
        lse(kHeads * kRows, 2.0F),
        d_lse(lse.size(), 0.25F),
        sinks(std::move(of_heads)),
        lse2(kHeads * kPadded, kNan),
        delta(lse2.size(), kNan),
        d_sinks(kHeads, kNan) {}

  void set_row(int head, int row, float lse_of, float o_of, float d_o_of) {
    const int at = head * kRows + row;
    lse[at] = lse_of;
    std::fill_n(o.begin() + at * kDim, kDim, o_of);
    std::fill_n(d_o.begin() + at * kDim, kDim, d_o_of);
  }
  void run() {
    bwd_delta::Args a;
    a.o = {o.data(), 0, kRows * kDim, kDim, 1}, a.d_o = {d_o.data(), 0, kRows * kDim, kDim, 1};
    a.lse = lse.data(), a.lse_h = kRows, a.lse_s = 1;
    a.d_lse = d_lse.data(), a.d_lse_h = kRows, a.d_lse_s = 1;
    if (!sinks.empty()) a.sinks = sinks.data(), a.sinks_h = 1;
    a.lse2 = lse2.data(), a.delta = delta.data();
    a.heads = kHeads, a.seq_q = kRows, a.rows_q = kPadded, a.head_dim_v = kDim;
    a.rows = kHeads * kPadded;
    constexpr bwd_delta::Config kConfig = {.type = bwd_delta::Type::float32, .head_dim_v = kDim};
    const long long threads = a.rows * bwd_delta::lanes(kDim);
    const auto blocks =
        static_cast<unsigned>((threads + bwd_delta::kThreads - 1) / bwd_delta::kThreads);
    run_blocks(blocks, bwd_delta::kThreads, [&] { bwd_delta::kernel<kConfig>(a); });
    if (sinks.empty()) return;
    bwd_sinks::Args s;
    s.lse2 = lse2.data(), s.delta = delta.data(), s.sinks = sinks.data(), s.sinks_h = 1;
    s.d_sinks = d_sinks.data(), s.d_sinks_h = 1;
    s.batch = 1, s.heads = kHeads, s.seq_q = kRows, s.rows_q = kPadded;
    run_blocks(kHeads, bwd_sinks::kThreads, [&] { bwd_sinks::kernel<bwd_sinks::Config{}>(s); });
  }
};

}  // namespace

int main() {
  Statistics s({1.5F, 2.0F});
  s.set_row(0, 3, 1.5F, 0.0F, kNan);   // the sink alone
  s.set_row(0, 4, 1.5F, 0.0F, -kInf);  // the sink alone
  s.set_row(1, 5, 2.0F, 0.0F, 3.0F);   // the sink alone
  s.run();
  for (const int row : {3, 4}) {
    expect("lse2 beside a sink alone", s.lse2[row], kInf);
    expect("delta beside a sink alone", s.delta[row], -0.25F);
  }
  // LSE is the sink's to the last bit in head 1, but O is not 0: keys were seen.
  expect("lse2 of a row that sees keys", s.lse2[kPadded], 2.0F * tile::kLog2e);
  expect("delta of a row that sees keys", s.delta[kPadded], 8.0F - 0.25F);
  expect("lse2 behind the last row", s.lse2[kRows], kInf);
  const float of_others = static_cast<float>(38.0 * std::exp(1.5 - 2.0) * (0.25 - 8.0));
  expect("dsink of head 0", s.d_sinks[0] / of_others, (of_others + 2 * 0.25F) / of_others);
  expect("dsink of head 1", s.d_sinks[1], 39.0F * (0.25F - 8.0F) + 0.25F);

  Statistics none({});
  none.set_row(1, 7, -kInf, 0.0F, kNan);
  none.set_row(1, 8, 1.5F, 0.0F, 1.0F);
  none.run();
  expect("lse2 of a row that sees nothing", none.lse2[kPadded + 7], kInf);
  expect("delta of a row that sees nothing", none.delta[kPadded + 7], 0.0F);
  expect("lse2 without a sink", none.lse2[kPadded + 8], 1.5F * tile::kLog2e);
  return failures == 0 ? 0 : 1;
}
