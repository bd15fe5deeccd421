#include "expression/block_map.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "expression/interpret.h"
#include "expression/intervals.h"
#include "expression/lower.h"
#include "harness/random_expression.h"
#include "problem/blocks.h"
#include "problem/listed_blocks.h"

namespace tilewise::expression {
namespace {

/// A problem of which nothing but its lengths, heads and positions matters.
Problem problem_of(std::int64_t seq_q, std::int64_t seq_k, std::int64_t batch = 1,
                   std::int64_t heads = 1) {
  Problem p;
  p.batch = batch;
  p.heads_q = p.heads_k = heads;
  p.seq_q = p.total_q = seq_q;
  p.seq_k = p.total_k = seq_k;
  return p;
}

/// 0 empty, 1 partial, 2 full: what every pair of a block says.
int truth(const Problem& p, const Function& mask, std::int64_t b, std::int64_t h, std::int64_t i0,
          std::int64_t j0, const BlockMap& map) {
  Interpreter interpreter(*mask.program, mask.captures);
  const Sequence s = p.sequence(b);
  bool any = false;
  bool all = true;
  for (std::int64_t i = i0; i < std::min(i0 + map.block_q, s.q_length); ++i) {
    const KeyRange keys = p.visible_keys(s, i);
    for (std::int64_t j = j0; j < std::min(j0 + map.block_k, s.k_length); ++j) {
      interpreter.turn_to({b, h, i, j, s.q_length, s.k_length, 0.0});
      const bool sees =
          j >= keys.begin && j < keys.end && interpreter.boolean(mask.program->result);
      any = any || sees;
      all = all && sees;
    }
  }
  return !any ? 0 : all ? 2 : 1;
}

void expect_exact(const Problem& p, const Function& mask, std::int64_t block_q,
                  std::int64_t block_k, const std::string& text) {
  const BlockMap map = make_block_map(p, mask, block_q, block_k);
  const BlockList list = map.list();
  ASSERT_EQ(map.row_offsets.size(),
            static_cast<std::size_t>(map.batch * map.heads * (map.query_blocks + 1)));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t row = 0; row < map.query_blocks; ++row) {
        const ListedBlocks listed(list, b, h, row);
        std::int64_t n = 0;
        for (std::int64_t column = 0; column < ceil_div(p.seq_k, map.block_k); ++column) {
          const bool is_listed = n < listed.count() && listed.block(n) == column;
          const int found = !is_listed ? 0 : listed.full(n) ? 2 : 1;
          if (is_listed) ++n;
          ASSERT_EQ(found, truth(p, mask, b, h, row * map.block_q, column * map.block_k, map))
              << text << " b " << b << " h " << h << " row " << row << " column " << column;
        }
        ASSERT_EQ(n, listed.count()) << text;
      }
    }
  }
}

/// Captured tensors of masks that people use.
struct Zoo {
  static constexpr std::int64_t kRows = 200;
  std::vector<std::int32_t> documents, codes, topk;
  std::vector<float> floats;
  std::vector<std::uint8_t> allowed;
  std::vector<Captured> captures;

  Zoo() {
    for (std::int64_t i = 0; i < kRows; ++i) {
      documents.push_back(static_cast<std::int32_t>(i < 3 ? 0 : i < 77 ? 1 : i < 150 ? 2 : 3));
      codes.push_back(static_cast<std::int32_t>((i * 7919) % 1024));
      floats.push_back(0.25F * static_cast<float>(i % 40));
      allowed.push_back(i / 50 % 2 == 0 ? 1 : 0);
    }
    topk = {0, 2, 3, 1, 2, 5, 0, 6, 4, 3, 6, 1};  // (2, 2, 3)
    const auto integers = [](std::vector<std::int32_t>& values,
                             std::initializer_list<std::int64_t> sizes) {
      return Tensor::contiguous(values.data(), DType::int32, sizes);
    };
    captures = {Captured("doc", integers(documents, {kRows})),
                Captured("code", integers(codes, {kRows})),
                Captured("top", integers(topk, {2, 2, 3})),
                Captured("x", Tensor::contiguous(floats.data(), DType::float32, {kRows})),
                Captured("ok", Tensor::contiguous(allowed.data(), DType::boolean, {kRows}))};
  }
};

