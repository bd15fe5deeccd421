/// Two ways to say the same thing give the same result. What the CPU's kernels may refuse for now
/// (paged KV, block lists) is checked here on the reference at least.
#include <limits>
#include <numeric>

#include "contract/harness.h"
#include "reference/elements.h"

namespace tilewise::contract {
namespace {

/// CSR of the visible blocks of a (rows x cols) grid, the same for all heads.
struct Blocks {
  Owned offsets, index, full;
  BlockList list;
  Blocks(std::int64_t block_q, std::int64_t block_k,
         const std::vector<std::vector<std::int64_t>>& rows, const std::vector<bool>& full_flags) {
    std::vector<std::int64_t> at{0}, pairs;
    for (const auto& row : rows) {
      pairs.insert(pairs.end(), row.begin(), row.end());
      at.push_back(static_cast<std::int64_t>(pairs.size()));
    }
    offsets = Owned(DType::int32, {1, 1, static_cast<std::int64_t>(at.size())},
                    Values(at.begin(), at.end()));
    index = integers(pairs);
    full = booleans({static_cast<std::int64_t>(pairs.size())}, full_flags);
    list = {.row_offsets = offsets.tensor(),
            .block_index = index.tensor(),
            .block_full = full.tensor(),
            .block_q = block_q,
            .block_k = block_k};
  }
};

struct BlockCase {
  static constexpr std::int64_t kQueries = 40, kKeys = 50;
  Blocks blocks{
      16, 8, {{0, 1, 2, 3}, {}, {0, 4, 6}}, {true, false, false, false, true, false, false}};
  Owned mask;
  Trial with_blocks = trial(DType::float32, 2, 2, 1, kQueries, kKeys, 16, 24).fill(100);
  Trial with_mask = with_blocks;
  BlockCase() {
    with_blocks.spec.causal = Causal::bottom_right;
    with_blocks.spec.block_list = blocks.list;
    std::vector<bool> visible;
    const std::vector<std::vector<int>> state{
        {2, 1, 1, 1, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0}, {2, 0, 0, 0, 1, 0, 1}};
    for (std::int64_t i = 0; i < kQueries; ++i) {
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const int s = state[static_cast<std::size_t>(i / 16)][static_cast<std::size_t>(j / 8)];
        visible.push_back(s == 2 || (s == 1 && j <= i + kKeys - kQueries));
      }
    }
    mask = booleans({kQueries, kKeys}, visible);
    with_mask.spec.mask = mask.tensor();
  }
};

TEST_P(Forward, ABlockListEqualsItsMask) {
  BlockCase c;
  if (skips(c.with_blocks)) return;
  const Results r = run(c.with_blocks), expected = run(c.with_mask);
  expect_near(r.o, expected.o, 1e-6, "O");
  expect_near(r.lse, expected.lse, 1e-6, "LSE");
}

TEST_P(Forward, OneBlockOfAnySizeIsTheWholeTensor) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  Blocks all{kLargest, kLargest, {{0}}, {false}};
  Trial with_block = trial(DType::float32, 1, 2, 1, 20, 30, 16, 16).fill(101);
  const Trial without = with_block;
  with_block.spec.block_list = all.list;
  if (skips(with_block)) return;
  EXPECT_EQ(run(with_block).bits, run(without).bits);
}

TEST_P(Backward, ABlockListEqualsItsMask) {
  BlockCase c;
  if (skips(c.with_blocks)) return;
  const Results r = run(c.with_blocks), expected = run(c.with_mask);
  expect_near(r.dq, expected.dq, 1e-6, "dQ");
  expect_near(r.dk, expected.dk, 1e-6, "dK");
}

