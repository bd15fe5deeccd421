// The Hopper backward's host side, without a GPU: configs, order, refusals, workspace, time model.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include "cuda/ask_row.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/bwd_sm90/unit.h"
#include "cuda/kernels/bwd_sm90_problem.h"
#include "cuda/machine.h"
#include "expression/lower.h"

namespace tilewise::cuda {
namespace {

using bwd_sm90::Config;
using bwd_sm90::Mask;
using bwd_sm90::SharedPlan;

constexpr int kSharedLimit = 227 * 1024;

Hardware h100() { return machine(90, 3000.0); }

std::string refusal(const Problem& p) { return refusal_by(kFlashBackwardSm90, p, h100()); }

Problem with_function(Problem p, const char* text) {
  static float gate[4] = {};
  const std::vector<Captured> captures{
      Captured("gate", Tensor::contiguous(gate, DType::float32, {4}, p.device))};
  const Expression score = Expression::parse(text, captures);
  const expression::Lowered& lowered = expression::lower(score);
  p.score_function = expression::function_of(score);
  p.score_affine = lowered.affine();
  p.score_gradient = lowered.gradient();
  return p;
}

// The low part of LSE, which only functions that are called for every pair have.
TEST(BwdSm90, FunctionsThatMoveRowsFarAreCalledForEveryPair) {
  const auto shifts = [](const Problem& p) {
    const Config config = bwd_sm90_config(p);
    EXPECT_NE(config.expressions.shifts, config.fold_lse());
    return config.expressions.shifts;
  };
  const Problem full = problem(1024, 64, false), causal = problem(1024, 64, true);
  EXPECT_FALSE(shifts(with_function(full, "score - 0.7*abs(i - j)")));
  EXPECT_FALSE(shifts(with_function(full, "score - 1000.0*abs(i - j)")));
  EXPECT_FALSE(shifts(with_function(full, "score - gate[h]*abs(i - j)")));
  EXPECT_FALSE(shifts(with_function(causal, "score + 1000.0*(j - i)")));
  EXPECT_TRUE(shifts(with_function(full, "score + 1000.0*(j - i)")));
  EXPECT_TRUE(shifts(with_function(full, "score + 100.0*abs(i - j)")));
  EXPECT_TRUE(shifts(with_function(causal, "score + gate[h]")));
  Problem masked = with_function(full, "score - 1000.0*abs(i - j)");
  masked.mask.rank = 4;
  EXPECT_TRUE(shifts(masked));
}

TEST(BwdSm90, EveryConfigFitsSharedMemory) {
  for (const std::int64_t dim : {16, 64, 80, 96, 128, 192, 256}) {
    for (const std::int64_t dim_v : {16, 64, 80, 96, 128, 192, 256}) {
      Problem p = problem(1024, 64, dim != dim_v);
      p.head_dim = dim;
      p.head_dim_v = dim_v;
      p.softcap = 30.0;
      const SharedPlan plan(bwd_sm90_config(p));
      EXPECT_LE(plan.bytes, kSharedLimit) << dim << ' ' << dim_v;
      EXPECT_EQ(plan.slots % 16, 0);
      // What the copy engine swizzles begins at multiples of 1024.
      for (const int at : {plan.k, plan.v, plan.q, plan.d_o, plan.ds, plan.dq}) {
        EXPECT_EQ(at % 1024, 0) << dim << ' ' << dim_v;
      }
      // O passes through a stage of Q.
      EXPECT_GE(plan.q_stage, plan.do_stage);
    }
  }
}

TEST(BwdSm90, SmallProblemsKeepDsExact) {
  Problem p = problem(1024, 64, true);
  EXPECT_FALSE(bwd_sm90_config(p).two_plane);
  p.batch = 1, p.heads_q = p.heads_k = 2;  // 2^21 pairs
  EXPECT_TRUE(bwd_sm90_config(p).two_plane);
  p.head_dim = p.head_dim_v = 256;
  EXPECT_TRUE(bwd_sm90_config(p).two_plane);
  // delta comes from P where rounding of O would show: in tiny problems, and under masks, which
  // leave some rows few keys.
  const auto items = [](const Problem& of) {
    return cost_by(kFlashBackwardSm90, of, h100()).memory.size();
  };
  const auto full = [](std::int64_t length) {
    Problem of = problem(length, 256, false);
    of.batch = 1, of.heads_q = of.heads_k = 2;
    return of;
  };
  EXPECT_EQ(items(full(128)), items(full(1024)) + 2);
  EXPECT_EQ(items(p), items(full(1024)) + 2);
}

TEST(BwdSm90, MasksOfAProblem) {
  EXPECT_EQ(bwd_sm90_config(problem(1024, 64, false)).mask, Mask::none);
  EXPECT_EQ(bwd_sm90_config(problem(1024, 64, true)).mask, Mask::right);
  Problem p = problem(1024, 64, true);
  p.left = 100;
  EXPECT_EQ(bwd_sm90_config(p).mask, Mask::both);
}

TEST(BwdSm90, ScoresStartFromLseOnlyWhereTheyAreNotModified) {
  Problem p = problem(1024, 128, false);
  EXPECT_TRUE(bwd_sm90_config(p).fold_lse());
  p.scale = -0.5F;
  EXPECT_FALSE(bwd_sm90_config(p).fold_lse());
  EXPECT_TRUE(bwd_sm90_config(p).logits.modified);
}

TEST(BwdSm90, Refusals) {
  EXPECT_EQ(refusal(problem(1024, 64, true)), "");
  Problem p = problem(1024, 64, true);
  p.head_dim = 264;
  EXPECT_NE(refusal(p).find("head dims above 256"), std::string::npos);
  p = problem(1024, 64, true);
  p.batch = 1, p.heads_q = p.heads_k = 2;
  EXPECT_EQ(refusal(p), "");
  p = problem(1024, 64, true);
  p.dtype = DType::float32;
  EXPECT_NE(refusal(p).find("float32"), std::string::npos);
  p = problem(1024, 64, true);
  p.dv.strides[3] = 2;
  EXPECT_NE(refusal(p).find("dv cannot be copied by TMA"), std::string::npos);
  p = problem(1024, 64, true);
  p.d_o.strides[2] = 0;  // an expanded gradient
  EXPECT_NE(refusal(p).find("dO cannot be copied by TMA"), std::string::npos);
  for (Tensor Problem::*tensor : {&Problem::dq, &Problem::dk, &Problem::dv}) {
    p = problem(1024, 64, true);
    (p.*tensor).sizes[3] = 61;  // of rows 64 elements apart
    EXPECT_NE(refusal(p).find("its rows are 122 bytes"), std::string::npos) << refusal(p);
  }
  p = problem(1024, 64, false);
  p.left = -5, p.right = 3;
  EXPECT_NE(refusal(p).find("hides every key"), std::string::npos);
  p.left = -1024, p.right = 3000;  // a window that begins behind the last key
  EXPECT_NE(refusal(p).find("hides every key"), std::string::npos);
}

TEST(BwdSm90, PreparationAndConversionKeepADistance) {
  for (const std::int64_t seq : {512, 4096, 16384}) {
    for (const bool causal : {false, true}) {
      const Problem p = problem(seq, 128, causal);
      const Config config = bwd_sm90_config(p);
      const bwd_sm90::SectionOrder order = bwd_sm90_order(p, config);
      EXPECT_GE(bwd_sm90_sections_apart(order, config) * order.section_heads * order.blocks, 132)
          << seq;
      EXPECT_EQ(bwd_sm90_jobs(p, config),
                2 * p.batch * p.heads_q * (bwd_sm90_rows(p, config) / config.shape.chunk_rows) +
                    std::int64_t{order.blocks} * order.heads);
    }
  }
}

TEST(BwdSm90, FewTilesAreCutByQueries) {
  Problem p = problem(4096, 64, true);
  EXPECT_FALSE(bwd_sm90_config(p).sums.split);
  p.batch = p.heads_q = p.heads_k = 1;
  const Config config = bwd_sm90_config(p);
  EXPECT_TRUE(config.sums.split);
  EXPECT_EQ(bwd_sm90_parts(p, config), 4);                    // eight steps of 128 queries each
  EXPECT_EQ(bwd_sm90_jobs(p, config), 2 * 16 + 32 * 4 + 32);  // and 32 to store dK and dV
  const Cost cost = cost_by(kFlashBackwardSm90, p, h100());
  EXPECT_EQ(cost.memory.back().bytes, 2 * 4096 * 64 * 4);
  p.seq_q = p.seq_k = 16384;
  EXPECT_EQ(bwd_sm90_parts(p, bwd_sm90_config(p)), 4);
  p.seq_q = p.seq_k = 32768;
  EXPECT_FALSE(bwd_sm90_config(p).sums.split);
  p.seq_q = p.seq_k = 4096;
  p.head_dim_v = 128;
  EXPECT_TRUE(bwd_sm90_config(p).sums.split);
  p.deterministic = true;
  EXPECT_FALSE(bwd_sm90_config(p).sums.split);
  // 96 full tiles in two parts would be two waves of halves.
  p = problem(4096, 128, false);
  p.heads_q = p.heads_k = 24;
  p.seq_k = 77;
  EXPECT_EQ(bwd_sm90_parts(p, bwd_sm90_config(p)), 1);
  p.heads_q = p.heads_k = 10;
  EXPECT_EQ(bwd_sm90_parts(p, bwd_sm90_config(p)), 6);
  // The longest of 128 tiles has little more than its share, of 32 a multiprocessor's.
  p = problem(512, 128, true);
  p.batch = 4, p.heads_q = 32, p.heads_k = 8;
  EXPECT_FALSE(bwd_sm90_config(p).sums.split);
  p.batch = 1;
  EXPECT_TRUE(bwd_sm90_config(p).sums.split);
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

TEST(BwdSm90, FewKeysOfOddDimsTakeFewerColumns) {
  const auto config_of = [](std::int64_t seq, std::int64_t dim, bool causal) {
    return bwd_sm90_config(problem(seq, dim, causal));
  };
  const Config odd = config_of(256, 80, true);
  EXPECT_EQ(odd.head_dim, 80);
  EXPECT_EQ(odd.columns_dq(), 96);
  EXPECT_EQ(config_of(256, 88, false).head_dim, 96);
  EXPECT_EQ(config_of(256, 88, false).columns_dq(), 96);
  EXPECT_EQ(config_of(4096, 80, true).head_dim, 96);
  EXPECT_EQ(config_of(4096, 80, true).columns_dq(), 128) << "products bound it";
  EXPECT_EQ(config_of(256, 64, true).columns_dq(), 64);
  EXPECT_EQ(config_of(256, 128, true).columns_dq(), 128);
  const KernelUnit unit = bwd_sm90_unit(odd);
  for (const char* text : {"m64n32k16", "m64n80k16", ".narrow = true"})
    EXPECT_NE((unit.prelude + unit.config).find(text), std::string::npos) << text;
  EXPECT_EQ(bwd_sm90_unit(config_of(4096, 96, true)).config.find("narrow"), std::string::npos);
}

TEST(BwdSm90, LongRowsOfNarrowHeadsHaveMoreStages) {
  const auto stages = [](const Problem& p) {
    const bwd_sm90::Shape& shape = bwd_sm90_config(p).shape;
    return std::vector<int>{shape.q_stages, shape.do_stages, shape.k_stages};
  };
  using Stages = std::vector<int>;
  EXPECT_EQ(stages(problem(4096, 64, false)), (Stages{3, 2, 2}));
  EXPECT_EQ(stages(problem(16384, 64, true)), (Stages{3, 2, 2}));
  EXPECT_EQ(stages(problem(2048, 64, true)), (Stages{2, 2, 2}));
  EXPECT_EQ(stages(problem(4096, 96, false)), (Stages{3, 3, 1}));
  EXPECT_EQ(stages(problem(7098, 88, true)), (Stages{3, 3, 1}));
  EXPECT_EQ(stages(problem(16384, 128, true)), (Stages{2, 2, 2}));
  Problem p = problem(4096, 64, true);
  p.left = 1000;
  EXPECT_EQ(stages(p), (Stages{2, 2, 2})) << "a window";
  p = problem(4096, 64, true);
  p.heads_k = 4;
  EXPECT_EQ(stages(p), (Stages{2, 2, 2})) << "tiles that are cut";
  for (const std::int64_t dim : {64, 96}) {
    const Config config = bwd_sm90_config(problem(4096, dim, true));
    EXPECT_LE(bwd_sm90::SharedPlan(config).bytes, bwd_sm90::SharedPlan::kRoom) << dim;
  }
}

/// Sequences of `lengths` rows of both queries and keys, in one tensor.
Problem packed(const std::vector<int>& lengths, std::int64_t dim, bool causal) {
  Problem p = problem(1024, dim, causal);
  p.packed = true;
  p.batch = std::ssize(lengths);
  p.total_q = p.total_k = std::accumulate(lengths.begin(), lengths.end(), 0);
  p.seq_q = p.seq_k = *std::max_element(lengths.begin(), lengths.end());
  p.q = p.k = p.v = p.o = p.d_o = p.dq = p.dk = p.dv = rows(1, p.heads_q, p.total_q, dim);
  for (Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.d_o, &p.dq, &p.dk, &p.dv}) t->strides[0] = 0;
  p.lse = Tensor::contiguous(p.q.data, DType::float32, {p.batch, p.heads_q, p.total_q}, p.device);
  return p;
}

TEST(BwdSm90, ManyRowsAreFewChunks) {
  const auto chunk_rows = [](const Problem& p) { return bwd_sm90_config(p).shape.chunk_rows; };
  EXPECT_EQ(chunk_rows(problem(2048, 64, true)), 512);
  EXPECT_EQ(chunk_rows(problem(4096, 64, false)), 256) << "not timed";
  EXPECT_EQ(chunk_rows(problem(1024, 128, true)), 256);
  EXPECT_EQ(chunk_rows(problem(130, 80, true)), 192);
  EXPECT_EQ(chunk_rows(problem(253, 80, true)), 256);
  EXPECT_EQ(chunk_rows(problem(339, 80, true)), 128);
  Problem p = problem(4096, 64, true);
  p.deterministic = true;
  EXPECT_EQ(chunk_rows(p), 256) << "not timed";
  p = problem(16384, 64, true);
  p.batch = p.heads_q = p.heads_k = 1;
  EXPECT_EQ(chunk_rows(p), 256) << "a quarter of a wave";
  p = packed({8000, 2048, 200, 1024}, 64, false);
  EXPECT_EQ(chunk_rows(p), 512);
  const Config config = bwd_sm90_config(p);
  EXPECT_EQ(config.shape.q_stages, 3);
  EXPECT_GE(bwd_sm90::SharedPlan(config).kept, 8192) << "offsets beside three stages";
}

TEST(BwdSm90, ShortTilesAreConvertedAWaveLater) {
  Problem p = problem(577, 64, false);
  p.batch = 32, p.heads_q = p.heads_k = 16;
  const Config config = bwd_sm90_config(p);
  const bwd_sm90::SectionOrder order = bwd_sm90_order(p, config);
  EXPECT_EQ(order.section_heads * order.blocks, 80);
  EXPECT_EQ(bwd_sm90_sections_apart(order, config), 1);
  EXPECT_EQ(bwd_sm90_lag(p, order, config), 2);
}

TEST(BwdSm90, GroupedHeadsAreCutWhereTheirQueriesWouldNotStayInTheCache) {
  Problem p = problem(4096, 128, true);
  p.batch = 4, p.heads_q = 32, p.heads_k = 4;
  const auto sharers = [&] { return bwd_sm90_sharers(p, bwd_sm90_config(p)); };
  EXPECT_EQ(sharers(), 8);  // one query head a job
  Config config = bwd_sm90_config(p);
  EXPECT_TRUE(config.sums.split);
  const bwd_sm90::SectionOrder order = bwd_sm90_order(p, config);
  EXPECT_EQ(order.heads, 4 * 32);
  EXPECT_EQ(order.section_heads * order.blocks, 64);  // as with as many key heads
  EXPECT_EQ(bwd_sm90_jobs(p, config), 4 * 32 * (16 + 32 + 16) + 4 * 4 * 32);
  const Cost cost = cost_by(kFlashBackwardSm90, p, h100());
  EXPECT_EQ(cost.memory.back().bytes, 4 * 4 * 4096 * (128 + 128) * 4);
  p.deterministic = true;
  EXPECT_EQ(sharers(), 8);
  p.heads_q = 28;
  EXPECT_EQ(sharers(), 7);
  p.heads_q = 8;
  EXPECT_EQ(sharers(), 1);  // groups of two stay
  p.heads_q = 32;
  p.head_dim = p.head_dim_v = 64;
  EXPECT_EQ(sharers(), 4);  // two query heads a job
  p.heads_k = 16;
  EXPECT_EQ(sharers(), 1);
  p.heads_k = 4;
  p.causal = Causal::none, p.right = p.seq_k;  // tiles of one length keep together
  EXPECT_EQ(sharers(), 1);
  p.head_dim = p.head_dim_v = 256;
  p.causal = Causal::bottom_right, p.right = 0;
  EXPECT_EQ(sharers(), 1);
}

TEST(BwdSm90, BytesMovedCountTheGradientOfLse) {
  Problem p = problem(4096, 128, true);
  const double before = cost_by(kFlashBackwardSm90, p, h100()).bytes_moved;
  p.d_lse = p.lse;
  EXPECT_EQ(cost_by(kFlashBackwardSm90, p, h100()).bytes_moved, before + 4.0 * 16384 * 16);
}

TEST(BwdSm90, TurnsOnlyWhereTheOrderIsFixed) {
  Problem p = problem(4096, 128, true);
  const Cost free_order = cost_by(kFlashBackwardSm90, p, h100());
  p.deterministic = true;
  const Cost fixed_order = cost_by(kFlashBackwardSm90, p, h100());
  // Four counters for 64 queries: linear in the length.
  EXPECT_EQ(fixed_order.memory.front().bytes - free_order.memory.front().bytes,
            p.batch * p.heads_q * (p.seq_q / 64) * 4 * 4);
}

// Measured: bwd_sm90/README.md, dims 64 and 256 on an H200.
TEST(BwdSm90, TimeModelIsNearTheMeasuredTimes) {
  const struct {
    std::int64_t seq, dim;
    bool causal;
    double ms;
  } measured[] = {{1024, 64, false, 0.755},   {512, 64, true, 0.387},    {4096, 64, true, 1.323},
                  {16384, 64, false, 9.045},  {1024, 128, false, 0.670}, {8192, 128, true, 2.169},
                  {16384, 128, false, 7.993}, {4096, 256, false, 2.498}, {4096, 256, true, 1.335},
                  {512, 256, true, 0.328},    {16384, 256, false, 9.715}};
  for (const auto& m : measured) {
    const Problem p = problem(m.seq, m.dim, m.causal);
    const double ms = bwd_sm90_ms(p, bwd_sm90_config(p), h100());
    EXPECT_NEAR(ms / m.ms, 1.0, 0.12) << m.seq << ' ' << m.dim << ' ' << m.causal;
  }
}

// An H200 (bwd-sm90-chunks.csv, shapes-sm90-tried-2.csv).
TEST(BwdSm90, TimeModelKnowsNarrowSums) {
  const struct {
    std::int64_t batch, heads, seq, dim;
    bool causal;
    double ms;
  } measured[] = {{64, 20, 130, 80, true, 0.192},
                  {64, 20, 253, 80, true, 0.286},
                  {64, 6, 339, 80, false, 0.179},
                  {32, 16, 577, 72, false, 0.514}};
  for (const auto& m : measured) {
    Problem p = problem(m.seq, m.dim, m.causal);
    p.batch = m.batch, p.heads_q = p.heads_k = m.heads;
    const double ms = bwd_sm90_ms(p, bwd_sm90_config(p), h100());
    EXPECT_NEAR(ms / m.ms, 1.0, 0.06) << m.seq << ' ' << m.dim;
  }
}

TEST(BwdSm90, PackedSequencesHaveBlocksOfTheirOwn) {
  for (const std::vector<int>& lengths :
       {std::vector<int>{4096, 1, 0, 130}, {0, 0, 5000}, {128, 127, 129, 4000}, {0, 4097, 0}}) {
    const Problem p = packed(lengths, 64, true);
    const Config config = bwd_sm90_config(p);
    EXPECT_EQ(config.lengths, bwd_sm90::Lengths::packed);
    EXPECT_FALSE(config.sums.split);
    std::int64_t first = 0, next_free = 0;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      const std::int64_t chunk = first / config.shape.chunk_rows + static_cast<std::int64_t>(b);
      EXPECT_GE(chunk, next_free);
      next_free = chunk + (lengths[b] + config.shape.chunk_rows - 1) / config.shape.chunk_rows;
      first += lengths[b];
    }
    // Those of the rows behind the last one begin behind them.
    EXPECT_GE(first / config.shape.chunk_rows + p.batch, next_free);
    EXPECT_LT(first / config.shape.chunk_rows + p.batch, bwd_sm90_chunks(p, config));
    EXPECT_EQ(bwd_sm90_order(p, config).heads, p.heads_k);
    EXPECT_EQ(bwd_sm90_jobs(p, config),
              p.heads_q * (2 * bwd_sm90_chunks(p, config) + bwd_sm90_key_blocks(p, config)));
  }
}

TEST(BwdSm90, LongPackedSequencesHaveLongChunks) {
  EXPECT_EQ(bwd_sm90_config(packed({4096, 1024, 2000}, 64, true)).shape.chunk_rows, 512);
  EXPECT_EQ(bwd_sm90_config(packed({256, 512, 256}, 64, true)).shape.chunk_rows, 128);
  EXPECT_EQ(bwd_sm90_config(packed({4096, 1024, 2000}, 128, true)).shape.chunk_rows, 256);
}

TEST(BwdSm90, LongPackedSequencesTakeSpans) {
  const auto takes = [](const std::vector<int>& lengths, std::int64_t dim, bool causal,
                        std::int64_t group = 1) {
    Problem p = packed(lengths, dim, causal);
    p.heads_k = p.heads_q / group;
    return bwd_sm90_config(p).spans;
  };
  const std::vector<int> lengths = {200, 3100, 700, 8000, 450, 1500, 260, 5200, 900, 2048};
  EXPECT_TRUE(takes(lengths, 64, true));
  EXPECT_TRUE(takes(lengths, 128, true));
  EXPECT_FALSE(takes(lengths, 128, false));
  EXPECT_FALSE(takes(lengths, 192, true));
  EXPECT_FALSE(takes(lengths, 128, true, 2)) << "grouped heads";
  EXPECT_FALSE(takes({4096, 2000}, 128, true)) << "one span";
  EXPECT_FALSE(takes({12288, 4096, 4096}, 128, true)) << "longer than a span";
  EXPECT_FALSE(takes(std::vector<int>(100, 200), 128, true)) << "short ones";
  EXPECT_EQ(bwd_sm90_span_blocks(bwd_sm90_config(packed(lengths, 64, false))), 1);
  EXPECT_EQ(bwd_sm90_span_blocks(bwd_sm90_config(packed(lengths, 64, true))), 64);
}

TEST(BwdSm90, LengthsThatTheDeviceLooksUp) {
  Problem p = packed({4096, 1, 2000}, 128, true);
  EXPECT_EQ(refusal(p), "");
  const KernelUnit unit = bwd_sm90_unit(bwd_sm90_config(p));
  EXPECT_EQ(unit.args, "RaggedArgs");
  EXPECT_NE(unit.config.find(".lengths = static_cast<Lengths>(2)"), std::string::npos);
  EXPECT_EQ(bwd_sm90_unit(bwd_sm90_config(problem(1024, 128, true))).args, "Args");
  p = problem(1024, 128, true);
  p.key_lengths = Tensor::contiguous(p.q.data, DType::int32, {p.batch}, p.device);
  EXPECT_EQ(refusal(p), "");
  EXPECT_EQ(bwd_sm90_config(p).lengths, bwd_sm90::Lengths::keys);
  // A small one keeps delta for every row of the tensor, not for every sequence's longest.
  p = packed({30, 41, 7}, 64, true);
  EXPECT_TRUE(bwd_sm90_config(p).two_plane);
  const Cost cost = cost_by(kFlashBackwardSm90, p, h100());
  EXPECT_EQ(cost.memory.back().bytes, p.heads_q * p.total_q * 4);
}

// Rows see few keys, and a sink takes part of each: a delta from O in 16 bits was 1.44 of the
// bound.
TEST(BwdSm90, SmallListedProblemsTakeDeltaFromP) {
  const auto listed = [](std::int64_t seq) {
    Problem p = problem(seq, 64, false);
    p.batch = 1, p.heads_q = p.heads_k = 1;
    p.block_list.block_q = p.block_list.block_k = 128;
    p.block_list.row_offsets =
        Tensor::contiguous(p.q.data, DType::int32, {1, 1, (seq + 127) / 128 + 1}, p.device);
    return p;
  };
  const auto refines = [](const Problem& p) {
    EXPECT_EQ(refusal(p), "");
    const auto memory = cost_by(kFlashBackwardSm90, p, h100()).memory;
    const auto is_delta = [](const MemoryPart& part) {
      return std::string_view(part.name) == "delta";
    };
    return std::ranges::count_if(memory, is_delta) == 2;  // its own, what is given
  };
  for (const std::int64_t seq : {8, 256, 1024}) {
    Problem p = listed(seq);
    EXPECT_TRUE(refines(p)) << seq;
    p.dropout.p = 0.3;
    EXPECT_TRUE(refines(p)) << seq << ", dropout";
  }
  EXPECT_FALSE(refines(listed(2048))) << "not small";
}

TEST(BwdSm90, WideRowsThatMaySeeNoKeyAreRefused) {
  // Self-attention: each row sees itself.
  Problem p = packed({4096, 1, 2000}, 192, true);
  EXPECT_EQ(refusal(p), "");
  p.left = 100;
  EXPECT_EQ(refusal(p), "");
  p.right = -1, p.left = 4096;
  EXPECT_NE(refusal(p).find("rows that may see no key above head dim 128"), std::string::npos);
  // The host does not know the lengths of others.
  p = packed({4096, 1, 2000}, 192, true);
  p.cu_seqlens_k = Tensor::contiguous(p.q.data, DType::int32, {4}, p.device);
  EXPECT_NE(refusal(p).find("rows that may see no key above head dim 128"), std::string::npos);
  p.causal = Causal::none, p.right = Problem::kUnbounded;
  EXPECT_EQ(refusal(p), "");
  p = problem(1024, 256, true);
  p.key_lengths = Tensor::contiguous(p.q.data, DType::int32, {p.batch}, p.device);
  EXPECT_NE(refusal(p).find("rows that may see no key above head dim 128"), std::string::npos);
}

TEST(BwdSm90, PackedTakesAboutTheTimeOfABatch) {
  for (const std::int64_t dim : {64, 128}) {
    const Problem dense = problem(2048, dim, true);
    const Problem p = packed(std::vector<int>(8, 2048), dim, true);
    const double ms = bwd_sm90_ms(p, bwd_sm90_config(p), h100());
    EXPECT_NEAR(ms / bwd_sm90_ms(dense, bwd_sm90_config(dense), h100()), 1.0, 0.1) << dim;
  }
}

TEST(BwdSm90, UnitNamesTheProductsItNeeds) {
  const KernelUnit unit = bwd_sm90_unit(bwd_sm90_config(problem(1024, 128, true)));
  for (const char* text : {"m64n64k16", "m64n128k16", "multiply_transposed", "multiply_register"}) {
    EXPECT_NE(unit.prelude.find(text), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tilewise::cuda
