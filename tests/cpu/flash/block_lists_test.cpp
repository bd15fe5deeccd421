// Block lists in the flash kernels of the CPU: what cases/block_lists.txt cannot say. Lists whose
// memory is laid out in other ways, and how many scores are worked out.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "problem/listed_blocks.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// One batch entry, float32, heads x rows x 16.
struct Example {
  static constexpr std::int64_t kDim = 16;
  std::int64_t heads, rows;
  std::vector<float> q, k, v, d_o, o, lse, dq, dk, dv;
  AttentionSpec spec;

  Example(std::int64_t head_count, std::int64_t row_count) : heads(head_count), rows(row_count) {
    std::mt19937 generator(3);
    std::normal_distribution<float> normal;
    const auto elems = static_cast<std::size_t>(heads * rows * kDim);
    for (auto* x : {&q, &k, &v, &d_o}) {
      x->resize(elems);
      for (float& value : *x) value = normal(generator);
    }
    for (auto* x : {&o, &dq, &dk, &dv}) x->assign(elems, kNan);
    lse.assign(static_cast<std::size_t>(heads * rows), kNan);
  }

  Tensor tensor(std::vector<float>& x) const {
    return Tensor::contiguous(x.data(), DType::float32, {1, heads, rows, kDim});
  }
  Tensor statistics() { return Tensor::contiguous(lse.data(), DType::float32, {1, heads, rows}); }
  void forward() {
    ForwardTensors t{tensor(q), tensor(k), tensor(v), tensor(o), statistics(), {}};
    tilewise::forward(t, spec, {}, {.implementation = "flash"});
  }
  void backward() {
    BackwardTensors t;
    t.q = tensor(q);
    t.k = tensor(k);
    t.v = tensor(v);
    t.o = tensor(o);
    t.lse = statistics();
    t.d_o = tensor(d_o);
    t.dq = tensor(dq);
    t.dk = tensor(dk);
    t.dv = tensor(dv);
    tilewise::backward(t, spec, {}, {.implementation = "flash"});
  }
};

Tensor integers(std::vector<std::int32_t>& values, std::initializer_list<std::int64_t> shape) {
  return Tensor::contiguous(values.data(), DType::int32, shape);
}

TEST(BlockLists, EntriesMayLieApartAndHeadsMayShareThem) {
  std::vector<std::int32_t> offsets{0, 2, 3, 5}, index{0, 2, 1, 0, 2};
  std::vector<std::int32_t> twice{0, 2, 3, 5, 0, 2, 3, 5};
  std::vector<std::int32_t> strided{0, -7, 2, -7, 1, -7, 0, -7, 2, -7};
  std::vector<std::uint8_t> full{1, 1, 1, 1, 1};
  Example plain(2, 90);
  plain.spec.block_list = {.row_offsets = integers(offsets, {1, 1, 4}),
                           .block_index = integers(index, {5}),
                           .block_full = Tensor::contiguous(full.data(), DType::uint8, {5}),
                           .block_q = 32,
                           .block_k = 32};
  plain.forward();
  plain.backward();
  Example apart(2, 90);
  apart.spec = plain.spec;
  apart.spec.block_list.block_index = integers(strided, {5});
  apart.spec.block_list.block_index.strides[0] = 2;
  apart.spec.block_list.row_offsets = integers(twice, {1, 2, 4});
  apart.forward();
  apart.backward();
  EXPECT_EQ(plain.o, apart.o);
  EXPECT_EQ(plain.dq, apart.dq);
  EXPECT_EQ(plain.dk, apart.dk);
  EXPECT_EQ(plain.dv, apart.dv);
}