/// C099: pages out of order, entries past the length out of range, unused slots NaN.
TEST_P(Forward, C099PagesEqualTheDenseCache) {
  constexpr std::int64_t kPage = 16, kMaxPages = 4, kPages = 9, kHeads = 2, kDim = 16;
  const std::vector<std::int64_t> lengths{1, 16, 17, 50};
  Trial dense = trial(DType::float32, 4, 4, kHeads, 3, kPage * kMaxPages, kDim, kDim).fill(101);
  Owned length_tensor = integers(lengths);
  dense.spec.key_lengths = length_tensor.tensor();
  dense.spec.causal = Causal::bottom_right;

  Owned k_pool(DType::float32, {kPages, kHeads, kPage, kDim}),
      v_pool(DType::float32, {kPages, kHeads, kPage, kDim});
  Values table;
  std::int64_t page = kPages;
  for (std::int64_t b = 0; b < 4; ++b) {
    for (std::int64_t n = 0; n < kMaxPages; ++n) {
      if (n * kPage >= lengths[static_cast<std::size_t>(b)]) {
        table.push_back(n % 2 == 0 ? -1 : 2147483647);
        continue;
      }
      table.push_back(static_cast<double>(--page));
      for (std::int64_t j = n * kPage;
           j < std::min((n + 1) * kPage, lengths[static_cast<std::size_t>(b)]); ++j) {
        for (std::int64_t h = 0; h < kHeads; ++h) {
          for (std::int64_t d = 0; d < kDim; ++d) {
            const std::int64_t to = ((page * kHeads + h) * kPage + j % kPage) * kDim + d;
            const auto from =
                static_cast<std::size_t>(((b * kHeads + h) * kPage * kMaxPages + j) * kDim + d);
            reference::store(k_pool.tensor(), to, dense.k[from]);
            reference::store(v_pool.tensor(), to, dense.v[from]);
          }
        }
      }
    }
  }
  Owned table_tensor(DType::int32, {4, kMaxPages}, table);
  AttentionSpec paged = dense.spec;
  paged.block_table = table_tensor.tensor();
  Owned q(DType::float32, {4, 4, 3, kDim}, dense.q), o(DType::float32, {4, 4, 3, kDim});
  const ForwardTensors t{.q = q.tensor(),
                         .k = k_pool.tensor(),
                         .v = v_pool.tensor(),
                         .o = o.tensor(),
                         .lse = {},
                         .saved = {}};
  try {
    run_forward(t, paged, GetParam().kernel);
  } catch (const Unsupported&) {
    ASSERT_NE(GetParam().implementation, "reference");
    GTEST_SKIP() << GetParam().kernel << " refuses paged keys";
  }
  expect_near(o.values(), run(dense).o, 1e-6, "O");
}

/// GQA against the keys repeated for every query head.
TEST_P(Backward, GroupsEqualRepeatedKeys) {
  Trial grouped = trial(DType::float32, 2, 6, 2, 20, 33, 16, 24).fill(102);
  Trial repeated = grouped;
  repeated.heads_k = 6;
  for (auto [values, dim] : {std::pair{&repeated.k, 16}, std::pair{&repeated.v, 24}}) {
    const Values source = *values;
    values->clear();
    for (std::int64_t bh = 0; bh < 4; ++bh) {
      const Values head = slice(source, bh * 33 * dim, (bh + 1) * 33 * dim);
      for (int copy = 0; copy < 3; ++copy) values->insert(values->end(), head.begin(), head.end());
    }
  }
  const Results r = run(grouped), expected = run(repeated);
  // Tiles hold rows of other heads, and so float32 sums have another order. A dP is a sum of 24
  // products that is off by some sqrt(24) 2^-24 max |dO V| = 3e-6 with entries up to 3.5; dQ takes
  // a quarter of it times keys up to 3.5, weighted by P, on either side. 1.8e-6 is the most in 40
  // seeds. A lost pair or a wrong head is off by 1e-2.
  expect_near(r.dq, expected.dq, 5e-6, "dQ");
  const auto summed = [](const Values& of_repeated, std::int64_t head_elems) {
    Values sums(static_cast<std::size_t>(4 * head_elems), 0.0);
    for (std::int64_t n = 0; n < 12 * head_elems; ++n) {
      sums[static_cast<std::size_t>(n / (3 * head_elems) * head_elems + n % head_elems)] +=
          of_repeated[static_cast<std::size_t>(n)];
    }
    return sums;
  };
  expect_near(r.dk, summed(expected.dk, 33 * 16), 1e-5, "dK");
  expect_near(r.dv, summed(expected.dv, 33 * 24), 1e-5, "dV");
}

