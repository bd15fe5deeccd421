// Packed sequences and pages on the host's side of the sm_80-class rows, without a GPU.
#include "cuda/host/sequences.h"

#include <gtest/gtest.h>

#include <vector>

#include "cuda/ask_row.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/machine.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {
namespace {

// What the device computes in place of a division.
TEST(Pages, AKeysPageIsItsQuotient) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 29;
  const std::vector<std::int64_t> sizes = {
      1, 2, 3, 5, 7, 16, 48, 100, 255, 256, 257, 4095, 65537, kEnd / 2 + 1, kEnd - 1, kEnd};
  for (const std::int64_t size : sizes) {
    Problem p;
    p.page_size = size;
    p.block_table = Tensor::contiguous(nullptr, DType::int32, {2, 4}, kCuda);
    const tile::Pages pages = host::pages(p);
    EXPECT_EQ(pages.size, size);
    const std::int64_t last = kEnd - 1;
    std::vector<std::int64_t> keys = {0, 1, last, last - 1, last / 2};
    const std::vector<std::int64_t> at = {1, 2, 3, 1000, last / size, last / size / 2};
    for (const std::int64_t page : at) {
      keys.insert(keys.end(), {page * size - 1, page * size, page * size + 1});
    }
    for (const std::int64_t key : keys) {
      if (key < 0 || key > last) continue;
      const std::uint64_t product = static_cast<std::uint64_t>(key) * pages.multiplier;
      EXPECT_EQ(static_cast<std::int64_t>(product >> pages.shift), key / size)
          << key << " of pages of " << size;
    }
  }
}

/// Packed sequences of 70 and 58 rows among 130.
Problem packed(DType dtype, Pass pass) {
  Problem p;
  p.pass = pass;
  p.device = kCuda;
  p.dtype = dtype;
  p.packed = true;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_k = 2;
  p.seq_q = p.seq_k = 70;
  p.total_q = p.total_k = 130;
  p.head_dim = p.head_dim_v = 64;
  p.scale = 0.125F;
  const auto rows = [&](std::int64_t heads) {
    Tensor t = Tensor::bshd(nullptr, dtype, 1, p.total_q, heads, 64, kCuda);
    t.strides[0] = 0;
    return t;
  };
  p.q = p.o = rows(p.heads_q);
  p.k = p.v = rows(p.heads_k);
  p.cu_seqlens_q = p.cu_seqlens_k = Tensor::contiguous(nullptr, DType::int64, {3}, kCuda);
  if (pass == Pass::backward) {
    p.d_o = p.dq = p.q;
    p.dk = p.dv = p.k;
  }
  return p;
}

// Without reading an offset: every sequence may need one block more than its rows fill.
TEST(Packed, BlocksAreCountedByTotals) {
  const Problem p = packed(DType::float32, Pass::forward);
  EXPECT_EQ(host::query_blocks(p, 64), 130 / 64 + 2 + 1);
  EXPECT_EQ(host::key_blocks(p, 16), 130 / 16 + 2 + 1);
  const tile::Sequences sequences = host::query_sequences(p);
  EXPECT_TRUE(sequences.wide);
  EXPECT_EQ(sequences.count, 2);
  EXPECT_EQ(sequences.rows, 130);
}

TEST(Packed, RowsTakeThemForEveryType) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const int arch : {80, 89, 90}) {
      const Problem forward = packed(dtype, Pass::forward);
      const Problem backward = packed(dtype, Pass::backward);
      const KernelRow& two = kFlashBackwardTwoPassSm80;
      const KernelRow& one = kFlashForwardSm80;
      EXPECT_EQ(refusal_by(one, forward, machine(arch)), "");
      EXPECT_EQ(refusal_by(two, backward, machine(arch)), "");
      EXPECT_GT(cost_by(one, forward, machine(arch)).ms, 0.0);
      EXPECT_EQ(cost_by(two, backward, machine(arch)).splits, 1);
    }
  }
}

