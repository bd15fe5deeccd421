/// The sm_80-class rows: what they refuse, which tiles and splits they plan, and, with a device,
/// that they repeat.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/ask_row.h"
#include "cuda/device_tensor.h"
#include "cuda/host/common.h"
#include "cuda/host/refusal.h"
#include "cuda/kernels/bwd_sm80/bias.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/machine.h"
#include "cuda/rows.h"
#include "plan/choose.h"
#include "plan/gpu_facts.h"
#include "problem/problem.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

struct Shape {
  DType dtype = DType::bfloat16;
  std::int64_t batch = 1, heads = 1, seq = 1024, dim = 64, dim_v = 64;
};

Problem forward_problem(const Shape& s, const AttentionSpec& spec = {}) {
  ForwardTensors t;
  t.q = Tensor::bhsd(nullptr, s.dtype, s.batch, s.heads, s.seq, s.dim, kCuda);
  t.k = t.q;
  t.v = Tensor::bhsd(nullptr, s.dtype, s.batch, s.heads, s.seq, s.dim_v, kCuda);
  t.o = t.v;
  t.lse = Tensor::contiguous(nullptr, DType::float32, {s.batch, s.heads, s.seq}, kCuda);
  return make_problem(t, spec, Purpose::plan);
}

Problem backward_problem(const Shape& s, const AttentionSpec& spec = {}) {
  BackwardTensors t;
  t.q = t.k = t.dq = t.dk = Tensor::bhsd(nullptr, s.dtype, s.batch, s.heads, s.seq, s.dim, kCuda);
  t.v = t.o = t.d_o = t.dv =
      Tensor::bhsd(nullptr, s.dtype, s.batch, s.heads, s.seq, s.dim_v, kCuda);
  t.lse = Tensor::contiguous(nullptr, DType::float32, {s.batch, s.heads, s.seq}, kCuda);
  return make_problem(t, spec, Purpose::plan);
}

const KernelRow& kForward = cuda::kFlashForwardSm80;
const KernelRow& kOnePass = cuda::kFlashBackwardSm80;
const KernelRow& kTwoPass = cuda::kFlashBackwardTwoPassSm80;

std::string refusal(const KernelRow& row, const Problem& p, int arch = 90) {
  return refusal_by(row, p, machine(arch));
}

TEST(FlashSm80, EveryHeadDimHasATileOnEveryArchitecture) {
  for (const int arch : {80, 86, 89, 90}) {
    for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
      for (const std::int64_t dim : {1, 16, 40, 64, 80, 96, 128, 160, 192, 256}) {
        const Shape shape{.dtype = dtype, .dim = dim, .dim_v = dim};
        EXPECT_EQ(refusal(kForward, forward_problem(shape), arch), "") << arch << " " << dim;
        EXPECT_EQ(refusal(kTwoPass, backward_problem(shape), arch), "") << arch << " " << dim;
        if (dtype == DType::float32) continue;
        EXPECT_EQ(refusal(kOnePass, backward_problem(shape), arch), "") << arch << " " << dim;
      }
    }
  }
}

TEST(FlashSm80, HeadDimsAbove256HaveTilesWhereTheyFit) {
  for (const int arch : {80, 86, 90}) {
    for (const std::int64_t dim : {257, 384, 512}) {
      for (const std::int64_t dim_v : {64, 320, 512}) {
        const Shape shape{.dim = dim, .dim_v = dim_v};
        EXPECT_EQ(refusal(kForward, forward_problem(shape), arch), "") << arch << " " << dim;
        EXPECT_EQ(refusal(kTwoPass, backward_problem(shape), arch), "") << arch << " " << dim;
        EXPECT_NE(refusal(kOnePass, backward_problem(shape), arch).find("above 256"),
                  std::string::npos);
      }
    }
  }
  const Shape exact{.dtype = DType::float32, .dim = 512, .dim_v = 512};
  EXPECT_EQ(refusal(kForward, forward_problem(exact), 86), "");
  EXPECT_EQ(refusal(kTwoPass, backward_problem(exact), 80), "");
  EXPECT_NE(refusal(kTwoPass, backward_problem(exact), 86).find("shared memory"),
            std::string::npos);
  EXPECT_NE(refusal(kForward, forward_problem({.dim = 513, .dim_v = 64})).find("above 512"),
            std::string::npos);
}