/// Batch entries without batching, and rank 3 for one head.
TEST_P(Forward, ThreeAxesAreOneHead) {
  Trial s = trial(DType::float32, 3, 1, 1, 11, 13, 16, 8).fill(103);
  Owned q(DType::float32, {3, 11, 16}, s.q), k(DType::float32, {3, 13, 16}, s.k),
      v(DType::float32, {3, 13, 8}, s.v);
  Owned o(DType::float32, {3, 11, 8}), lse(DType::float32, {3, 11});
  run_forward({.q = q.tensor(),
               .k = k.tensor(),
               .v = v.tensor(),
               .o = o.tensor(),
               .lse = lse.tensor(),
               .saved = {}},
              s.spec, GetParam().kernel);
  const Results expected = run(s);
  expect_near(o.values(), expected.o, 0.0, "O");
  expect_near(lse.values(), expected.lse, 0.0, "LSE");
}

/// Query rows of a key head that share tiles, on both sides of the sizes where the schedule
/// changes: whole heads in a strip, a head over several strips, more than a split of keys.
TEST_P(TypedForward, RowsOfAGroupShareTiles) {
  struct Shape {
    std::int64_t heads_q, heads_k, seq_q, seq_k, dim, dim_v;
  };
  for (const DType dtype : types_) {
    for (const Shape& x : {Shape{17, 1, 1, 300, 32, 32}, Shape{10, 2, 5, 2100, 24, 16},
                           Shape{12, 4, 9, 70, 64, 48}, Shape{4, 2, 32, 600, 16, 16},
                           Shape{40, 1, 3, 129, 80, 64}, Shape{6, 2, 33, 90, 16, 16}}) {
      Trial s = trial(dtype, 2, x.heads_q, x.heads_k, x.seq_q, x.seq_k, x.dim, x.dim_v).fill(121);
      Owned slopes(DType::float32, {x.heads_q}, randn(x.heads_q, 122, 0.1));
      Owned sinks(DType::float32, {x.heads_q}, randn(x.heads_q, 123));
      Owned bias(DType::float32, {x.heads_q, x.seq_q, x.seq_k},
                 randn(x.heads_q * x.seq_q * x.seq_k, 124));
      std::vector<Trial> all(4, s);
      all[1].spec.causal = Causal::bottom_right;
      all[1].spec.alibi_slopes = slopes.tensor();
      all[2].spec.window = {.left = 20, .right = 1};
      all[2].spec.sinks = sinks.tensor();
      all[2].spec.dropout.p = 0.3;
      all[3].spec.bias = bias.tensor();
      for (const Trial& each : all) {
        if (refuses(each, GetParam(), Pass::forward)) continue;
        SCOPED_TRACE(testing::Message()
                     << x.heads_q << "/" << x.heads_k << " heads, " << x.seq_q << " queries");
        expect_conforms(each, run_forward(each, GetParam().kernel));
      }
    }
  }
}

/// Each head in tiles of its own would take as many tiles as heads.
TEST_P(TypedForward, AGroupOfOneQueryEachIsOneTile) {
  if (GetParam().implementation != "flash") GTEST_SKIP() << "not tiled";
  Trial s = trial(DType::float32, 1, 24, 1, 1, 64, 16, 16).fill(125);
  if (refuses(s, GetParam(), Pass::forward)) return;
  EXPECT_EQ(run_forward(s, GetParam().kernel).plan.block_m, 24);
}

}  // namespace
}  // namespace tilewise::contract
