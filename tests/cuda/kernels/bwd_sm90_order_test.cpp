// The Hopper backward's queue, without a GPU: whether its order leaves anybody waiting.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/bwd_sm90_problem.h"

namespace tilewise::cuda {
namespace {

using bwd_sm90::Config;
using bwd_sm90::Mask;

/// Multiprocessors that take the queue's jobs in order, tiles in microseconds of dim 128: the time
/// of the last one to end over what all of them work. A job waits for what it needs.
double queue_ratio(const Problem& p, const Config& config) {
  const bwd_sm90::SectionOrder order = bwd_sm90_order(p, config);
  const int lead = bwd_sm90_sections_apart(order, config), lag = bwd_sm90_lag(p, order, config);
  const std::int64_t group = p.group() / bwd_sm90_sharers(p, config);
  const std::int64_t chunks = bwd_sm90_chunks(p, config) * group;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < 132; ++i) free_at.push(0.0);
  std::vector<double> prepared(order.heads), finished(order.heads);
  double work = 0.0, end = 0.0;
  const auto run = [&](double after, double us) {
    const double done = std::max(free_at.top(), after) + us;
    free_at.pop();
    free_at.push(done);
    work += us;
    end = std::max(end, done);
    return done;
  };
  const auto begin = [&](int s) {
    const int first = std::min(s, order.sections);
    return std::min(first * order.section_heads + (s - first) * order.last_heads, order.heads);
  };
  const auto rows = [&](int s, std::vector<double>* ends) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int h = begin(std::max(0, s)); s >= 0 && h < begin(s + 1); ++h) {
        const double done = run(ends != nullptr ? 0.0 : finished[h], 4.0);
        if (ends != nullptr) (*ends)[h] = std::max((*ends)[h], done);
      }
    }
  };
  for (int step = 0; step <= order.sections + lead + lag; ++step) {
    rows(step, &prepared);
    const int s = step - lead;
    for (int block = 0; block < order.blocks; ++block) {
      for (int h = begin(std::max(0, s)); s >= 0 && h < begin(s + 1); ++h) {
        const std::int64_t hidden = config.mask == Mask::none ? 0 : std::int64_t{block} * 128;
        const auto queries = static_cast<double>((p.seq_q - hidden) * group);
        finished[h] = std::max(finished[h], run(prepared[h], 4.0 + 3.8 * queries / 128.0));
      }
    }
    rows(s - lag, nullptr);
  }
  return end * 132.0 / work;
}

TEST(BwdSm90, GroupedHeadsLeaveNobodyWaiting) {
  struct Shape {
    std::int64_t batch, heads, kv_heads, seq;
  };
  for (const Shape& s : {Shape{4, 32, 32, 4096}, Shape{4, 32, 16, 4096}, Shape{4, 32, 4, 4096},
                         Shape{8, 32, 8, 2048}, Shape{2, 32, 8, 8192}, Shape{1, 64, 8, 8192},
                         Shape{4, 28, 4, 4096}, Shape{1, 32, 8, 32768}}) {
    Problem p = problem(s.seq, 128, true);
    p.batch = s.batch, p.heads_q = s.heads, p.heads_k = s.kv_heads;
    EXPECT_LT(queue_ratio(p, bwd_sm90_config(p)), 1.03)
        << s.heads << ":" << s.kv_heads << " " << s.seq;
  }
}

TEST(BwdSm90, FewKeysLeaveNobodyWaiting) {
  Problem p = problem(4096, 128, false);
  p.heads_q = p.heads_k = 24;
  p.seq_k = 512;
  EXPECT_LT(queue_ratio(p, bwd_sm90_config(p)), 1.03);
  // Many short tiles keep their distance: rows are still in the L2 cache.
  p = problem(1024, 128, false);
  const Config config = bwd_sm90_config(p);
  const bwd_sm90::SectionOrder order = bwd_sm90_order(p, config);
  EXPECT_EQ(bwd_sm90_lag(p, order, config), bwd_sm90_sections_apart(order, config));
}

TEST(BwdSm90, TunedOrdersStayAsTheyAre) {
  for (const std::int64_t seq : {512, 1024, 2048, 4096, 8192, 16384}) {
    const Problem p = problem(seq, 128, true);  // 16,384 tokens, as many key heads as heads
    const Config config = bwd_sm90_config(p);
    const bwd_sm90::SectionOrder order = bwd_sm90_order(p, config);
    EXPECT_EQ(order.last_heads * order.blocks, seq < 8192 ? 256 : 512) << seq;
    EXPECT_EQ(bwd_sm90_lag(p, order, config), bwd_sm90_sections_apart(order, config)) << seq;
  }
}

// Fewer columns of a part must not make parts pay that the unit does not have.
TEST(BwdSm90, AFinishedConfigHasThePartsThatItWasMadeFor) {
  for (std::int64_t seq_q = 2048; seq_q <= 8192; seq_q += 256) {
    Problem p = problem(512, 72, true);
    p.batch = 1, p.heads_q = p.heads_k = 2;
    p.seq_q = seq_q, p.causal = Causal::top_left;
    const Config config = bwd_sm90_config(p);
    EXPECT_EQ(config.sums.split, bwd_sm90_parts(p, config) > 1) << seq_q;
  }
}

}  // namespace
}  // namespace tilewise::cuda