const char* const kMasks[] = {
    "true",
    "false",
    "i >= j",
    "i - j < 20 & i >= j",
    "i - j < 20 | j < 10",
    "doc[i] == doc[j]",
    "doc[i] == doc[j] & i >= j",
    "i // 16 >= j // 16",
    "(i - j) % 3 == 0",
    "abs(i - j) <= 8 | i % 50 == 0 | j < 5",
    "abs(i // 14 - j // 14) <= 1 & abs(i % 14 - j % 14) <= 3",
    "(i >> 4) == (j >> 4)",
    "(i & 48) == (j & 48)",
    "((i ^ j) & 32) == 0",
    "ok[i] & ok[j]",
    "x[j] < 5.0 + 0.01 * i",
    "x[j] * x[j] - x[i] > -3.0",
    "where(h == 0, i >= j, doc[i] != doc[j])",
    "any(3, top[h, b, lane] == j // 32)",
    "sum(3, where(top[h, b, lane] == j // 32, 1, 0)) == 0",
    "j >= i - 2 * b - h * 30 & j < i + 10",
    "doc[i - 190] == doc[j]",
    "exp(-0.01 * abs(i - j)) > 0.8",
    "j < key_length // 2 | i > query_length - 3",
    "code[j] > 1000",
    "floor(0.1 * j) == floor(0.1 * i)",
};

TEST(BlockMap, IsExactForTheMasksThatPeopleUse) {
  Zoo zoo;
  for (const char* text : kMasks) {
    const Function mask = function_of(Expression::parse(text, zoo.captures));
    expect_exact(problem_of(Zoo::kRows, Zoo::kRows, 2, 2), mask, 32, 32, text);
    expect_exact(problem_of(130, 190, 2, 2), mask, 16, 64, text);
    expect_exact(problem_of(77, 200), mask, 7, 50, text);
  }
}

TEST(BlockMap, HasPositionLengthsAndTheCallersListInIt) {
  Zoo zoo;
  std::vector<std::int32_t> lengths{200, 61};
  for (const char* text : {"true", "doc[i] == doc[j]", "j % 64 < 40 | h == 1"}) {
    const Function mask = function_of(Expression::parse(text, zoo.captures));
    Problem p = problem_of(Zoo::kRows, Zoo::kRows, 2, 2);
    p.causal = Causal::bottom_right;
    p.right = 0;
    expect_exact(p, mask, 32, 32, text);
    p.left = 70;
    p.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {2});
    expect_exact(p, mask, 32, 16, text);
    // A list that leaves out what the map would have.
    std::vector<std::int32_t> offsets{0, 1, 3, 3, 5, 6, 8, 8}, index{0, 0, 1, 1, 3, 4, 2, 5};
    p.block_list = {.row_offsets = Tensor::contiguous(offsets.data(), DType::int32, {1, 1, 8}),
                    .block_index = Tensor::contiguous(index.data(), DType::int32, {8}),
                    .block_full = {},
                    .block_q = 32,
                    .block_k = 32};
    p.block_list.row_offsets.strides[0] = p.block_list.row_offsets.strides[1] = 0;
    const BlockMap cut = make_block_map(p, mask, 32, 32);
    Problem without = p;
    without.block_list = {};
    const BlockMap whole = make_block_map(without, mask, 32, 32);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t row = 0; row < cut.query_blocks; ++row) {
          std::vector<std::pair<std::int64_t, bool>> expected, found;
          const ListedBlocks own(p.block_list, b, h, row), all(whole.list(), b, h, row),
              both(cut.list(), b, h, row);
          for (std::int64_t n = 0; n < all.count(); ++n) {
            const std::int64_t at = own.first_from(all.block(n));
            if (at < own.count() && own.block(at) == all.block(n)) {
              expected.emplace_back(all.block(n), all.full(n));
            }
          }
          for (std::int64_t n = 0; n < both.count(); ++n) {
            found.emplace_back(both.block(n), both.full(n));
          }
          EXPECT_EQ(found, expected) << text;
        }
      }
    }
  }
}

