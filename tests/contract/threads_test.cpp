/// Many host threads, any executor: CONTRACT 14, 17.
#include <thread>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

Trial shape_of(int thread) {
  Trial s = trial(thread % 2 == 0 ? DType::float32 : DType::bfloat16, 1, 2, 1, 5 + 7 * thread,
                  9 + 5 * thread, 16, 24);
  s.fill(90 + static_cast<std::uint64_t>(thread));
  s.spec.causal = thread % 3 == 0 ? Causal::none : Causal::bottom_right;
  s.spec.deterministic = true;
  return s;
}

TEST_P(Forward, C098ManyHostThreads) {
  constexpr int kThreads = 8, kCalls = 20;
  std::vector<std::string> expected;
  for (int t = 0; t < kThreads; ++t) expected.push_back(run(shape_of(t)).bits);
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto at = static_cast<std::size_t>(t);
      for (int call = 0; call < kCalls; ++call) {
        if (run_forward(shape_of(t), GetParam().kernel).bits != expected[at]) ++wrong[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
}

TEST_P(Backward, TheNumberOfThreadsChangesNothing) {
  Trial s = trial(DType::float32, 2, 4, 2, 90, 70, 32, 32).fill(98);
  s.spec.deterministic = true;
  Owned bias(DType::float32, {90, 70}, randn(90 * 70, 99));
  s.spec.bias = bias.tensor();
  const std::unique_ptr<Executor> one = make_thread_pool(1), three = make_thread_pool(3);
  EXPECT_EQ(run_backward(s, GetParam(), one.get()).bits,
            run_backward(s, GetParam(), three.get()).bits);
}

/// Bits of dQ, dK and dV by a plan for `threads` threads.
std::string gradients_planned_for(int threads, const Trial& s, const Row& row) {
  const Sizes q{s.batch, s.heads_q, s.seq_q, s.dim}, k{s.batch, s.heads_k, s.seq_k, s.dim};
  Owned q_in(s.dtype, q, s.q), k_in(s.dtype, k, s.k), v_in(s.dtype, k, s.v), d_o(s.dtype, q, s.d_o);
  Owned o(s.dtype, q), lse(DType::float32, {s.batch, s.heads_q, s.seq_q});
  const ForwardTensors forward{q_in.tensor(), k_in.tensor(), v_in.tensor(),
                               o.tensor(),    lse.tensor(),  {}};
  tilewise::forward(forward, s.spec, {}, {.implementation = row.implementation, .kernel = {}});
  Owned dq(s.dtype, q), dk(s.dtype, k), dv(s.dtype, k);
  const BackwardTensors t{.q = q_in.tensor(),
                          .k = k_in.tensor(),
                          .v = v_in.tensor(),
                          .o = o.tensor(),
                          .lse = lse.tensor(),
                          .d_o = d_o.tensor(),
                          .dq = dq.tensor(),
                          .dk = dk.tensor(),
                          .dv = dv.tensor()};
  Hardware machine = hardware();
  machine.threads = threads;
  tilewise::run(plan(t, s.spec, {.kernel = row.kernel}, &machine), t, s.spec, {});
  return dq.bits() + dk.bits() + dv.bits();
}

/// Threads that a forward of Q, K and V of one size is planned for on a machine of 64.
int threads_planned(DType dtype, std::int64_t seq, const Row& row) {
  const Trial s = trial(dtype, 1, 8, 8, seq, seq, 32, 32);
  const Sizes sizes{1, 8, seq, 32};
  Owned q(dtype, sizes), k(dtype, sizes), v(dtype, sizes), o(dtype, sizes);
  Hardware machine = hardware();
  const double share = 64.0 / machine.threads;
  machine.threads = 64;
  machine.float32_tflops *= share;
  machine.bandwidth_gbps *= share;
  const ForwardTensors t{q.tensor(), k.tensor(), v.tensor(), o.tensor(), {}, {}};
  return plan(t, s.spec, {.kernel = row.kernel}, &machine).threads;
}

TEST_P(TypedForward, ASmallCallWakesNoMoreThreadsThanItHasWorkFor) {
  if (GetParam().implementation != "flash") GTEST_SKIP() << "not tiled";
  if (GetParam().kernel == "flash_fwd_scalar") GTEST_SKIP() << "no call is small to it";
  for (const DType dtype : types_) {
    EXPECT_LE(threads_planned(dtype, 32, GetParam()), 2);
    EXPECT_EQ(threads_planned(dtype, 4096, GetParam()), 64);
  }
}

TEST_P(TypedBackward, APlanForOtherThreadsChangesNothing) {
  if (GetParam().implementation != "flash") GTEST_SKIP() << "bits of the BLAS library";
  for (const DType dtype : types_) {
    for (const auto& [heads_k, keys] : {std::pair{1, 700}, std::pair{2, 300}, std::pair{5, 1100}}) {
      Trial s = trial(dtype, 1, heads_k, heads_k, 60, keys, 32, 32).fill(98);
      s.spec.deterministic = true;
      const std::string one = gradients_planned_for(1, s, GetParam());
      for (const int threads : {2, 3, 7, 64}) {
        EXPECT_TRUE(gradients_planned_for(threads, s, GetParam()) == one)
            << heads_k << " heads, " << keys << " keys, " << threads << " threads";
      }
    }
  }
}

TEST_P(Forward, TheNumberOfThreadsChangesNothing) {
  const Trial s = trial(DType::float32, 1, 2, 1, 200, 500, 32, 32).fill(98);
  const std::unique_ptr<Executor> one = make_thread_pool(1), three = make_thread_pool(3);
  EXPECT_EQ(run_forward(s, GetParam().kernel, one.get()).bits,
            run_forward(s, GetParam().kernel, three.get()).bits);
}

constexpr std::int64_t kDim = 32, kHeads = 2, kRows = 40, kKeys = 300, kBatch = 5;

/// Dense: entry `entry` of `three`, alone.
Trial entry_of(const Trial& s, std::int64_t entry) {
  Trial one = trial(s.dtype, 1, kHeads, kHeads, kRows, kKeys, kDim, kDim);
  one.spec = s.spec;
  const auto part = [&](const Values& x, std::int64_t rows) {
    const std::int64_t elems = kHeads * rows * kDim;
    return slice(x, entry * elems, (entry + 1) * elems);
  };
  one.q = part(s.q, kRows);
  one.k = part(s.k, kKeys);
  one.v = part(s.v, kKeys);
  one.d_o = part(s.d_o, kRows);
  return one;
}

/// CONTRACT 14: an entry's result does not depend on the rest of the batch.
template <class Run>
void expect_the_batch_changes_nothing(const std::vector<DType>& types, const Run& run,
                                      std::initializer_list<Values Results::*> outputs) {
  for (const DType dtype : types) {
    Trial all = trial(dtype, kBatch, kHeads, kHeads, kRows, kKeys, kDim, kDim).fill(97);
    all.spec.deterministic = true;
    const Results together = run(all);
    for (const std::int64_t entry : {std::int64_t{0}, kBatch - 1}) {
      const Results alone = run(entry_of(all, entry));
      for (const auto output : outputs) {
        const Values& expected = alone.*output;
        const auto elems = static_cast<std::int64_t>(expected.size());
        expect_near(slice(together.*output, entry * elems, (entry + 1) * elems), expected, 0.0,
                    "results of an entry");
      }
    }
  }
}

TEST_P(TypedForward, TheRestOfTheBatchChangesNothing) {
  expect_the_batch_changes_nothing(
      types_, [&](const Trial& s) { return run_forward(s, GetParam().kernel); },
      {&Results::o, &Results::lse});
}

TEST_P(TypedBackward, TheRestOfTheBatchChangesNothing) {
  expect_the_batch_changes_nothing(types_,
                                   [&](const Trial& s) { return run_backward(s, GetParam()); },
                                   {&Results::dq, &Results::dk, &Results::dv});
}

/// The same of packed sequences, where the others are longer.
Trial packed_of(const Trial& s, const std::vector<std::int64_t>& q_ends,
                const std::vector<std::int64_t>& k_ends, Owned& q_offsets, Owned& k_offsets) {
  Trial packed = s;
  packed.packed = true;
  q_offsets = integers(q_ends);
  k_offsets = integers(k_ends);
  packed.spec.cu_seqlens_q = q_offsets.tensor();
  packed.spec.cu_seqlens_k = k_offsets.tensor();
  return packed;
}

template <class Run>
void expect_the_pack_changes_nothing(const std::vector<DType>& types, const Run& run,
                                     std::initializer_list<Values Results::*> outputs) {
  constexpr std::int64_t kShort = 3, kLongQ = 70, kShortK = 290, kLongK = 900;
  Owned offsets[4];
  for (const DType dtype : types) {
    Trial base = trial(dtype, 1, 1, 1, kShort + kLongQ, kShortK + kLongK, kDim, kDim).fill(96);
    base.spec.deterministic = true;
    const Results together = run(packed_of(base, {0, kShort, kShort + kLongQ},
                                           {0, kShortK, kShortK + kLongK}, offsets[0], offsets[1]));
    Trial one = trial(dtype, 1, 1, 1, kShort, kShortK, kDim, kDim);
    one.spec = base.spec;
    one.q = slice(base.q, 0, kShort * kDim);
    one.k = slice(base.k, 0, kShortK * kDim);
    one.v = slice(base.v, 0, kShortK * kDim);
    one.d_o = slice(base.d_o, 0, kShort * kDim);
    const Results alone = run(packed_of(one, {0, kShort}, {0, kShortK}, offsets[2], offsets[3]));
    for (const auto output : outputs) {
      const Values& expected = alone.*output;
      const auto elems = static_cast<std::int64_t>(expected.size());
      expect_near(slice(together.*output, 0, elems), expected, 0.0, "results of a sequence");
    }
  }
}

TEST_P(TypedForward, TheRestOfThePackChangesNothing) {
  expect_the_pack_changes_nothing(types_,
                                  [&](const Trial& s) { return run_forward(s, GetParam().kernel); },
                                  {&Results::o, &Results::lse});
}

TEST_P(TypedBackward, TheRestOfThePackChangesNothing) {
  expect_the_pack_changes_nothing(types_,
                                  [&](const Trial& s) { return run_backward(s, GetParam()); },
                                  {&Results::dq, &Results::dk, &Results::dv});
}

TEST_P(Backward, APackHasNoMorePartsThanBlocksOfKeys) {
  constexpr std::int64_t kSmallestBlock = 64;
  Owned offsets[2];
  Trial base = trial(DType::float32, 1, 1, 1, 40, 2 * kSmallestBlock, kDim, kDim).fill(95);
  base.spec.deterministic = true;
  const Trial s = packed_of(base, {0, 10, 40}, {0, 60, 128}, offsets[0], offsets[1]);
  if (skips(s)) return;
  EXPECT_LE(run(s).plan.splits, 2);
}

}  // namespace
}  // namespace tilewise::contract