TEST(FlashSm80, EveryColumnOfAGradientIsInOneSlice) {
  for (const auto& [dim, dim_v] : {std::pair{512, 320}, {264, 64}, {128, 400}}) {
    const Problem p = backward_problem({.dim = dim, .dim_v = dim_v});
    const cuda::bwd_tiles::TilePair& pair = cuda::bwd_tiles::two_pass_tiles(p)[0];
    const auto config = [&](const cuda::bwd_tiles::Tile& tile, cuda::bwd_tiles::Launch launch) {
      return cuda::bwd_tiles::make_config(p, tile, launch, false, 227);
    };
    int keys = 0, values = 0, queries = 0;
    using cuda::bwd_tiles::Gradients, cuda::bwd_tiles::Launch;
    for (const auto& c : key_launches(p, pair, config(pair.keys, Launch::keys))) {
      int& next = c.output.gradients == Gradients::keys ? keys : values;
      EXPECT_EQ(c.output.column, next);
      EXPECT_LE(c.output.columns, 256);
      next += c.output.columns;
    }
    for (const auto& c : query_launches(p, pair, config(pair.queries, Launch::queries))) {
      EXPECT_EQ(c.output.column, queries);
      queries += c.output.columns;
    }
    EXPECT_EQ(keys, cuda::host::padded(dim));
    EXPECT_EQ(values, cuda::host::padded(dim_v));
    EXPECT_EQ(queries, cuda::host::padded(dim));
  }
}

TEST(FlashSm80, RefusalsNameTheReason) {
  EXPECT_NE(refusal(kForward, forward_problem({}), 75).find("7.5"), std::string::npos);
  EXPECT_EQ(refusal(kOnePass, backward_problem({.dtype = DType::float32})),
            "float32 is not supported by this kernel");
  AttentionSpec deterministic;
  deterministic.deterministic = true;
  EXPECT_NE(refusal(kOnePass, backward_problem({}, deterministic)).find("deterministic"),
            std::string::npos);
  EXPECT_EQ(refusal(kTwoPass, backward_problem({}, deterministic)), "");
}

/// What a backward gives beside dQ, dK and dV. The bias is a row's: it broadcasts over keys.
enum class Summed { bias, sinks };

Problem backward_problem_with(Summed wanted, const Shape& s) {
  BackwardTensors t;
  t.q = t.k = t.dq = t.dk = Tensor::bhsd(nullptr, s.dtype, s.batch, s.heads, s.seq, s.dim, kCuda);
  t.v = t.o = t.d_o = t.dv =
      Tensor::bhsd(nullptr, s.dtype, s.batch, s.heads, s.seq, s.dim_v, kCuda);
  t.lse = Tensor::contiguous(nullptr, DType::float32, {s.batch, s.heads, s.seq}, kCuda);
  AttentionSpec spec;
  if (wanted == Summed::bias) {
    spec.bias = t.dbias = Tensor::contiguous(nullptr, s.dtype, {1, s.heads, s.seq, 1}, kCuda);
  } else {
    spec.sinks = t.dsinks = Tensor::contiguous(nullptr, DType::float32, {s.heads}, kCuda);
  }
  return make_problem(t, spec, Purpose::plan);
}

TEST(FlashSm80, ThePlanTakesDropoutAndSummedGradients) {
  const Hardware m = machine(80);
  AttentionSpec spec;
  spec.dropout.p = 0.5;
  EXPECT_EQ(choose(forward_problem({}, spec), m, {}, cuda::cuda_rows()).kernel, kForward.name);
  for (const Problem& p : {backward_problem({}, spec), backward_problem_with(Summed::bias, {}),
                           backward_problem_with(Summed::sinks, {})}) {
    const std::string taken = choose(p, m, {}, cuda::cuda_rows()).kernel;
    EXPECT_TRUE(taken == kOnePass.name || taken == kTwoPass.name) << taken;
  }
}

TEST(FlashSm80, DropoutIsInThePredictedTime) {
  const Shape shape{.batch = 4, .heads = 32, .seq = 4096};
  const Hardware m = machine(90);
  AttentionSpec spec;
  spec.dropout.p = 0.1;
  const double plain = cost_by(kForward, forward_problem(shape), m).ms;
  const double dropped = cost_by(kForward, forward_problem(shape, spec), m).ms;
  EXPECT_GT(dropped, 1.5 * plain) << "measured: 1.8 to 2.2";
  EXPECT_LT(dropped, 3.0 * plain);
}

