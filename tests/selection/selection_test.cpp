// Block lists that scores choose, on the CPU: against plain loops, and what bad input is told.
#include "tilewise/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cuda/device_tensor.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/kernels/rows/select.h"
#include "expect_parts.h"
#include "tilewise/error.h"

namespace tilewise {
namespace {

struct Inputs {
  std::int64_t batch = 2, heads_q = 4, heads_k = 2, seq_q = 130, seq_k = 170, dim = 24;
  std::vector<float> q, k;

  Inputs() {
    std::mt19937 random(std::random_device{}());
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(batch * heads_q * seq_q * dim));
    k.resize(static_cast<std::size_t>(batch * heads_k * seq_k * dim));
    for (std::vector<float>* x : {&q, &k}) {
      for (float& value : *x) value = normal(random);
    }
  }
  Tensor tq() { return Tensor::contiguous(q.data(), DType::float32, {batch, heads_q, seq_q, dim}); }
  Tensor tk() { return Tensor::contiguous(k.data(), DType::float32, {batch, heads_k, seq_k, dim}); }
};

/// Softmax of the means' products of one row, over its first `end` blocks.
std::vector<double> probabilities(const Inputs& in, const BlockSelection& by, std::int64_t b,
                                  std::int64_t h, std::int64_t row, std::int64_t end) {
  const auto mean = [&](const std::vector<float>& x, std::int64_t head, std::int64_t seq,
                        std::int64_t first, std::int64_t last, std::int64_t d) {
    double sum = 0.0;
    for (std::int64_t i = first; i < last; ++i)
      sum += static_cast<double>(x[static_cast<std::size_t>((head * seq + i) * in.dim + d)]);
    return sum / static_cast<double>(last - first);
  };
  std::vector<double> p(static_cast<std::size_t>(end));
  for (std::int64_t j = 0; j < end; ++j) {
    double dot = 0.0;
    for (std::int64_t d = 0; d < in.dim; ++d) {
      dot += mean(in.q, b * in.heads_q + h, in.seq_q, row * by.block_q,
                  std::min((row + 1) * by.block_q, in.seq_q), d) *
             mean(in.k, b * in.heads_k + h / 2, in.seq_k, j * by.block_k,
                  std::min((j + 1) * by.block_k, in.seq_k), d);
    }
    p[static_cast<std::size_t>(j)] = std::exp(dot / std::sqrt(static_cast<double>(in.dim)));
  }
  double all = 0.0;
  for (const double x : p) all += x;
  for (double& x : p) x /= all;
  return p;
}

TEST(Selection, RulesAgainstPlainLoops) {
  Inputs in;
  for (const bool causal : {false, true}) {
    for (const BlockRule rule : {BlockRule::top_k, BlockRule::mass, BlockRule::above}) {
      BlockSelection by = {.block_q = 32, .block_k = 16, .causal = causal, .rule = rule};
      by.count = 3, by.mass = 0.6, by.threshold = 0.15;
      by.keep_diagonal = by.keep_first = false;
      const std::int64_t rows = 5, columns = 11;
      std::vector<std::uint8_t> mask(
          static_cast<std::size_t>(in.batch * in.heads_q * rows * columns));
      select_block_mask(
          in.tq(), in.tk(), by,
          Tensor::contiguous(mask.data(), DType::uint8, {in.batch, in.heads_q, rows, columns}));
      for (std::int64_t b = 0; b < in.batch; ++b) {
        for (std::int64_t h = 0; h < in.heads_q; ++h) {
          for (std::int64_t r = 0; r < rows; ++r) {
            const std::int64_t last = std::min((r + 1) * 32, in.seq_q) - 1 + in.seq_k - in.seq_q;
            const std::int64_t end = causal ? last / 16 + 1 : columns;
            const std::vector<double> p = probabilities(in, by, b, h, r, end);
            std::vector<double> sorted = p;
            std::sort(sorted.rbegin(), sorted.rend());
            double least = by.threshold;  // those larger than it are taken
            if (rule == BlockRule::top_k) {
              least = end > 3 ? 0.5 * (sorted[2] + sorted[3]) : -1.0;
            } else if (rule == BlockRule::mass) {
              double sum = 0.0;
              std::size_t n = 0;
              while (sum < by.mass) sum += sorted[n++];
              least = n < sorted.size() ? 0.5 * (sorted[n - 1] + sorted[n]) : -1.0;
            }
            for (std::int64_t j = 0; j < columns; ++j) {
              const bool taken = j < end && p[static_cast<std::size_t>(j)] > least;
              EXPECT_EQ(
                  mask[static_cast<std::size_t>(((b * in.heads_q + h) * rows + r) * columns + j)],
                  taken ? 1 : 0)
                  << causal << " " << static_cast<int>(rule) << " row " << r << " block " << j;
            }
          }
        }
      }
    }
  }
}

TEST(Selection, ListIsTheMask) {
  Inputs in;
  std::vector<std::int32_t> lengths = {170, 33};
  BlockSelection by = {.block_q = 64, .block_k = 32, .causal = true, .count = 2};
  by.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {2});
  by.weights = {.mean = 1.0, .maximum = 0.5, .minimum = 0.5, .variance = 1.0};
  const std::int64_t rows = 3, columns = 6;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(in.batch * in.heads_q * rows * columns),
                                 9);
  select_block_mask(
      in.tq(), in.tk(), by,
      Tensor::contiguous(mask.data(), DType::uint8, {in.batch, in.heads_q, rows, columns}));
  const std::int64_t room = selected_blocks_bound(in.tq(), in.tk(), by);
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(in.batch * in.heads_q * (rows + 1)),
                                    -1);
  std::vector<std::int32_t> index(static_cast<std::size_t>(room), -1);
  select_blocks(in.tq(), in.tk(), by,
                {Tensor::contiguous(offsets.data(), DType::int32, {in.batch, in.heads_q, rows + 1}),
                 Tensor::contiguous(index.data(), DType::int32, {room})});
  std::vector<std::int32_t> expected;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0) expected.push_back(static_cast<std::int32_t>(i % columns));
  }
  ASSERT_EQ(offsets.back(), static_cast<std::int32_t>(expected.size()));
  ASSERT_LE(expected.size(), index.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), index.begin()));
  // Every row that sees a key keeps the first block and its own.
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t last = std::min((r + 1) * 64, in.seq_q) - 1 + in.seq_k - in.seq_q;
    EXPECT_EQ(mask[static_cast<std::size_t>(r * columns)], 1);
    EXPECT_EQ(mask[static_cast<std::size_t>(r * columns + last / 32)], 1);
  }
  // 33 keys: nothing behind their second block.
  for (std::size_t i = mask.size() / 2; i < mask.size(); ++i) {
    if (i % columns >= 2) {
      EXPECT_EQ(mask[i], 0);
    }
  }
}

