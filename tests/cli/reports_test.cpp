#include <gtest/gtest.h>

#include "cli/bench/bench_report.h"
#include "cli/bench/scaling_report.h"
#include "cli/bench/seed_memory.h"
#include "cli/run/attended.h"
#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

Measurement row(const char* implementation, std::int64_t seq, Timed timed, double ms) {
  Measurement m;
  m.problem.seq_q = m.problem.seq_k = seq;
  m.implementation = implementation;
  m.timed = timed;
  m.ms.count = 1;
  m.ms.mean = m.ms.median = ms;
  m.live_bytes = 1 << 20;
  m.peak_bytes = timed == Timed::backward ? 3 << 20 : 2 << 20;
  return m;
}

TEST(SeedTable, PutsThePassesSideBySide) {
  std::vector<Measurement> rows = {
      row("eager", 8, Timed::forward, 1.0), row("eager", 8, Timed::backward, 2.0),
      row("eager", 16, Timed::forward, 0.0), row("eager", 16, Timed::backward, 0.0)};
  for (std::size_t i : {std::size_t{2}, std::size_t{3}}) rows[i].status = Status::oom;
  EXPECT_EQ(seed_table(rows).csv(),
            "seq_len,d_model,forward_ms_mean,forward_ms_std,backward_ms_mean,backward_ms_std,"
            "live_MB,peak_MB,batch_size\n"
            "8,64,1.000,0.000,2.000,0.000,1.0,3.0,1\n"
            "16,64,OOM,OOM,OOM,OOM,OOM,OOM,1\n");
}

TEST(CompareTable, HasARatioForTwo) {
  std::vector<Measurement> rows = {
      row("eager", 8, Timed::forward, 3.0), row("eager", 8, Timed::backward, 5.0),
      row("flash", 8, Timed::forward, 1.0), row("flash", 8, Timed::backward, 3.0)};
  EXPECT_EQ(compare_table(rows).csv(),
            "seq_len,d_model,eager_fwd_ms,eager_bwd_ms,eager_live_MB,flash_fwd_ms,flash_bwd_ms,"
            "flash_live_MB,time_eager/flash\n"
            "8,64,3.00,5.00,1.0,1.00,3.00,1.0,2.00\n");
  rows[3].status = Status::timeout;
  EXPECT_EQ(compare_table(rows).json()[0]["time_eager/flash"], Value());
}

TEST(LogSlope, IsTheExponent) {
  EXPECT_NEAR(log_slope({1, 2, 4, 8}, {3, 12, 48, 192}), 2.0, 1e-12);
  EXPECT_EQ(log_slope({5}, {1}), 0.0);
}

TEST(SeedMemory, OneCellByHand) {
  // 8 x 256 x 16: five tensors of 128 KiB, two of 2 MiB, three statistics of 8 KiB, 16.25 MiB.
  const std::int64_t expected = 5 * (128 << 10) + 2 * (2 << 20) + 3 * (8 << 10) + 17'039'360;
  EXPECT_EQ(total_bytes(seed_memory(8, 256, 16, 3, {})), expected);
}

TEST(Attended, Queries) {
  const std::vector<Query> queries = parse_queries("birds@11,war");
  ASSERT_EQ(queries.size(), 2U);
  EXPECT_EQ(queries[0].word, "birds");
  EXPECT_EQ(queries[0].head, 11);
  EXPECT_FALSE(queries[1].head.has_value());
  EXPECT_THROW(parse_queries("birds@x"), BadInput);
  EXPECT_THROW(parse_queries("a,,b"), BadInput);
}

TEST(Attended, TokensAreAListOfStrings) {
  EXPECT_EQ(tokens_from_json("f", R"(["a","##b"])"), (Tokens{"a", "##b"}));
  for (const char* text : {"", "[1]", "{}", "[\"a\""}) {
    EXPECT_THROW(tokens_from_json("f", text), BadInput) << text;
  }
}

}  // namespace
}  // namespace tilewise::cli
