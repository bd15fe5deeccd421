// forward_prefix() on the CPU beside forward() over the same keys side by side, and what it
// refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tilewise/kv_cache.h"
#include "tilewise/tilewise.h"

namespace tilewise {
namespace {

constexpr std::int64_t kBatch = 3, kHeads = 4, kHeadsK = 2, kPrefix = 37, kOwn = 9, kQueries = 4;
constexpr std::int64_t kDim = 8, kDimV = 12;

struct Floats {
  std::vector<float> data;
  explicit Floats(std::int64_t count, std::mt19937* random = nullptr)
      : data(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN()) {
    std::normal_distribution<float> normal;
    if (random != nullptr) {
      for (float& x : data) x = normal(*random);
    }
  }
  Tensor bshd(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
    return Tensor::bshd(data.data(), DType::float32, b, s, h, d);
  }
};

/// The same problem with a prefix, and with all keys of an entry side by side.
struct Both {
  std::mt19937 random{3};
  Floats q{kBatch * kQueries * kHeads * kDim, &random};
  Floats k_prefix{kPrefix * kHeadsK * kDim, &random}, v_prefix{kPrefix * kHeadsK * kDimV, &random};
  Floats k{kBatch * kOwn * kHeadsK * kDim, &random}, v{kBatch * kOwn * kHeadsK * kDimV, &random};
  Floats k_all{kBatch * (kPrefix + kOwn) * kHeadsK * kDim};
  Floats v_all{kBatch * (kPrefix + kOwn) * kHeadsK * kDimV};
  Floats o{kBatch * kQueries * kHeads * kDimV}, o_all = o;
  Floats lse{kBatch * kHeads * kQueries}, lse_all = lse;
  std::vector<int> lengths = {9, 4, 6}, lengths_all;
  AttentionSpec spec{.causal = Causal::bottom_right}, spec_all = spec;
  PrefixTensors t;
  ForwardTensors all;

  Both() {
    join(k_all, k_prefix, k, kDim);
    join(v_all, v_prefix, v, kDimV);
    for (const int n : lengths) lengths_all.push_back(n + static_cast<int>(kPrefix));
    spec.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {kBatch});
    spec_all.key_lengths = Tensor::contiguous(lengths_all.data(), DType::int32, {kBatch});
    t = {.q = q.bshd(kBatch, kQueries, kHeads, kDim),
         .k_prefix = k_prefix.bshd(1, kPrefix, kHeadsK, kDim),
         .v_prefix = v_prefix.bshd(1, kPrefix, kHeadsK, kDimV),
         .k = k.bshd(kBatch, kOwn, kHeadsK, kDim),
         .v = v.bshd(kBatch, kOwn, kHeadsK, kDimV),
         .o = o.bshd(kBatch, kQueries, kHeads, kDimV),
         .lse = Tensor::contiguous(lse.data.data(), DType::float32, {kBatch, kHeads, kQueries})};
    all = {
        .q = t.q,
        .k = k_all.bshd(kBatch, kPrefix + kOwn, kHeadsK, kDim),
        .v = v_all.bshd(kBatch, kPrefix + kOwn, kHeadsK, kDimV),
        .o = o_all.bshd(kBatch, kQueries, kHeads, kDimV),
        .lse = Tensor::contiguous(lse_all.data.data(), DType::float32, {kBatch, kHeads, kQueries})};
  }
  /// Key rows of each entry: the prefix's, then its own.
  static void join(Floats& to, const Floats& prefix, const Floats& own, std::int64_t dim) {
    const std::int64_t row = kHeadsK * dim;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      float* at = to.data.data() + b * (kPrefix + kOwn) * row;
      std::memcpy(at, prefix.data.data(), static_cast<std::size_t>(kPrefix * row) * sizeof(float));
      std::memcpy(at + kPrefix * row, own.data.data() + b * kOwn * row,
                  static_cast<std::size_t>(kOwn * row) * sizeof(float));
    }
  }
  void expect_same() {
    forward_prefix(t, spec);
    forward(all, spec_all);
    for (std::size_t n = 0; n < o.data.size(); ++n)
      ASSERT_NEAR(o.data[n], o_all.data[n], 2e-6) << n;
    for (std::size_t n = 0; n < lse.data.size() && t.lse.defined(); ++n)
      ASSERT_NEAR(lse.data[n], lse_all.data[n], 2e-6) << n;
  }
};

TEST(Prefix, IsAttentionOverAllKeys) {
  Both().expect_same();
  Both without_lse;
  without_lse.t.lse = {};
  without_lse.expect_same();
}

TEST(Prefix, ScaleSoftcapAndSinksAreThoseOfAllKeys) {
  Both both;
  std::vector<float> sinks = {0.5F, -1.0F, 3.0F, 0.0F};
  for (AttentionSpec* spec : {&both.spec, &both.spec_all}) {
    spec->scale = 0.7;
    spec->softcap = 2.0;
    spec->sinks = Tensor::contiguous(sinks.data(), DType::float32, {kHeads});
  }
  both.expect_same();
}

TEST(Prefix, AnEntryMayHaveNoKeysOfItsOwn) {
  Both both;
  both.lengths[1] = 0;
  both.lengths_all[1] = kPrefix;
  both.spec.causal = both.spec_all.causal = Causal::none;
  both.expect_same();
}

TEST(Prefix, NoQueriesAreNoError) {
  for (const int axis : {0, 2}) {
    Both both;
    for (Tensor* t : {&both.t.q, &both.t.o}) t->sizes[axis] = 0;
    both.t.lse.sizes[axis] = 0;
    both.spec.key_lengths = {};
    if (axis == 0) both.t.k.sizes[0] = both.t.v.sizes[0] = 0;
    forward_prefix(both.t, both.spec);
    EXPECT_TRUE(std::isnan(both.o.data[0]));  // nothing was written
  }
}

