// tree_mask(): what it shows, and where kernels know its words again.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 2, kQueries = 40, kKeys = 57, kDim = 4;

/// Dense queries, or packed ones of 7 and 33 rows, whose bits are drawn.
struct Call {
  std::mt19937 random{9};
  std::vector<float> memory = std::vector<float>(4096);
  std::vector<float> q, k, v, o = std::vector<float>(kBatch * kQueries * kHeads * kDim), same = o;
  std::vector<std::int32_t> words, lengths = {57, 44};
  AttentionSpec spec;

  explicit Call(std::int64_t width = 2) {
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v}) {
      t->resize(static_cast<std::size_t>(kBatch * kKeys * kHeads * kDim));
      for (float& x : *t) x = normal(random);
    }
    words.resize(static_cast<std::size_t>(kBatch * kQueries * width));
    for (std::int32_t& word : words) word = static_cast<std::int32_t>(random());
    spec.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {kBatch});
  }
  Tensor by_batch() {
    return Tensor::contiguous(
        words.data(), DType::int32,
        {kBatch, kQueries, static_cast<std::int64_t>(words.size()) / (kBatch * kQueries)});
  }
  Tensor shared() {
    Tensor t = by_batch();
    return Tensor::contiguous(words.data(), DType::int32, {t.sizes[1], t.sizes[2]});
  }
  ForwardTensors tensors(std::vector<float>& to) {
    return {.q = Tensor::bshd(q.data(), DType::float32, kBatch, kQueries, kHeads, kDim),
            .k = Tensor::bshd(k.data(), DType::float32, kBatch, kKeys, kHeads, kDim),
            .v = Tensor::bshd(v.data(), DType::float32, kBatch, kKeys, kHeads, kDim),
            .o = Tensor::bshd(to.data(), DType::float32, kBatch, kQueries, kHeads, kDim)};
  }
  Problem problem() { return make_problem(tensors(o), spec, Purpose::run); }
  bool bit(std::int64_t b, std::int64_t i, std::int64_t t, std::int64_t width) const {
    const auto word = words[static_cast<std::size_t>((b * kQueries + i) * width + t / 32)];
    return (word >> (t % 32) & 1) != 0;
  }
};

TEST(TreeMask, ShowsWhatItsBitsSay) {
  Call call;
  call.spec.mask_expression = expression::tree_mask(call.by_batch());
  forward(call.tensors(call.o), call.spec);
  std::vector<unsigned char> mask(kBatch * kQueries * kKeys);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const std::int64_t before = call.lengths[static_cast<std::size_t>(b)] - kQueries;
    for (std::int64_t i = 0; i < kQueries; ++i) {
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const std::int64_t t = j - before;
        mask[static_cast<std::size_t>((b * kQueries + i) * kKeys + j)] =
            t < 0 || (t <= i && call.bit(b, i, t, 2));
      }
    }
  }
  AttentionSpec by_mask = call.spec;
  by_mask.mask_expression = {};
  by_mask.mask = Tensor::contiguous(mask.data(), DType::boolean, {kBatch, 1, kQueries, kKeys});
  forward(call.tensors(call.same), by_mask);
  for (std::size_t n = 0; n < call.o.size(); ++n) EXPECT_NEAR(call.o[n], call.same[n], 1e-6) << n;
}

TEST(TreeMask, IsKnownAgain) {
  for (const std::int64_t width : {1, 2, 4}) {
    Call call(width);
    call.spec.mask_expression = expression::tree_mask(call.by_batch());
    Problem p = call.problem();
    EXPECT_EQ(p.tree.data, call.words.data()) << width;
    EXPECT_EQ(p.tree.sizes[2], width);
    EXPECT_TRUE(p.mask_function.defined());
    EXPECT_EQ(p.causal, Causal::bottom_right);
    call.spec.mask_expression = expression::tree_mask(call.shared());
    p = call.problem();
    EXPECT_EQ(p.tree.sizes[0], kBatch);
    EXPECT_EQ(p.tree.strides[0], 0);
    EXPECT_EQ(p.tree.strides[1], width);
  }
  // What python/tilewise/_tree.py writes, beside a window and causal.
  Call call;
  const std::vector<Captured> words = {Captured("c0", call.by_batch())};
  call.spec.window.left = 30;
  call.spec.causal = Causal::bottom_right;
  call.spec.mask_expression = Expression::parse(
      "t0 = (key_length - query_length); t1 = (j - t0); ((j <= (i + t0)) & ((t1 < 0) | (((c0[b, i, "
      "((t1 >> 5) & 1)] >> (t1 & 31)) & 1) == 1)))",
      words);
  EXPECT_TRUE(call.problem().tree.defined());
}

TEST(TreeMask, NothingElseIsTakenForOne) {
  Call call;
  const std::vector<Captured> words = {Captured("c", call.by_batch())};
  const auto taken = [&](const std::string& shown, const std::string& rest) {
    call.spec.mask_expression = Expression::parse(
        "t = j - (key_length - query_length); (t < 0 | " + shown + ")" + rest, words);
    return call.problem().tree.defined();
  };
  const std::string causal = " & j <= i + (key_length - query_length)";
  EXPECT_TRUE(taken("(c[b, i, (t >> 5) & 1] >> (t & 31) & 1) == 1", causal));
  EXPECT_FALSE(taken("(c[b, i, (t >> 5) & 1] >> (t & 31) & 1) == 1", ""));
  EXPECT_FALSE(taken("(c[b, i, (t >> 5) & 1] >> (t & 31) & 1) == 0", causal));
  EXPECT_FALSE(taken("(c[b, i, (t >> 4) & 1] >> (t & 31) & 1) == 1", causal));
  EXPECT_FALSE(taken("(c[b, i, (t >> 5) & 1] >> (t & 31) & 1) == 1", causal + " & h < 1"));
}

TEST(TreeMask, NamesWhatIsWrongWithItsWords) {
  std::vector<std::int32_t> words(96);
  const auto message = [&](const Tensor& t) {
    try {
      expression::tree_mask(t);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  for (const Tensor& t : {Tensor::contiguous(words.data(), DType::int32, {8, 3}),
                          Tensor::contiguous(words.data(), DType::int32, {96}),
                          Tensor::contiguous(words.data(), DType::int64, {8, 2}),
                          Tensor::contiguous(words.data(), DType::int32, {1, 64})}) {
    EXPECT_EQ(message(t).find("words is "), 0U) << message(t);
  }
  // Fewer rows than queries.
  Call call;
  Tensor few = call.shared();
  few.sizes[0] = kQueries - 1;
  call.spec.mask_expression = expression::tree_mask(few);
  EXPECT_THROW(call.problem(), InvalidArgument);
}

}  // namespace
}  // namespace tilewise
