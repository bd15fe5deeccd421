/// CONTRACT 14: with `deterministic` an entry's result does not depend on the rest of the batch.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "cuda/device_tensor.h"
#include "cuda/kernels/bwd_sm80/bias.h"
#include "cuda/kernels/rows/combine.h"
#include "cuda/machine.h"
#include "harness/case.h"
#include "harness/materialize.h"
#include "plan/choose.h"
#include "problem/problem.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

/// What decides bits: kernel, tiles, parts.
using Chosen = std::tuple<std::string, int, int, int>;

Chosen chosen(const std::string& line, Pass pass, const Hardware& hardware) {
  const PlannedCase c(parse_case(line), kCuda);
  const Problem p = pass == Pass::forward ? make_problem(c.forward(), c.spec(), Purpose::plan)
                                          : make_problem(c.backward(), c.spec(), Purpose::plan);
  const Plan plan = choose(p, hardware, {}, kernel_table());
  return {plan.kernel, plan.block_m, plan.block_n, plan.splits};
}

constexpr const char* kProblems[] = {
    "h4 s2048 d64 bf16",        "h4 s2048 d64 f32",         "h8 s1000 d128 bf16 causal",
    "h2 s300 d64 f32 causal",   "h8/2 q16 k4096 d128 bf16", "h8 q1 k8192 d128 bf16",
    "h8 q1 k8192 d128 f32",     "h1 s4096 d256 bf16",       "h4 s4096 d64 bf16 window=128,0",
    "h4 s700 d40 f16 softcap=5"};

TEST(BatchInvariance, DeterministicChoicesAreThoseOfOneEntry) {
  int different = 0;
  for (const int arch : {80, 90}) {
    const Hardware hardware = machine(arch);
    for (const std::string problem : kProblems) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const auto of = [&](const char* batch, const char* options) {
          return chosen(batch + problem + options, pass, hardware);
        };
        const Chosen one = of("b1 ", " deterministic");
        for (const char* batch : {"b2 ", "b7 ", "b64 "}) {
          EXPECT_EQ(of(batch, " deterministic"), one) << arch << ": " << batch << problem;
        }
        if (of("b64 ", "") != of("b1 ", "")) ++different;
      }
    }
  }
  EXPECT_GT(different, 0) << "the batch decides nothing here: other problems are needed";
}

TEST(BatchInvariance, PartsAreMergedAlike) {
  const auto shares = [](const std::string& line) {
    const PlannedCase c(parse_case(line), kCuda);
    return cuda::combine_shares(make_problem(c.forward(), c.spec(), Purpose::plan), 32);
  };
  const std::string problem = "h8/2 q1 k8192 d128 bf16 pass=fwd";
  EXPECT_NE(shares("b1 " + problem), shares("b900 " + problem)) << "the batch decides nothing here";
  EXPECT_EQ(shares("b1 " + problem + " deterministic"),
            shares("b900 " + problem + " deterministic"));
}

TEST(BatchInvariance, LengthsOfTheOthersDecideNothing) {
  const Hardware hardware = machine(90);
  const Chosen one = chosen("b1 h8 q1 k8192 d128 bf16 lengths=8192 deterministic pass=fwd",
                            Pass::forward, hardware);
  EXPECT_EQ(chosen("b2 h8 q1 k8192 d128 bf16 lengths=8192,10 deterministic pass=fwd", Pass::forward,
                   hardware),
            one);
}

// The host knows how many blocks all entries list together, and which kernel is faster goes by it.
TEST(BatchInvariance, ListsOfTheOthersDecideNothing) {
  for (const int arch : {80, 90}) {
    const Hardware hardware = machine(arch);
    for (const std::string shape : {" h2 s2048 d64 bf16", " h4 s1024 d64 bf16"}) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const auto of = [&](const std::string& batch, const std::string& density) {
          return chosen(batch + shape + " blocks=64,64:b,h:" + density + " deterministic", pass,
                        hardware);
        };
        const Chosen one = of("b1", "0.05");
        for (const char* density : {"0.05", "0.5", "1"}) {
          EXPECT_EQ(of("b1", density), one) << arch << shape << " " << density;
          EXPECT_EQ(of("b2", density), one) << arch << shape << " " << density;
        }
      }
    }
  }
}