TEST(Prefix, TakesATreeOfTheLastKeys) {
  Both both;
  std::vector<int> words = {1, 3, 5, 9};  // node 0, and each other its own and node 0
  const Tensor tree = Tensor::contiguous(words.data(), DType::int32, {kQueries, 1});
  both.spec.causal = both.spec_all.causal = Causal::none;
  both.spec.mask_expression = both.spec_all.mask_expression = expression::tree_mask(tree);
  both.expect_same();
}

TEST(Prefix, TakesPackedQueriesOverPages) {
  Both both;
  std::vector<int> offsets = {0, 5, 6, 12}, table = {2, 0, 1};
  both.spec.cu_seqlens_q = both.spec_all.cu_seqlens_q =
      Tensor::contiguous(offsets.data(), DType::int32, {kBatch + 1});
  both.spec.block_table = both.spec_all.block_table =
      Tensor::contiguous(table.data(), DType::int32, {kBatch, 1});
  both.t.q = both.all.q = both.q.bshd(1, kBatch * kQueries, kHeads, kDim);
  both.t.o = both.o.bshd(1, kBatch * kQueries, kHeads, kDimV);
  both.all.o = both.o_all.bshd(1, kBatch * kQueries, kHeads, kDimV);
  both.t.lse =
      Tensor::contiguous(both.lse.data.data(), DType::float32, {kHeads, kBatch * kQueries});
  both.all.lse =
      Tensor::contiguous(both.lse_all.data.data(), DType::float32, {kHeads, kBatch * kQueries});
  both.expect_same();
}

TEST(Prefix, TakesItsWorkspaceFromTheCaller) {
  Both both;
  const PrefixPlan plan = plan_prefix(both.t, both.spec);
  std::vector<unsigned char> memory(static_cast<std::size_t>(plan.workspace_bytes) + 256);
  const auto at = (reinterpret_cast<std::uintptr_t>(memory.data()) + 255) / 256 * 256;
  Launch launch;
  launch.workspace = reinterpret_cast<void*>(at);
  launch.workspace_bytes = plan.workspace_bytes;
  EXPECT_EQ(forward_prefix(both.t, both.spec, launch).workspace_bytes, plan.workspace_bytes);
  launch.workspace_bytes -= 1;
  EXPECT_THROW(forward_prefix(both.t, both.spec, launch), InvalidArgument);
}

std::string message(void (*spoil)(Both&)) {
  Both both;
  spoil(both);
  try {
    forward_prefix(both.t, both.spec);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was wrong";
}

TEST(Prefix, NamesTheArgument) {
  const auto expect = [](const char* part, void (*spoil)(Both&)) {
    const std::string what = message(spoil);
    EXPECT_NE(what.find(part), std::string::npos) << what;
  };
  expect("window is given", [](Both& b) { b.spec.window.left = 3; });
  expect("deterministic is given", [](Both& b) { b.spec.deterministic = true; });
  expect("dropout is given", [](Both& b) { b.spec.dropout.p = 0.5; });
  expect("top_left", [](Both& b) { b.spec.causal = Causal::top_left; });
  expect("k_prefix is", [](Both& b) { b.t.k_prefix.sizes[0] = 2; });
  expect("k_prefix is", [](Both& b) { b.t.k_prefix.sizes[1] = 1; });
  expect("v_prefix is", [](Both& b) { b.t.v_prefix.sizes[2] -= 1; });
  expect("its batch and sequence axes", [](Both& b) {
    b.t.q.strides = {kHeads * kQueries * kDim, kQueries * kDim, kDim, 1};
  });
}

TEST(Prefix, IsInTheCApi) {
  Both both;
  const auto give = [](const Tensor& from) {
    tw_tensor to = TW_INIT(tw_tensor);
    to.data = from.data;
    to.dtype = static_cast<std::int32_t>(from.dtype);
    to.rank = from.rank;
    for (std::size_t n = 0; n < 4; ++n)
      to.sizes[n] = from.sizes[n], to.strides[n] = from.strides[n];
    return to;
  };
  tw_prefix_args args = TW_INIT(tw_prefix_args);
  args.q = give(both.t.q), args.k_prefix = give(both.t.k_prefix);
  args.v_prefix = give(both.t.v_prefix), args.k = give(both.t.k), args.v = give(both.t.v);
  args.o = give(both.t.o), args.lse = give(both.t.lse);
  tw_spec spec = TW_INIT(tw_spec);
  spec.causal = TW_CAUSAL_BOTTOM_RIGHT;
  spec.key_lengths = give(both.spec.key_lengths);
  tw_plan plan = TW_INIT(tw_plan), planned = TW_INIT(tw_plan);
  ASSERT_EQ(tw_plan_forward_prefix(&args, &spec, nullptr, &planned), TW_OK) << tw_last_error();
  ASSERT_EQ(tw_forward_prefix(&args, &spec, nullptr, &plan), TW_OK) << tw_last_error();
  EXPECT_EQ(plan.workspace_bytes, planned.workspace_bytes);
  EXPECT_NE(std::string(plan.kernel).find('+'), std::string::npos);
  Both cpp;
  forward_prefix(cpp.t, cpp.spec);
  EXPECT_EQ(both.o.data, cpp.o.data);
  args.k_prefix.sizes[0] = 2;
  EXPECT_EQ(tw_forward_prefix(&args, &spec, nullptr, nullptr), TW_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tilewise