TEST(BlockMap, HasNoFullBlocksBesideABoolMask) {
  Problem p = problem_of(130, 200);
  bool pairs[1] = {};  // not read
  p.mask = Tensor::contiguous(pairs, DType::boolean, {1, 1, 1, 1});
  const Function mask = function_of(Expression::parse("j != 3"));
  for (const std::uint8_t full : make_block_map(p, mask, 64, 64).block_full) EXPECT_EQ(full, 0);
}

TEST(BlockMap, LosesNoPairOfRandomMasks) {
  const Draws draws(300);
  int mixed = 0;
  for (int n = 1; n <= draws.count; ++n) {
    const std::uint64_t seed = draws.seed + static_cast<std::uint64_t>(n);
    RandomCaptures tensors(seed);
    RandomExpression random(seed, tensors);
    const Expression drawn = random.boolean(5);
    const Function mask = function_of(drawn);
    const Node& result = mask.program->nodes[static_cast<std::size_t>(mask.program->result)];
    if ((result.depends & kScore) != 0) continue;
    expect_exact(problem_of(40, 50, 2, 2), mask, 8, 8, drawn.text());
    if (::testing::Test::HasFatalFailure()) return;
    const BlockMap map = make_block_map(problem_of(40, 50), mask, 8, 8);
    if (!map.block_index.empty() && map.block_index.size() < 35) ++mixed;
  }
  EXPECT_GT(mixed, draws.count / 20);
}

TEST(Intervals, HoldEveryValueOfRandomFormulas) {
  std::mt19937 generator(7);
  const Draws draws(300);
  for (int n = 1; n <= draws.count; ++n) {
    const std::uint64_t seed = draws.seed + static_cast<std::uint64_t>(n);
    RandomCaptures tensors(seed);
    RandomExpression random(seed, tensors);
    const Expression drawn = seed % 2 == 0 ? random.integer(5) : random.real(5, false);
    const Function f = function_of(drawn);
    const Node& result = f.program->nodes[static_cast<std::size_t>(f.program->result)];
    if ((result.depends & kScore) != 0) continue;
    const RangeTables tables(f);
    Intervals intervals(*f.program, tables);
    Interpreter interpreter(*f.program, f.captures);
    for (int box = 0; box < 20; ++box) {
      const auto draw = [&](int most) { return static_cast<std::int64_t>(generator() % most); };
      const Head head{draw(2), draw(4), 40, 50};
      const std::int64_t i = draw(30);
      const std::int64_t j = draw(30);
      const Box at{i, i + 1 + draw(10), j, j + 1 + draw(10)};
      intervals.turn_to(head);
      const Range range = intervals.over(at);
      for (std::int64_t q = at.query; q < at.query_end; ++q) {
        for (std::int64_t k = at.key; k < at.key_end; ++k) {
          interpreter.turn_to({head.b, head.h, q, k, 40, 50, 0.0});
          if (result.type == Type::real) {
            const double value = interpreter.real(f.program->result);
            const bool inside =
                std::isnan(value) ? range.nan : value >= range.least && value <= range.most;
            ASSERT_TRUE(inside) << drawn.text() << " is " << value << ", not in " << range.least
                                << " to " << range.most;
          } else {
            const std::int64_t value = interpreter.integer(f.program->result);
            ASSERT_TRUE(value >= range.low && value <= range.high) << drawn.text();
            ASSERT_EQ(static_cast<std::uint32_t>(value) & range.known, range.bits) << drawn.text();
          }
        }
      }
    }
  }
}

TEST(BlockMap, OfAMillionTokensGrowsWithWhatIsVisible) {
  constexpr std::int64_t kTokens = 1 << 20;
  const Function mask = function_of(Expression::parse("i >= j & (i - j < 1024 | j < 256)"));
  const auto begin = std::chrono::steady_clock::now();
  const BlockMap map = make_block_map(problem_of(kTokens, kTokens), mask, 128, 128);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(elapsed.count(), 30.0);  // 67 million pairs of blocks take minutes one by one
  EXPECT_LT(map.block_index.size(), 8192U * 12);
  EXPECT_GT(map.block_index.size(), 8192U * 10);
}

}  // namespace
}  // namespace tilewise::expression
