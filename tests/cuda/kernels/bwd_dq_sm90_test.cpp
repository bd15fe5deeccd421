// The kernel of dQ beside bwd_sm90's, without a GPU: stages, order of the tiles, workspace, unit.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/ask_row.h"
#include "cuda/kernels/bwd_sm90/dq/launch.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/machine.h"
#include "cuda/tile_orders.h"

namespace tilewise::cuda {
namespace {

using bwd_dq_sm90::config_beside;
using bwd_dq_sm90::SharedPlan;

constexpr int kSharedLimit = 227 * 1024;

Problem problem(std::int64_t seq, std::int64_t dim, std::int64_t dim_v, bool causal) {
  Problem p;
  p.pass = Pass::backward;
  p.device = {DeviceType::cuda, 0};
  p.dtype = DType::bfloat16;
  p.batch = 4;
  p.heads_q = p.heads_k = 8;
  p.seq_q = p.seq_k = p.total_q = p.total_k = seq;
  p.head_dim = dim;
  p.head_dim_v = dim_v;
  p.scale = 0.125F;
  if (causal) p.causal = Causal::bottom_right, p.right = 0;
  const auto tensor = [&](std::int64_t columns) {
    return Tensor::bshd(nullptr, p.dtype, p.batch, seq, p.heads_q, columns, p.device);
  };
  p.q = p.k = p.dq = p.dk = tensor(dim);
  p.v = p.o = p.d_o = p.dv = tensor(dim_v);
  p.lse = Tensor::contiguous(nullptr, DType::float32, {p.batch, p.heads_q, seq}, p.device);
  return p;
}

bwd_dq_sm90::Config config(const Problem& p) { return config_beside(bwd_sm90_config(p)); }

TEST(BwdDqSm90, HasAsManyStagesAsThereIsRoomFor) {
  for (const std::int64_t dim : {40, 64, 96, 128, 192, 256}) {
    for (const std::int64_t dim_v : {40, 64, 96, 128, 192, 256}) {
      if (std::max(dim, dim_v) <= 128) continue;
      const bwd_dq_sm90::Config c = config(problem(1024, dim, dim_v, true));
      const SharedPlan plan(c);
      EXPECT_LE(plan.bytes, kSharedLimit) << dim << ' ' << dim_v;
      EXPECT_GE(c.k_stages, 2);
      EXPECT_GE(c.v_stages, 1);
      EXPECT_EQ(plan.slots % 16, 0) << dim << ' ' << dim_v;
      for (const int at : {plan.q, plan.d_o, plan.k, plan.v}) EXPECT_EQ(at % 1024, 0);
    }
  }
  EXPECT_EQ(config(problem(1024, 256, 256, false)).k_stages, 2);
  EXPECT_EQ(config(problem(1024, 256, 256, false)).v_stages, 1);
  EXPECT_EQ(config(problem(1024, 192, 192, false)).k_stages, 3);
  EXPECT_EQ(config(problem(1024, 192, 192, false)).v_stages, 2);
}

TEST(BwdDqSm90, FollowsTheConfigOfBwdSm90) {
  Problem p = problem(1024, 256, 200, true);
  p.softcap = 30.0;
  p.dtype = DType::float16;
  const bwd_dq_sm90::Config c = config(p);
  EXPECT_EQ(c.element, tile::Element::fp16);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.head_dim_v, 256);
  EXPECT_EQ(c.mask, bwd_dq_sm90::Mask::right);
  EXPECT_TRUE(c.logits.modified && c.logits.softcap);
  EXPECT_FALSE(c.logits.alibi || c.two_plane);
  p.batch = 1, p.heads_q = p.heads_k = 2;  // 2^21 pairs
  EXPECT_TRUE(config(p).two_plane);
}

TEST(BwdDqSm90, EveryTileOnceLongestFirst) {
  for (const bool causal : {false, true}) {
    const Problem p = problem(1000, 256, 256, causal);
    const bwd_sm90::SectionOrder order = bwd_dq_sm90_order(p);
    EXPECT_EQ(order.blocks, 8);
    EXPECT_EQ(order.heads, 32);
    std::vector<int> seen(256, 0);
    for (int i = 0; i < 256; ++i) {
      const OrderedTile tile = ordered_tile(order, i);
      ++seen[tile.head * 8 + tile.block];
    }
    for (const int times : seen) EXPECT_EQ(times, 1);
    EXPECT_EQ(ordered_tile(order, 0).block, 7);
  }
}

TEST(BwdDqSm90, NothingIsSummedInMemory) {
  Problem p = problem(4096, 256, 256, true);
  const auto bytes = [&] {
    std::int64_t sum = 0;
    for (const MemoryPart& item : cost_by(kFlashBackwardSm90, p, machine(90, 3000.0)).memory) {
      if (item.role == MemoryItem::Role::workspace) sum += item.bytes;
    }
    return sum;
  };
  const std::int64_t rows = 4 * 8 * 4096;
  const std::int64_t free_order = bytes();
  EXPECT_LT(free_order, rows * 8 + 4096);  // offsets, delta and some counters
  p.deterministic = true;
  EXPECT_EQ(bytes(), free_order);
}

TEST(BwdDqSm90, UnitNamesTheProductsItNeeds) {
  const KernelUnit unit = bwd_dq_sm90_unit(config(problem(1024, 192, 128, true)));
  EXPECT_EQ(unit.threads, 384);
  for (const char* text : {"m64n64k16", "m64n192k16", "multiply_shared", "multiply_register"}) {
    EXPECT_NE(unit.prelude.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(unit.prelude.find("m64n128k16"), std::string::npos);
}

}  // namespace
}  // namespace tilewise::cuda