// One element for all pairs: its sum is taken in parts, which need a place.
TEST(FlashSm80, ABiasThatBroadcastsIsSummedInParts) {
  const auto parts = [](const std::vector<std::int64_t>& sizes, std::int64_t seq,
                        bool deterministic = false, std::int64_t batch = 2) {
    Problem p = backward_problem({.batch = batch, .heads = 4, .seq = seq});
    p.deterministic = deterministic;
    p.dbias = Tensor::contiguous(nullptr, DType::float32, {batch, 4, seq, seq}, kCuda);
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (sizes[axis] == 1) p.dbias.strides[axis] = 0;
    }
    return cuda::BiasParts(p, 64, 64);
  };
  const cuda::BiasParts one = parts({1, 1, 1, 1}, 1024);
  EXPECT_EQ(one.blocks, 1);
  EXPECT_EQ(one.count, 264);
  EXPECT_EQ(one.elems(), 16 * 8);
  EXPECT_EQ(parts({1, 1, 1, 1}, 65).count, 2 * 4 * 2 * 2) << "no more parts than tiles";
  EXPECT_EQ(parts({1, 1, 2, 2}, 64).count, 2 * 4);
  EXPECT_EQ(parts({2, 4, 2, 2}, 64).count, 1) << "nothing is summed";
  EXPECT_EQ(parts({1, 1, 2, 2}, 2048).count, 1) << "the tiles fill the card";
  EXPECT_LT(parts({2, 1, 1, 1}, 1024, false, 8).count, parts({2, 1, 1, 1}, 1024, false, 1).count);
  EXPECT_EQ(parts({2, 1, 1, 1}, 1024, true, 8).count, parts({2, 1, 1, 1}, 1024, true, 1).count)
      << "CONTRACT 14: a sequence's bits do not depend on the rest of the batch";
}

// In O rounding has changed what sums over keys are made of.
TEST(FlashSm80, SummedGradientsTakeDeltaFromP) {
  const Shape large{.heads = 2, .seq = 2048};
  Shape float32 = large;
  float32.dtype = DType::float32;
  EXPECT_FALSE(cuda::bwd_tiles::refines(backward_problem(large)));
  Problem plain = backward_problem(float32);
  plain.precision = Precision::tf32;
  EXPECT_FALSE(cuda::bwd_tiles::refines(plain));
  for (const Summed wanted : {Summed::bias, Summed::sinks}) {
    EXPECT_TRUE(cuda::bwd_tiles::refines(backward_problem_with(wanted, large)));
    Problem tf32 = backward_problem_with(wanted, float32);
    tf32.precision = Precision::tf32;
    EXPECT_TRUE(cuda::bwd_tiles::refines(tf32)) << "O is not of the operands that make P";
  }
}

// Of rows that see one block of a gate alone the sum of dS is 0 (an H200 gave -0.065 of delta from
// O, the bound is 0.028).
TEST(FlashSm80, GradientsOfCapturedTensorsOfSmallProblemsTakeDeltaFromP) {
  const auto with_gradient = [](std::int64_t seq) {
    Problem p = backward_problem({.heads = 2, .seq = seq});
    p.dcaptures.push_back(Tensor::contiguous(nullptr, DType::float32, {2, 16, 16}, kCuda));
    p.dcaptures.back().rank = 3;
    return p;
  };
  const Problem small = backward_problem({.heads = 2, .seq = 512});
  EXPECT_FALSE(cuda::bwd_tiles::refines(small));
  EXPECT_TRUE(cuda::bwd_tiles::refines(with_gradient(512)));
  EXPECT_FALSE(cuda::bwd_tiles::refines(with_gradient(2048)));
}