/// select_block_mask, into memory that holds neither 0 nor 1.
std::vector<std::uint8_t> mask_of(Inputs& in, const BlockSelection& by, std::int64_t rows,
                                  std::int64_t columns) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(in.batch * in.heads_q * rows * columns),
                                 7);
  select_block_mask(
      in.tq(), in.tk(), by,
      Tensor::contiguous(mask.data(), DType::uint8, {in.batch, in.heads_q, rows, columns}));
  return mask;
}

/// Probabilities of all pairs of a head, causal.
std::vector<double> all_pairs(const Inputs& in, std::int64_t b, std::int64_t h) {
  std::vector<double> p(static_cast<std::size_t>(in.seq_q * in.seq_k));
  for (std::int64_t i = 0; i < in.seq_q; ++i) {
    double all = 0.0;
    for (std::int64_t j = 0; j <= i + in.seq_k - in.seq_q; ++j) {
      double dot = 0.0;
      for (std::int64_t d = 0; d < in.dim; ++d) {
        dot += static_cast<double>(in.q[((b * in.heads_q + h) * in.seq_q + i) * in.dim + d]) *
               static_cast<double>(in.k[((b * in.heads_k + h / 2) * in.seq_k + j) * in.dim + d]);
      }
      all += p[i * in.seq_k + j] = std::exp(dot / std::sqrt(static_cast<double>(in.dim)));
    }
    for (std::int64_t j = 0; j < in.seq_k; ++j) p[i * in.seq_k + j] /= all;
  }
  return p;
}