TEST(BatchInvariance, PartsOfABiasGradientAreThoseOfOneEntry) {
  const auto parts = [](const std::string& line) {
    const PlannedCase c(parse_case(line), kCuda);
    return cuda::BiasParts(make_problem(c.backward(), c.spec(), Purpose::plan), 64, 64).count;
  };
  const int one = parts("b1 h2 s300 d64 bf16 bias=b,1,1,k deterministic");
  EXPECT_GT(one, 1);
  EXPECT_EQ(parts("b64 h2 s300 d64 bf16 bias=b,1,1,k deterministic"), one);
  EXPECT_NE(parts("b64 h2 s300 d64 bf16 bias=b,1,1,k"), one);
}

/// Entry `entry` of a (B, H, S, D) tensor or of (B, H, S) statistics.
Tensor entry_of(const Tensor& t, std::int64_t entry) {
  Tensor one = t;
  one.data = static_cast<std::byte*>(t.data) + entry * t.strides[0] * dtype_bytes(t.dtype);
  one.sizes[0] = 1;
  return one;
}

class BatchInvarianceOnDevice : public ::testing::TestWithParam<std::tuple<DType, std::int64_t>> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::missing_driver_reason();
  }
};

TEST_P(BatchInvarianceOnDevice, AnEntryAloneGivesTheSameBits) {
  constexpr std::int64_t kBatch = 48, kHeads = 2, kDim = 64;
  const DType dtype = std::get<0>(GetParam());
  const std::int64_t rows = std::get<1>(GetParam());
  const std::int64_t keys = rows == 1 ? 4096 : rows;
  const DeviceTensor q(dtype, kBatch, kHeads, rows, kDim, 1),
      k(dtype, kBatch, kHeads, keys, kDim, 2);
  const DeviceTensor v(dtype, kBatch, kHeads, keys, kDim, 3),
      d_o(dtype, kBatch, kHeads, rows, kDim, 4);
  AttentionSpec spec;
  spec.causal = Causal::bottom_right;
  spec.deterministic = true;
  const auto run = [&](std::int64_t first, std::int64_t batch) {
    const DeviceTensor o(dtype, batch, kHeads, rows, kDim, 0),
        lse(DType::float32, batch, kHeads, rows, 1, 0);
    const DeviceTensor dq(dtype, batch, kHeads, rows, kDim, 0),
        dk(dtype, batch, kHeads, keys, kDim, 0);
    const DeviceTensor dv(dtype, batch, kHeads, keys, kDim, 0);
    const Tensor statistics =
        Tensor::contiguous(lse.get().data, DType::float32, {batch, kHeads, rows}, kCuda);
    const auto in = [&](const DeviceTensor& t) {
      return batch == 1 ? entry_of(t.get(), first) : t.get();
    };
    forward(ForwardTensors{in(q), in(k), in(v), o.get(), statistics, {}}, spec);
    BackwardTensors b;
    b.q = in(q), b.k = in(k), b.v = in(v), b.d_o = in(d_o);
    b.o = o.get(), b.lse = statistics, b.dq = dq.get(), b.dk = dk.get(), b.dv = dv.get();
    backward(b, spec);
    return std::vector{o.read(), lse.read(), dq.read(), dk.read(), dv.read()};
  };
  const auto together = run(0, kBatch);
  for (const std::int64_t entry : {std::int64_t{0}, kBatch - 1}) {
    const auto alone = run(entry, 1);
    for (std::size_t n = 0; n < alone.size(); ++n) {
      const auto bytes = static_cast<std::ptrdiff_t>(alone[n].size());
      const auto begin = together[n].begin() + entry * bytes;
      EXPECT_EQ(std::vector(begin, begin + bytes), alone[n])
          << "result " << n << ", entry " << entry;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, BatchInvarianceOnDevice,
                         ::testing::Combine(::testing::Values(DType::bfloat16, DType::float32),
                                            ::testing::Values(1, 128, 1000)),
                         [](const auto& test) {
                           return std::string(dtype_name(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace tilewise