TEST(FlashSm80, SummedGradientsArePricedByTheirProducts) {
  const Shape shape{.batch = 4, .heads = 32, .seq = 4096};
  Hardware m = machine(90);
  m.bandwidth_gbps = 1e6;  // the tensors' own way to memory takes nothing
  const Problem none = backward_problem(shape), sinks = backward_problem_with(Summed::sinks, shape);
  // Two products more for delta from P, of five and of seven.
  const double one = cost_by(kOnePass, none, m).ms, two = cost_by(kTwoPass, none, m).ms;
  EXPECT_NEAR(cost_by(kOnePass, sinks, m).ms / one, 1.0 + 2.0 / 5.0, 0.03);
  EXPECT_NEAR(cost_by(kTwoPass, sinks, m).ms / two, 1.0 + 2.0 / 7.0, 0.03);
  // A bias is read in all four launches that make P, and is there once for all keys.
  const Problem bias = backward_problem_with(Summed::bias, shape);
  const double read = cuda::host::options_ms(bias, 4, m);
  EXPECT_NEAR((cost_by(kTwoPass, bias, m).ms - read) / two, 1.0 + 4.0 / 7.0, 0.03);
  EXPECT_EQ(cost_by(kTwoPass, bias, m).bytes_moved,
            cost_by(kTwoPass, none, m).bytes_moved + 2.0 * 32 * 4096 * 2);
}

// keep iff word >= floor(p * 2^32), for every p: CONTRACT 13.
TEST(FlashSm80, DropoutBitsAreTheContracts) {
  const auto bits = [](double p) {
    AttentionSpec spec;
    spec.dropout = {.p = p, .seed = 0x0123456789abcdefULL, .offset = 7};
    const Problem problem = forward_problem({}, spec);
    return cuda::drops(problem) ? cuda::host::dropout_bits(problem) : tile::DropoutBits{};
  };
  EXPECT_EQ(bits(0.5).key.round[0][0], 0x89abcdefU);
  EXPECT_EQ(bits(0.5).key.round[0][1], 0x01234567U);
  EXPECT_EQ(bits(0.5).offset, 7U);
  EXPECT_EQ(bits(0.5).limit, 0x7fffffffU) << "the word 2^31 is kept, 2^31 - 1 is not";
  EXPECT_EQ(bits(0.5).scale, 2.0F);
  EXPECT_EQ(bits(1.0).limit, 0xffffffffU) << "no word is above it";
  EXPECT_EQ(bits(1.0).scale, 0.0F);
  EXPECT_EQ(bits(0x1p-32).limit, 0U) << "the word 0 alone is dropped";
  EXPECT_EQ(bits(0x1p-33).limit, tile::DropoutBits{}.limit) << "p below 2^-32 drops nothing";
  AttentionSpec tiny;
  tiny.dropout.p = 0x1p-33;
  const Problem kept = forward_problem({}, tiny);
  EXPECT_FALSE(cuda::drops(kept));
  EXPECT_EQ(cuda::option_refusal(kept), "") << "kernels without dropout take it too";
  tiny.dropout.p = 0x1p-32;
  EXPECT_NE(cuda::option_refusal(forward_problem({}, tiny)), "");
}

TEST(FlashSm80, KeysAreSplitOnlyWhenMultiprocessorsAreIdle) {
  const Hardware m = machine(90);
  const Cost full = cost_by(kForward, forward_problem({.batch = 4, .heads = 32, .seq = 4096}), m);
  EXPECT_EQ(full.splits, 1);
  EXPECT_TRUE(full.memory.empty());
  const Cost idle = cost_by(kForward, forward_problem({.seq = 8192}), m);
  EXPECT_GT(idle.splits, 1);
  // Splitting is only worth its workspace because it is faster than what one part could be.
  EXPECT_LT(idle.ms, cost_by(kForward, forward_problem({.heads = 8, .seq = 8192}), m).ms);
  ASSERT_EQ(idle.memory.size(), 2U);
  EXPECT_EQ(idle.memory[0].bytes, std::int64_t{idle.splits} * 8192 * 64 * 4);
}

TEST(FlashSm80, PredictsWhatAnH100Took) {
  // Rows of bench/results/h100/sm80-variants.json: 16,384 tokens, hidden 2048, bf16; milliseconds.
  struct Cell {
    std::int64_t seq, dim;
    bool causal;
    double ms;
  };
  constexpr Cell kCells[] = {{512, 64, false, 0.2508},  {512, 64, true, 0.1828},
                             {1024, 64, true, 0.2727},  {4096, 64, true, 0.8432},
                             {16384, 64, false, 6.194}, {512, 128, false, 0.2154},
                             {512, 128, true, 0.1660},  {1024, 128, true, 0.2463},
                             {4096, 128, true, 0.7311}, {16384, 128, false, 5.403}};
  const Hardware h100 = machine(90, 3000.0);
  for (const Cell& cell : kCells) {
    AttentionSpec spec;
    if (cell.causal) spec.causal = Causal::bottom_right;
    const Problem p = forward_problem({.batch = 16384 / cell.seq,
                                       .heads = 2048 / cell.dim,
                                       .seq = cell.seq,
                                       .dim = cell.dim,
                                       .dim_v = cell.dim},
                                      spec);
    const double ms = cost_by(kForward, p, h100).ms;
    EXPECT_NEAR(ms / cell.ms, 1.0, 0.12) << cell.seq << " rows, dim " << cell.dim;
  }
}