/// Tiles of one pair are the pairs: a block has the probabilities of all of its.
TEST(Selection, AntidiagonalsOfOnePairAreProbabilities) {
  Inputs in;
  const BlockSelection by = {.block_q = 32,
                             .block_k = 16,
                             .causal = true,
                             .rule = BlockRule::above,
                             .threshold = 0.1,
                             .keep_diagonal = false,
                             .keep_first = false,
                             .scorer = BlockScorer::antidiagonal,
                             .stride = 1};
  const std::int64_t rows = 5, columns = 11;
  const std::vector<std::uint8_t> mask = mask_of(in, by, rows, columns);
  for (std::int64_t pair = 0; pair < in.batch * in.heads_q; ++pair) {
    const std::vector<double> p = all_pairs(in, pair / in.heads_q, pair % in.heads_q);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t end = std::min((row + 1) * 32, in.seq_q);
      for (std::int64_t column = 0; column < columns; ++column) {
        double sum = 0.0;
        for (std::int64_t i = row * 32; i < end; ++i) {
          for (std::int64_t j = column * 16; j < std::min(in.seq_k, column * 16 + 16); ++j)
            sum += p[i * in.seq_k + j];
        }
        sum /= static_cast<double>(end - row * 32);
        if (std::abs(sum - 0.1) < 1e-6) continue;
        EXPECT_EQ(mask[(pair * rows + row) * columns + column], sum > 0.1 ? 1 : 0);
      }
    }
  }
}

/// The best block of keys and the best distance of the last queries cross every row.
TEST(Selection, LinesOfTheLastQueriesCrossEveryRow) {
  Inputs in;
  const BlockSelection by = {.block_q = 16,
                             .block_k = 16,
                             .causal = true,
                             .count = 1,
                             .keep_diagonal = false,
                             .keep_first = false,
                             .scorer = BlockScorer::vertical_slash};
  const std::int64_t rows = 9, columns = 11, shift = in.seq_k - in.seq_q;
  const std::vector<std::uint8_t> mask = mask_of(in, by, rows, columns);
  for (std::int64_t pair = 0; pair < in.batch * in.heads_q; ++pair) {
    const std::vector<double> p = all_pairs(in, pair / in.heads_q, pair % in.heads_q);
    std::vector<double> vertical(11), slash(11);
    for (std::int64_t i = in.seq_q - 16; i < in.seq_q; ++i) {
      for (std::int64_t j = 0; j <= i + shift; ++j) {
        vertical[j / 16] += p[i * in.seq_k + j];
        slash[(i + shift - j) / 16] += p[i * in.seq_k + j];
      }
    }
    const std::int64_t key = std::max_element(vertical.begin(), vertical.end()) - vertical.begin();
    const std::int64_t far = std::max_element(slash.begin(), slash.end()) - slash.begin();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        bool crossed = false, seen = false;
        for (std::int64_t i = row * 16; i < std::min(in.seq_q, row * 16 + 16); ++i) {
          for (std::int64_t j = column * 16; j < std::min(in.seq_k, column * 16 + 16); ++j) {
            crossed = crossed || (i + shift >= j && (i + shift - j) / 16 == far);
            seen = seen || i + shift >= j;
          }
        }
        EXPECT_EQ(mask[(pair * rows + row) * columns + column],
                  seen && (crossed || column == key) ? 1 : 0)
            << pair << " " << row << " " << column;
      }
    }
  }
}