/// The packed queries over pools of 9 pages of 16 rows, tables of 3 pages.
Problem packed_over_pages(DType dtype) {
  Problem p = packed(dtype, Pass::forward);
  p.paged = true;
  p.page_size = 16;
  p.seq_k = 48;
  p.total_k = 16;
  p.k = p.v = Tensor::bshd(nullptr, dtype, 9, 16, p.heads_k, 64, kCuda);
  p.cu_seqlens_k = {};
  p.key_lengths = Tensor::contiguous(nullptr, DType::int32, {2}, kCuda);
  p.block_table = Tensor::contiguous(nullptr, DType::int32, {2, 3}, kCuda);
  return p;
}

// Queries are counted by their total, keys by the pages of one entry.
TEST(Packed, QueriesOverPages) {
  const Problem p = packed_over_pages(DType::bfloat16);
  EXPECT_EQ(host::query_blocks(p, 64), 130 / 64 + 2 + 1);
  EXPECT_EQ(host::key_blocks(p, 16), 3);
  EXPECT_TRUE(host::reads_pages(p));
  EXPECT_FALSE(host::is_chunked(p, 1));
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    EXPECT_EQ(refusal_by(kFlashForwardSm80, packed_over_pages(dtype), machine(80)), "");
  }
  // float32 K and V come together as entries of a batch, Q in blocks of its sequences.
  std::int64_t found = 0;
  const Cost cost = cost_by(kFlashForwardSm80, packed_over_pages(DType::float32), machine(80));
  for (const MemoryPart& part : cost.memory) {
    const std::string name = part.name;
    if (name == "Q planes") {
      EXPECT_EQ(part.bytes, 4 * (130 / 64 + 3) * 64 * 2 * 64 * 2);
      ++found;
    }
    if (name == "K planes" || name == "V planes") {
      EXPECT_EQ(part.bytes, 2 * 2 * 48 * 2 * 64 * 2);
      ++found;
    }
  }
  EXPECT_EQ(found, 3);
}

TEST(Packed, TheGradientOfABiasIsRefused) {
  Problem p = packed(DType::bfloat16, Pass::backward);
  p.bias = p.dbias = Tensor::contiguous(nullptr, DType::float32, {2, 4, 130, 70}, kCuda);
  const KernelRow& row = kFlashBackwardTwoPassSm80;
  EXPECT_NE(refusal_by(row, p, machine(80)).find("gradient of a bias"), std::string::npos);
}

// One query of eight heads over two key heads is planned, and read, as four rows of two heads.
TEST(Decode, HeadsOfAGroupAreRowsOfOneTile) {
  Problem p;
  p.device = kCuda;
  p.dtype = DType::bfloat16;
  p.batch = 3;
  p.heads_q = 8;
  p.heads_k = 2;
  p.seq_q = p.total_q = 1;
  p.seq_k = p.total_k = 4096;
  p.head_dim = p.head_dim_v = 64;
  p.scale = 0.125F;
  p.causal = Causal::bottom_right;
  p.right = 0;
  p.q = p.o = Tensor::bshd(nullptr, p.dtype, 3, 1, 8, 64, kCuda);
  p.k = p.v = Tensor::bshd(nullptr, p.dtype, 3, 4096, 2, 64, kCuda);
  const KernelRow& row = kFlashForwardSm80;
  Problem rows = p;
  rows.heads_q = 2;
  rows.seq_q = rows.total_q = 4;
  rows.causal = Causal::none;
  rows.right = Problem::kUnbounded;
  const Cost cost = cost_by(row, p, machine(80)), same = cost_by(row, rows, machine(80));
  EXPECT_EQ(cost.block_m, same.block_m);
  EXPECT_EQ(cost.splits, same.splits);
  EXPECT_GT(cost.splits, 1);
  p.left = 100;  // a window of the one query is none of four
  EXPECT_LE(cost_by(row, p, machine(80)).splits, same.splits);
}

// Empty ones have a block of the statistics each.
TEST(Packed, MoreSequencesThanAnIntCounts) {
  Problem p = packed(DType::bfloat16, Pass::backward);
  const auto refusal = [&p] { return refusal_by(kFlashBackwardSm80, p, machine(80)); };
  EXPECT_EQ(refusal(), "");
  p.batch = std::int64_t{1} << 25;
  EXPECT_EQ(refusal(), "more than 2^25 packed sequences are not supported by this kernel");
}

}  // namespace
}  // namespace tilewise::cuda