// Heads of a few tiles, dims that are padded: an H200 (vision.json of 85d2c68c), milliseconds.
// Those that a diagonal and the last row cut: shapes-sm90-tried.csv.
TEST(FlashSm80, PredictsShortBackwardsOfAnH200) {
  struct Cell {
    std::int64_t batch, heads, seq, dim;
    double one_pass, two_pass;
    bool causal = false;
  };
  constexpr Cell kCells[] = {
      {64, 12, 197, 64, 0.1830, 0.2035},      {64, 16, 256, 64, 0.2351, 0.2702},
      {64, 16, 256, 72, 0.4083, 0.4639},      {64, 16, 256, 80, 0.4008, 0.4510},
      {32, 16, 577, 64, 0.5312, 0.6359},      {32, 16, 577, 72, 0.9352, 1.1139},
      {8, 16, 1024, 72, 0.5780, 0.6839},      {64, 20, 130, 80, 0.2652, 0.2843, true},
      {64, 20, 253, 80, 0.3975, 0.4426, true}};
  Hardware h200 = machine(90);
  h200.bandwidth_gbps = 4320.0;
  for (const Cell& cell : kCells) {
    const Problem p =
        backward_problem({.batch = cell.batch,
                          .heads = cell.heads,
                          .seq = cell.seq,
                          .dim = cell.dim,
                          .dim_v = cell.dim},
                         {.causal = cell.causal ? Causal::bottom_right : Causal::none});
    EXPECT_NEAR(cost_by(kOnePass, p, h200).ms / cell.one_pass, 1.0, 0.1) << cell.seq << cell.dim;
    EXPECT_NEAR(cost_by(kTwoPass, p, h200).ms / cell.two_pass, 1.0, 0.1) << cell.seq << cell.dim;
  }
}

TEST(FlashSm80, OtherCardsReachLessThanTheirProductsAllow) {
  const GpuFacts h100{.arch = 90,
                      .multiprocessors = 132,
                      .clock_mhz = 1980,
                      .matrix_fma_per_clock = 2048,
                      .float32_fma_per_clock = 128};
  GpuFacts rtx4090 = h100, a100 = h100;
  rtx4090.arch = 89, rtx4090.multiprocessors = 128, rtx4090.clock_mhz = 2520;
  rtx4090.matrix_fma_per_clock = 256;
  a100.arch = 80, a100.multiprocessors = 108, a100.clock_mhz = 1410;
  a100.matrix_fma_per_clock = 1024, a100.float32_fma_per_clock = 64;
  const double dim128 = 415.0, planes64 = 145.0;  // as the tables have them
  EXPECT_NEAR(cuda::host::full_tflops({.tflops = dim128}, sustained(h100)), dim128, 4.0);
  EXPECT_NEAR(cuda::host::full_tflops({.tflops = planes64, .products = 3.0}, sustained(h100)),
              planes64, 1.5);
  // A GeForce card has a fifth of the products for each exp, an A100 half: what is beside the
  // products hides the better, the fewer there are.
  const double peak4090 = 165.2, peak_a100 = 312.0;
  const double on_4090 = cuda::host::full_tflops({.tflops = dim128}, sustained(rtx4090));
  const double on_a100 = cuda::host::full_tflops({.tflops = dim128}, sustained(a100));
  EXPECT_GT(on_4090 / peak4090, 0.8);
  EXPECT_LT(on_4090 / peak4090, 0.95);
  EXPECT_GT(on_a100 / peak_a100, 0.65);
  EXPECT_LT(on_a100 / peak_a100, 0.75);
  const double float32 =
      cuda::host::full_tflops({.tflops = planes64, .products = 3.0}, sustained(rtx4090));
  EXPECT_LT(float32, peak4090 / 3.0);
  EXPECT_GT(float32, 0.75 * peak4090 / 3.0);
}