/// No heads, no keys: nothing is chosen, and the strides of nothing do not matter.
TEST(Selection, TakesEmptyOutputs) {
  Inputs in;
  const BlockSelection by = {.block_q = 64, .block_k = 32};
  std::vector<std::int32_t> offsets(16, 7), index(1);
  Tensor q = in.tq(), k = in.tk();
  q.sizes[1] = 0;
  Tensor rows = Tensor::contiguous(offsets.data(), DType::int32, {in.batch, 0, 4});
  rows.strides[0] = 4;  // as other libraries have them
  select_blocks(q, k, by, {rows, Tensor::contiguous(index.data(), DType::int32, {1})});
  EXPECT_EQ(offsets.front(), 7);
  k.sizes[2] = 0;
  Tensor mask = Tensor::contiguous(nullptr, DType::uint8, {in.batch, in.heads_q, 3, 0});
  mask.strides = {3 * in.heads_q, 3, 1, 1};
  select_block_mask(in.tq(), k, by, mask);
}

/// On a GPU: the same blocks, and no time that would show beside attention.
TEST(Selection, OnAGpuAsOnTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  constexpr std::int64_t kHeads = 4, kSeq = 4096, kDim = 64, kBlocks = kSeq / 64;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const DeviceTensor q(dtype, 1, kHeads, kSeq, kDim, 1), k(dtype, 1, kHeads, kSeq, kDim, 2);
    std::vector<std::byte> host_q = q.read(), host_k = k.read();
    const Tensor cpu_q = Tensor::bhsd(host_q.data(), dtype, 1, kHeads, kSeq, kDim);
    const Tensor cpu_k = Tensor::bhsd(host_k.data(), dtype, 1, kHeads, kSeq, kDim);
    for (int n = 0; n < 9; ++n) {
      const auto rule = static_cast<BlockRule>(n % 3);
      BlockSelection by = {.causal = true, .rule = rule, .count = 9, .mass = 0.4};
      by.scorer = static_cast<BlockScorer>(n / 3);
      by.threshold = 0.02;
      by.weights = {.mean = 1.0, .maximum = 0.3, .minimum = 0.3, .variance = 0.5};
      std::vector<std::uint8_t> expected(static_cast<std::size_t>(kHeads * kBlocks * kBlocks), 7);
      std::vector<std::uint8_t> got(expected.size(), 7);
      select_block_mask(
          cpu_q, cpu_k, by,
          Tensor::contiguous(expected.data(), DType::uint8, {1, kHeads, kBlocks, kBlocks}));
      const auto bytes = static_cast<std::int64_t>(got.size());
      void* mask = cuda::allocate(bytes, 0, nullptr);
      select_block_mask(
          q.get(), k.get(), by,
          Tensor::contiguous(mask, DType::uint8, {1, kHeads, kBlocks, kBlocks}, kCuda));
      cuda::copy_to_host(got.data(), mask, bytes, 0, nullptr);
      cuda::synchronize(0, nullptr);
      cuda::release(mask, 0, nullptr);
      // Scores that differ by a rounding may stand on either side.
      std::size_t off = 0;
      for (std::size_t i = 0; i < got.size(); ++i) off += got[i] != expected[i] ? 1 : 0;
      EXPECT_LE(off, n >= 6 ? 64U : 4U) << n;  // a line crosses up to two blocks of every row
    }
  }
}