TEST(BlockLists, KeyBlocksThatNobodyListsGetZeroGradients) {
  std::vector<std::int32_t> offsets{0, 1, 1, 2}, index{0, 2};
  Example e(1, 96);
  e.spec.block_list = {.row_offsets = integers(offsets, {1, 1, 4}),
                       .block_index = integers(index, {2}),
                       .block_full = {},
                       .block_q = 32,
                       .block_k = 32};
  e.forward();
  e.backward();
  for (std::size_t n = 0; n < e.dk.size(); ++n) {
    const bool unlisted = n / Example::kDim / 32 == 1;
    EXPECT_EQ(e.dk[n] == 0.0F, unlisted) << n;
    EXPECT_EQ(e.dv[n] == 0.0F, unlisted) << n;
    EXPECT_EQ(e.dq[n] == 0.0F, unlisted) << n;  // query block 1 lists nothing
    EXPECT_EQ(e.o[n] == 0.0F, unlisted) << n;
  }
  for (std::size_t i = 32; i < 64; ++i) {
    EXPECT_EQ(e.lse[i], -std::numeric_limits<float>::infinity());
  }
}

/// A list of `size`-blocks at a density, of two heads.
struct RandomList {
  std::vector<std::int32_t> offsets, index;
  std::int64_t listed = 0;

  RandomList(std::int64_t rows, std::int64_t size, double density) {
    std::mt19937 generator(5);
    std::uniform_real_distribution<double> uniform;
    const std::int64_t blocks = rows / size;
    for (int h = 0; h < 2; ++h) {
      for (std::int64_t row = 0; row < blocks; ++row) {
        offsets.push_back(static_cast<std::int32_t>(index.size()));
        for (std::int64_t column = 0; column < blocks; ++column) {
          if (uniform(generator) < density) index.push_back(static_cast<std::int32_t>(column));
        }
      }
      offsets.push_back(static_cast<std::int32_t>(index.size()));
    }
    listed = static_cast<std::int64_t>(index.size()) * size * size;
  }
  BlockList list(std::int64_t rows, std::int64_t size) {
    return {.row_offsets = integers(offsets, {1, 2, rows / size + 1}),
            .block_index = integers(index, {static_cast<std::int64_t>(index.size())}),
            .block_full = {},
            .block_q = size,
            .block_k = size};
  }
};

// A score function sees every score that is worked out, and only those.
TEST(BlockLists, ScoresThatNobodyListsAreNotWorkedOut) {
  constexpr std::int64_t kRows = 1024;
  for (const std::int64_t size : {16, 32, 64, 128, 256}) {
    for (const double density : {0.5, 0.1}) {
      Example e(2, kRows);
      RandomList list(kRows, size, density);
      e.spec.block_list = list.list(kRows, size);
      std::atomic<std::int64_t> scores{0};
      ScoreMod mod;
      mod.apply = [&](const ScoreTile& x) { scores += x.rows * x.cols; };
      mod.derivative = [](const ScoreTile&, float*) {};
      e.spec.score_mod = &mod;
      e.forward();
      EXPECT_EQ(scores, list.listed) << size << " forward";
      scores = 0;
      e.backward();
      EXPECT_EQ(scores, list.listed) << size << " backward";
    }
  }
}

TEST(BlockLists, ListedPairsAreCounted) {
  constexpr std::int64_t kRows = 256;
  Example e(2, kRows);
  RandomList list(kRows, 64, 0.5);
  e.spec.block_list = list.list(kRows, 64);
  const auto problem = [&] {
    ForwardTensors t{e.tensor(e.q), e.tensor(e.k), e.tensor(e.v), e.tensor(e.o), {}, {}};
    return make_problem(t, e.spec, Purpose::run);
  };
  EXPECT_EQ(problem().listed_pairs, static_cast<double>(list.listed));
  e.spec.causal = Causal::bottom_right;
  e.spec.window.left = 100;
  double expected = 0.0;
  const Problem p = problem();
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const ListedBlocks row(p.block_list, 0, h, i / 64);
      for (std::int64_t n = 0; n < row.count(); ++n) {
        for (std::int64_t j = 64 * row.block(n); j < 64 * (row.block(n) + 1); ++j) {
          if (j <= i && j >= i - 100) ++expected;
        }
      }
    }
  }
  EXPECT_EQ(p.listed_pairs, expected);
}

}  // namespace
}  // namespace tilewise
