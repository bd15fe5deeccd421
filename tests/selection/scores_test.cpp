// Scores of blocks with gradients, and routing by clusters, on the CPU: against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "expect_parts.h"
#include "tilewise/error.h"
#include "tilewise/selection.h"

namespace tilewise {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kQueries = 50, kKeys = 70, kDim = 6;

std::vector<float> draw(std::int64_t count) {
  static std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

struct Inputs {
  std::vector<float> q = draw(kBatch * kHeads * kQueries * kDim);
  std::vector<float> k = draw(kBatch * kKeyHeads * kKeys * kDim);
  std::vector<std::int32_t> lengths = {kKeys, 41};

  /// Moves the tokens of a block apart, so that a step changes no maximum and no minimum.
  void spread() {
    for (std::vector<float>* x : {&q, &k}) {
      for (std::size_t n = 0; n < x->size(); ++n) {
        const std::size_t place = (n / kDim * 7 + n % kDim * 3) % 16;
        (*x)[n] = 0.3F * static_cast<float>(place) - 2.2F + 0.1F * std::tanh((*x)[n]);
      }
    }
  }
  Tensor tq() { return of_queries(q); }
  Tensor tk() { return of_keys(k); }
  static Tensor of_queries(std::vector<float>& x) {
    return Tensor::contiguous(x.data(), DType::float32, {kBatch, kHeads, kQueries, kDim});
  }
  static Tensor of_keys(std::vector<float>& x) {
    return Tensor::contiguous(x.data(), DType::float32, {kBatch, kKeyHeads, kKeys, kDim});
  }
  Tensor key_lengths() { return Tensor::contiguous(lengths.data(), DType::int32, {kBatch}); }
};

BlockSelection selection(Inputs& in, bool causal) {
  return {.block_q = 16,
          .block_k = 8,
          .weights = {.mean = 0.5, .maximum = 1.0, .minimum = 2.0, .variance = 0.25},
          .causal = causal,
          .key_lengths = in.key_lengths(),
          .count = 3,
          .keep_diagonal = false,
          .keep_first = false};
}
constexpr std::int64_t kRows = 4, kColumns = 9, kScores = kBatch * kHeads * kRows * kColumns;
Tensor of_scores(std::vector<float>& x) {
  return Tensor::contiguous(x.data(), DType::float32, {kBatch, kHeads, kRows, kColumns});
}

TEST(BlockScores, AreThoseThatSelectBlocksCompares) {
  Inputs in;
  for (const bool causal : {false, true}) {
    const BlockSelection by = selection(in, causal);
    std::vector<float> scores(kScores, NAN);
    score_blocks(in.tq(), in.tk(), by, of_scores(scores));
    std::vector<std::uint8_t> mask(kScores, 9);
    select_block_mask(
        in.tq(), in.tk(), by,
        Tensor::contiguous(mask.data(), DType::uint8, {kBatch, kHeads, kRows, kColumns}));
    for (std::int64_t row = 0; row < kScores; row += kColumns) {
      std::vector<float> sorted(scores.begin() + row, scores.begin() + row + kColumns);
      std::sort(sorted.rbegin(), sorted.rend());
      for (std::int64_t j = row; j < row + kColumns; ++j) {
        const bool best = std::isfinite(scores[j]) && scores[j] >= sorted[2];
        EXPECT_EQ(mask[j], best ? 1 : 0) << "score " << j << ", causal " << causal;
      }
    }
  }
}

TEST(BlockScores, GradientsAreFiniteDifferences) {
  Inputs in;
  in.spread();
  for (const bool causal : {false, true}) {
    const BlockSelection by = selection(in, causal);
    std::vector<float> d_scores = draw(kScores);
    std::vector<float> dq(in.q.size(), NAN), dk(in.k.size(), NAN);
    score_blocks_backward(in.tq(), in.tk(), by, of_scores(d_scores), Inputs::of_queries(dq),
                          Inputs::of_keys(dk));
    const auto loss = [&] {
      std::vector<float> scores(kScores, NAN);
      score_blocks(in.tq(), in.tk(), by, of_scores(scores));
      double sum = 0.0;
      for (std::size_t n = 0; n < scores.size(); ++n) {
        if (std::isfinite(scores[n])) {
          sum += static_cast<double>(scores[n]) * static_cast<double>(d_scores[n]);
        }
      }
      return sum;
    };
    for (const auto& [x, dx] : {std::pair{&in.q, &dq}, {&in.k, &dk}}) {
      for (std::size_t n = 0; n < x->size(); n += 37) {
        constexpr float kStep = 0.00390625F;
        const float old = (*x)[n];
        (*x)[n] = old + kStep;
        const double above = loss();
        (*x)[n] = old - kStep;
        const double below = loss();
        (*x)[n] = old;
        const double slope = (above - below) / (2.0 * static_cast<double>(kStep));
        EXPECT_NEAR(static_cast<double>((*dx)[n]), slope, 2e-2 * (1.0 + std::abs(slope)));
      }
    }
    // Keys past a length get nothing.
    for (std::int64_t i = 41; i < kKeys; ++i) {
      EXPECT_EQ(dk[static_cast<std::size_t>(((kKeyHeads + 1) * kKeys + i) * kDim)], 0.0F);
    }
  }
}

TEST(ClusterRoute, SortsAndPairsTokenByToken) {
  Inputs in;
  constexpr std::int64_t kClusters = 5;
  std::vector<float> centroids = draw(kKeyHeads * kClusters * kDim);
  const ClusterRouting by{
      .block_q = 16, .block_k = 8, .top = 2, .threshold = 0.9, .key_lengths = in.key_lengths()};
  std::vector<std::int32_t> queries(kBatch * kHeads * kQueries, -1);
  std::vector<std::int32_t> keys(kBatch * kKeyHeads * kKeys, -1);
  std::vector<std::uint8_t> mask(kScores, 9);
  cluster_route(in.tq(), in.tk(),
                Tensor::contiguous(centroids.data(), DType::float32, {kKeyHeads, kClusters, kDim}),
                by, Tensor::contiguous(queries.data(), DType::int32, {kBatch, kHeads, kQueries}),
                Tensor::contiguous(keys.data(), DType::int32, {kBatch, kKeyHeads, kKeys}),
                Tensor::contiguous(mask.data(), DType::uint8, {kBatch, kHeads, kRows, kColumns}));

  const auto label = [&](const float* x, std::int64_t head) {
    std::int64_t best = 0;
    double highest = -2.0;
    for (std::int64_t c = 0; c < kClusters; ++c) {
      const float* axis = centroids.data() + (head * kClusters + c) * kDim;
      double dot = 0.0, xx = 0.0, aa = 0.0;
      for (std::int64_t e = 0; e < kDim; ++e) {
        dot += static_cast<double>(x[e]) * static_cast<double>(axis[e]);
        xx += static_cast<double>(x[e]) * static_cast<double>(x[e]);
        aa += static_cast<double>(axis[e]) * static_cast<double>(axis[e]);
      }
      if (dot / std::sqrt(xx * aa) > highest) best = c, highest = dot / std::sqrt(xx * aa);
    }
    return best;
  };
  for (std::int64_t pair = 0; pair < kBatch * kHeads; ++pair) {
    const std::int64_t of_keys = pair / kHeads * kKeyHeads + pair % kHeads / 2;
    const std::int64_t length = in.lengths[static_cast<std::size_t>(pair / kHeads)];
    std::vector<std::int64_t> of_q, of_k;  // labels in the order that is found
    std::set<std::int32_t> met;
    for (std::int64_t n = 0; n < kQueries; ++n) {
      const std::int32_t i = queries[static_cast<std::size_t>(pair * kQueries + n)];
      EXPECT_TRUE(met.insert(i).second);
      of_q.push_back(label(in.q.data() + (pair * kQueries + i) * kDim, of_keys % kKeyHeads));
    }
    for (std::int64_t n = 0; n < kKeys; ++n) {
      const std::int32_t j = keys[static_cast<std::size_t>(of_keys * kKeys + n)];
      EXPECT_EQ(j < length, n < length);
      if (n < length)
        of_k.push_back(label(in.k.data() + (of_keys * kKeys + j) * kDim, of_keys % kKeyHeads));
    }
    EXPECT_TRUE(std::is_sorted(of_q.begin(), of_q.end()));
    EXPECT_TRUE(std::is_sorted(of_k.begin(), of_k.end()));
    const auto shares = [](const std::vector<std::int64_t>& labels, std::int64_t all,
                           std::int64_t block, std::int64_t size) {
      std::vector<double> share(kClusters);
      const std::int64_t count = std::min(size, all - block * size);
      for (std::int64_t n = block * size; n < block * size + count; ++n) {
        if (n < static_cast<std::int64_t>(labels.size()))
          share[static_cast<std::size_t>(labels[static_cast<std::size_t>(n)])] +=
              1.0 / static_cast<double>(count);
      }
      return share;
    };
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::vector<double> mine = shares(of_q, kQueries, row, by.block_q);
      int extra = 0, seen = 0;
      for (std::int64_t j = 0; j < kColumns; ++j) {
        const std::vector<double> theirs = shares(of_k, kKeys, j, by.block_k);
        bool expected = false;
        for (std::size_t c = 0; c < kClusters; ++c) {
          int larger = 0;
          for (std::size_t o = 0; o < kClusters; ++o) {
            larger += mine[o] > mine[c] || (mine[o] == mine[c] && o < c) ? 1 : 0;
          }
          expected =
              expected || (larger < 2 && mine[c] > 0.9 / kClusters && theirs[c] > 0.9 / kClusters);
        }
        const int found = mask[static_cast<std::size_t>((pair * kRows + row) * kColumns + j)];
        EXPECT_LE(expected ? 1 : 0, found);
        extra += found - (expected ? 1 : 0);
        seen += found;
      }
      EXPECT_LE(extra, 1);  // the key block that shares the most
      EXPECT_GE(seen, 1);
    }
  }
}

TEST(ClusterRoute, NamesBadInput) {
  Inputs in;
  std::vector<float> centroids(12);
  const Tensor c = Tensor::contiguous(centroids.data(), DType::float32, {2, 1, kDim});
  EXPECT_THROW(cluster_route(in.tq(), in.tk(), c, {.top = 2}, {}, {}, {}), InvalidArgument);
  EXPECT_THROW(cluster_route(in.tq(), in.tk(), {}, {.top = 1}, {}, {}, {}), InvalidArgument);
  EXPECT_THROW(cluster_route(in.tq(), in.tk(), c, {.top = 1, .threshold = -1.0}, {}, {}, {}),
               InvalidArgument);
  EXPECT_THROW(score_blocks(in.tq(), in.tk(), {}, c), InvalidArgument);
}

TEST(ClusterRoute, NoHeadsAreNoError) {
  Inputs in;
  const Tensor none = Tensor::contiguous(nullptr, DType::float32, {kBatch, 0, kQueries, kDim});
  const auto empty = [](DType dtype, std::initializer_list<std::int64_t> sizes) {
    return Tensor::contiguous(nullptr, dtype, sizes);
  };
  cluster_route(none, none, empty(DType::float32, {0, 1, kDim}), {.top = 1},
                empty(DType::int32, {kBatch, 0, kQueries}),
                empty(DType::int32, {kBatch, 0, kQueries}), empty(DType::uint8, {kBatch, 0, 1, 1}));
}

/// Outputs have memory of their own, which a refused call leaves.
TEST(BlockScores, MemoryIsThereAndSharesNothing) {
  Inputs in;
  std::vector<float> scores(kScores, 1.0F), dq(in.q.size(), 7.0F), dk(in.k.size(), 7.0F);
  const BlockSelection by = selection(in, false);
  const auto told = [&](std::vector<float>& ds, const Tensor& to_q, const Tensor& to_k) {
    try {
      score_blocks_backward(in.tq(), in.tk(), by, of_scores(ds), to_q, to_k);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(dq, std::vector<float>(dq.size(), 7.0F));
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const Tensor of_q = Inputs::of_queries(dq);
  Tensor of_k = Inputs::of_keys(dk);
  expect_parts(told(scores, of_q, of_q), {"dk is", "expected float32 with the sizes"});
  expect_parts(told(scores, of_q, in.tk()), {"dk is", "memory with k"});
  of_k.strides[2] = 0;
  expect_parts(told(scores, of_q, of_k), {"dk is", "overlap"});
  of_k = Inputs::of_keys(dk);
  of_k.data = nullptr;
  expect_parts(told(scores, of_q, of_k), {"dk is", "its data pointer is null"});
  of_k = Inputs::of_keys(dk);
  of_k.device = {DeviceType::cuda, 0};
  expect_parts(told(scores, of_q, of_k), {"dk is", "q's device"});
  EXPECT_EQ(told(scores, of_q, Inputs::of_keys(dk)), "accepted");
  EXPECT_THROW(score_blocks(in.tq(), in.tk(), by, of_scores(in.q)), InvalidArgument);
}

}  // namespace
}  // namespace tilewise