TEST(FlashSm80, Float32IsPackedAndOddStridesTooButAlignedRowsAreNot) {
  const Hardware m = machine(90);
  const Shape busy{.dtype = DType::float32, .batch = 8, .heads = 32};
  const Cost planes = cost_by(kForward, forward_problem(busy), m);
  ASSERT_EQ(planes.memory.size(), 6U);  // planes and scales of Q, K, V
  EXPECT_EQ(planes.memory[0].bytes, std::int64_t{8} * 32 * 1024 * 64 * 4);
  const Cost aligned = cost_by(kForward, forward_problem({.batch = 8, .heads = 32}), m);
  EXPECT_TRUE(aligned.memory.empty());
  const Cost odd =
      cost_by(kForward, forward_problem({.batch = 8, .heads = 32, .dim = 37, .dim_v = 64}), m);
  EXPECT_EQ(odd.memory.size(), 2U);  // Q and K; rows of V are whole vectors
}

TEST(FlashSm80, TwoPassesNeedNoSumsOfDq) {
  const Hardware m = machine(90);
  const Problem p = backward_problem({.batch = 4, .heads = 32, .seq = 2048});
  const auto bytes = [](const Cost& cost) {
    std::int64_t sum = 0;
    for (const MemoryPart& item : cost.memory) sum += item.bytes;
    return sum;
  };
  const std::int64_t rows = std::int64_t{4} * 32 * 2048;
  EXPECT_EQ(bytes(cost_by(kTwoPass, p, m)), 2 * rows * 4);
  EXPECT_EQ(bytes(cost_by(kOnePass, p, m)), 2 * rows * 4 + rows * 64 * 4);
}

class FlashSm80Device : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::missing_driver_reason();
  }
};

TEST_P(FlashSm80Device, ForwardAndTwoPassBackwardRepeatBitwise) {
  constexpr std::int64_t kHeads = 3, kSeq = 1000, kDim = 64;
  const DType dtype = GetParam();
  const DeviceTensor q(dtype, 1, kHeads, kSeq, kDim, 1), k(dtype, 1, kHeads, kSeq, kDim, 2);
  const DeviceTensor v(dtype, 1, kHeads, kSeq, kDim, 3), d_o(dtype, 1, kHeads, kSeq, kDim, 4);
  AttentionSpec spec;
  spec.causal = Causal::bottom_right;
  spec.deterministic = true;
  std::vector<std::vector<std::byte>> first;
  for (int round = 0; round < 3; ++round) {
    const DeviceTensor o(dtype, 1, kHeads, kSeq, kDim, 0),
        lse(DType::float32, 1, kHeads, kSeq, 1, 0);
    const DeviceTensor dq(dtype, 1, kHeads, kSeq, kDim, 0), dk(dtype, 1, kHeads, kSeq, kDim, 0);
    const DeviceTensor dv(dtype, 1, kHeads, kSeq, kDim, 0);
    const Tensor rows =
        Tensor::contiguous(lse.get().data, DType::float32, {1, kHeads, kSeq}, kCuda);
    ForwardTensors f{q.get(), k.get(), v.get(), o.get(), rows, {}};
    const Plan forward_plan =
        forward(f, spec, {}, {.implementation = "", .kernel = "flash_fwd_sm80"});
    EXPECT_EQ(forward_plan.kernel, "flash_fwd_sm80");
    BackwardTensors b;
    b.q = q.get(), b.k = k.get(), b.v = v.get(), b.o = o.get(), b.lse = rows, b.d_o = d_o.get();
    b.dq = dq.get(), b.dk = dk.get(), b.dv = dv.get();
    const Plan backward_plan =
        backward(b, spec, {}, {.implementation = "", .kernel = "flash_bwd_twopass_sm80"});
    EXPECT_EQ(backward_plan.kernel, "flash_bwd_twopass_sm80");
    const std::vector<std::vector<std::byte>> now = {o.read(), lse.read(), dq.read(), dk.read(),
                                                     dv.read()};
    if (round == 0) {
      first = now;
    } else {
      EXPECT_EQ(first, now);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FlashSm80Device, ::testing::Values(DType::bfloat16, DType::float32),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace tilewise