TEST(Selection, ScorersCompileWithoutSpills) {
  std::string why_not;
  if (cuda::find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  for (const auto& [entry, args] :
       {std::pair{"antidiagonals", "ScorerArgs"}, std::pair{"lines", "ScorerArgs"},
        std::pair{"pick_lines", "Args"}, std::pair{"scored", "Args"}}) {
    const cuda::KernelUnit unit = cuda::select_unit({.type = select::Type::bf16}, entry, args,
                                                    select::kThreads, 4096, "rows/select_tokens");
    EXPECT_EQ(cuda::compile(unit, 90).report.spill_store_bytes, 0) << entry;
  }
}

TEST(Selection, BadInputIsNamed) {
  Inputs in;
  const auto told = [&](const BlockSelection& by) -> std::string {
    try {
      selected_blocks_bound(in.tq(), in.tk(), by);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(told({.block_q = 0}).find("block_q"), std::string::npos);
  EXPECT_NE(told({.block_k = -1}).find("block_k"), std::string::npos);
  EXPECT_NE(told({.block_q = INT64_MAX}).find("block_q"), std::string::npos);  // its end overflows
  EXPECT_NE(told({.block_k = INT64_MAX}).find("block_k"), std::string::npos);
  EXPECT_NE(told({.weights = {.mean = 0.0}}).find("weights"), std::string::npos);
  EXPECT_NE(told({.count = -1}).find("count"), std::string::npos);
  EXPECT_NE(told({.rule = BlockRule::mass, .mass = NAN}).find("mass"), std::string::npos);
  EXPECT_EQ(told({.count = 2}), "");
  EXPECT_NE(told({.scorer = BlockScorer::antidiagonal, .stride = 5}).find("stride"),
            std::string::npos);
}

TEST(Selection, TheBoundOfAHugeCountIsThatOfAllBlocks) {
  Inputs in;
  for (const BlockScorer scorer : {BlockScorer::pooled, BlockScorer::vertical_slash}) {
    const BlockSelection by = {.count = std::int64_t{1} << 62, .scorer = scorer};
    EXPECT_EQ(selected_blocks_bound(in.tq(), in.tk(), by), 2 * 4 * 3 * 3);
  }
  Tensor q = in.tq(), k = in.tk();
  q.sizes[2] = k.sizes[2] = std::int64_t{1} << 40;
  q.strides[2] = k.strides[2] = 0;
  EXPECT_THROW(selected_blocks_bound(q, k, {.block_q = 1, .block_k = 1, .count = 1LL << 40}),
               InvalidArgument);
}

/// Memory is judged before anything is written.
TEST(Selection, MemoryIsThereAndSharesNothing) {
  Inputs in;
  std::vector<std::int32_t> memory(256, 7);
  const BlockSelection by = {.count = 2};
  const auto told = [&](Tensor q, std::int32_t* offsets, std::int32_t* index) -> std::string {
    try {
      select_blocks(q, in.tk(), by,
                    {Tensor::contiguous(offsets, DType::int32, {2, 4, 4}),
                     Tensor::contiguous(index, DType::int32, {72})});
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(memory, std::vector<std::int32_t>(256, 7));
      return error.what();
    }
    return "accepted";
  };
  Tensor no_memory = in.tq();
  no_memory.data = nullptr;
  std::int32_t* const room = memory.data();
  expect_parts(told(no_memory, room, room + 32), {"q is", "its data pointer is null"});
  expect_parts(told(in.tq(), nullptr, room), {"row_offsets is", "its data pointer is null"});
  expect_parts(told(in.tq(), room, nullptr), {"block_index is", "its data pointer is null"});
  expect_parts(told(in.tq(), room, room + 31), {"block_index is", "memory with row_offsets"});
  EXPECT_EQ(told(in.tq(), room, room + 32), "accepted");
}

TEST(Selection, InfiniteScoresShareTheProbability) {
  Inputs in;
  for (float& x : in.q) x = 1.0F;
  for (std::int64_t j = 128; j < in.seq_k; ++j) {  // the last block of every key head
    for (std::int64_t head = 0; head < in.batch * in.heads_k; ++head)
      in.k[static_cast<std::size_t>((head * in.seq_k + j) * in.dim)] = INFINITY;
  }
  std::vector<std::uint8_t> mask(2 * 4 * 3 * 3);
  for (const BlockRule rule : {BlockRule::mass, BlockRule::above}) {
    const BlockSelection by = {.weights = {.mean = 0.0, .maximum = 1.0},
                               .rule = rule,
                               .mass = 0.9,
                               .threshold = 0.5,
                               .keep_diagonal = false,
                               .keep_first = false};
    select_block_mask(in.tq(), in.tk(), by,
                      Tensor::contiguous(mask.data(), DType::uint8, {2, 4, 3, 3}));
    for (std::size_t n = 0; n < mask.size(); ++n) EXPECT_EQ(mask[n], n % 3 == 2 ? 1 : 0) << n;
  }
}

}  // namespace
}  // namespace tilewise
