// The Hopper forward's host side, without a GPU: order of tiles, masks, configs, wrappers' text.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/ask_row.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/host/tile_order.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/kernels/fwd_sm90/fill.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/fwd_sm90/unit.h"
#include "cuda/machine.h"
#include "cuda/tile_orders.h"

namespace tilewise::cuda {
namespace {

using fwd_sm90::Config;
using fwd_sm90::Mask;
using fwd_sm90::SectionOrder;

OrderProblem causal_grid(std::int64_t seq, std::int64_t rows, std::int64_t section_mib,
                         std::int64_t last_mib) {
  // 16,384 tokens, hidden 2048, head dim 128.
  return {.blocks = (seq + rows - 1) / rows,
          .heads = 16384 / seq * 16,
          .kv_bytes = seq * 512,
          .section_bytes = section_mib << 20,
          .last_bytes = last_mib << 20};
}

TEST(TileOrder, EveryTileOnce) {
  for (const std::int64_t heads : {1, 3, 16, 37, 256}) {
    for (const std::int64_t group : {1, 4}) {
      const SectionOrder order = section_order({.blocks = 7,
                                                .heads = heads * group,
                                                .heads_per_kv = group,
                                                .kv_bytes = 1 << 20,
                                                .section_bytes = 3 << 20,
                                                .last_bytes = 9 << 20});
      std::set<std::pair<std::int64_t, std::int64_t>> seen;
      for (std::int64_t i = 0; i < 7 * heads * group; ++i) {
        const OrderedTile tile = ordered_tile(order, i);
        ASSERT_TRUE(tile.block >= 0 && tile.block < 7) << i;
        ASSERT_TRUE(tile.head >= 0 && tile.head < heads * group) << i;
        seen.insert({tile.block, tile.head});
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(7 * heads * group)) << heads;
    }
  }
}

TEST(TileOrder, LongestFirstInsideASection) {
  const SectionOrder order = section_order(causal_grid(4096, 128, 16, 32));
  ASSERT_GT(order.sections, 0);
  const std::int64_t tiles = std::int64_t{order.section_heads} * order.blocks;
  for (std::int64_t i = 1; i < tiles; ++i) {
    EXPECT_LE(ordered_tile(order, i).block, ordered_tile(order, i - 1).block);
  }
}

TEST(TileOrder, TheLastSectionIsNotTheSmallest) {
  for (const std::int64_t seq : {512, 1024, 4096, 8192, 16384}) {
    const SectionOrder order = section_order(causal_grid(seq, 192, 16, 32));
    EXPECT_GE(order.last_heads, order.sections > 0 ? order.section_heads : 1) << seq;
    EXPECT_EQ(order.sections * order.section_heads + order.last_heads, order.heads) << seq;
  }
}

TEST(TileOrder, SectionsKeepGroupsOfQueryHeadsTogether) {
  const SectionOrder order = section_order({.blocks = 4,
                                            .heads = 64,
                                            .heads_per_kv = 8,
                                            .kv_bytes = 4 << 20,
                                            .section_bytes = 8 << 20,
                                            .last_bytes = 8 << 20});
  EXPECT_EQ(order.section_heads % 8, 0);
  EXPECT_EQ(order.last_heads % 8, 0);
}

// What made the difference on the card (HOPPER.md 20.3): a rest section idles most multiprocessors
// for the length of its longest tile; a last section of 32 MB does not.
TEST(TileOrder, TailModelPrefersALargeLastSection) {
  const auto ratio = [](const SectionOrder& order) {
    return tail_ratio(order, 132, /*fixed=*/2900, /*per_block=*/5088, /*causal=*/true);
  };
  SectionOrder rest = section_order(causal_grid(4096, 192, 16, 32));
  rest.sections = 6;
  rest.section_heads = 10;
  rest.last_heads = 4;
  EXPECT_GT(ratio(rest), 1.05);
  EXPECT_LT(ratio(section_order(causal_grid(4096, 192, 16, 32))), 1.03);
  EXPECT_NEAR(tail_ratio(section_order(causal_grid(4096, 192, 16, 32)), 1, 1, 1, true), 1.0, 1e-9);
}

Problem problem(DType dtype, std::int64_t seq_q, std::int64_t seq_k, std::int64_t dim,
                std::int64_t dim_v) {
  Problem p;
  p.device = {DeviceType::cuda, 0};
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = p.heads_k = 4;
  p.seq_q = seq_q;
  p.seq_k = seq_k;
  p.total_q = seq_q;
  p.total_k = seq_k;
  p.head_dim = dim;
  p.head_dim_v = dim_v;
  p.scale = 0.125F;
  p.q = Tensor::bshd(nullptr, dtype, 2, seq_q, 4, dim, p.device);
  p.k = Tensor::bshd(nullptr, dtype, 2, seq_k, 4, dim, p.device);
  p.v = Tensor::bshd(nullptr, dtype, 2, seq_k, 4, dim_v, p.device);
  p.o = Tensor::bshd(nullptr, dtype, 2, seq_q, 4, dim_v, p.device);
  return p;
}

Hardware h100() { return machine(90, 3000.0); }

std::string refusal(const Problem& p, const Hardware& machine) {
  return refusal_by(kFlashForwardSm90, p, machine);
}

TEST(ForwardSm90, MasksThatHideNothingAreNone) {
  Problem p = problem(DType::bfloat16, 1, 100, 64, 64);
  p.causal = Causal::bottom_right;
  p.right = 0;
  EXPECT_EQ(sm90_mask(p).mask, Mask::none) << "one query sees every key";
  p = problem(DType::bfloat16, 100, 100, 64, 64);
  p.causal = Causal::bottom_right;
  p.right = 0;
  EXPECT_EQ(sm90_mask(p).mask, Mask::right);
  p.left = 99;
  EXPECT_EQ(sm90_mask(p).mask, Mask::right) << "the last row sees key 0";
  p.left = 98;
  EXPECT_EQ(sm90_mask(p).mask, Mask::both);
}

TEST(ForwardSm90, DiagonalsFollowTheContract) {
  Problem p = problem(DType::bfloat16, 40, 100, 64, 64);
  p.causal = Causal::bottom_right;
  p.right = 0;
  p.left = 7;
  const Sm90Mask shifted = sm90_mask(p);
  for (std::int64_t i = 0; i < 40; ++i) {
    const KeyRange keys = p.visible_keys({0, 40, 0, 100}, i);
    EXPECT_EQ(std::max<std::int64_t>(0, i + shifted.low), keys.begin) << i;
    EXPECT_EQ(std::min<std::int64_t>(100, i + shifted.high), keys.end) << i;
  }
  p = problem(DType::bfloat16, 100, 40, 64, 64);
  p.causal = Causal::top_left;
  EXPECT_EQ(sm90_mask(p).high, 1);
}

// Every head dim and mask: a tile that fits shared memory and registers.
TEST(ForwardSm90, EveryTileFits) {
  for (const std::int64_t dim : {8, 40, 64, 72, 96, 128, 136, 192, 200, 256}) {
    for (const std::int64_t dim_v : {dim, dim > 128 ? std::int64_t{128} : dim, std::int64_t{256}}) {
      Problem p = problem(DType::bfloat16, 4096, 4096, dim, dim_v);
      for (const int mask : {0, 1, 2}) {
        if (mask > 0) p.causal = Causal::bottom_right, p.right = 0;
        if (mask > 1) p.left = 1023;
        for (const FwdSm90Tile& tile : fwd_sm90_tiles(p)) {
          for (const bool split : {false, true}) {
            const Config config = fwd_sm90_config(p, tile, split);
            EXPECT_EQ(config_refusal(config), "") << dim << ' ' << dim_v << ' ' << split;
            EXPECT_GE(config.head_dim, dim);
            EXPECT_EQ(config.shape.block_n % 16, 0);
          }
        }
      }
    }
  }
}

TEST(ForwardSm90, RefusesByName) {
  const Problem p = problem(DType::bfloat16, 128, 128, 64, 64);
  EXPECT_EQ(refusal(p, h100()), "");
  Hardware other = h100();
  other.arch = 80;
  EXPECT_NE(refusal(p, other).find("9.0"), std::string::npos);
  EXPECT_NE(refusal(problem(DType::float32, 128, 128, 64, 64), h100()).find("float32"),
            std::string::npos);
  Problem strided = p;
  strided.k.strides[3] = 2;
  EXPECT_NE(refusal(strided, h100()).find("k cannot be copied by TMA"), std::string::npos);
  EXPECT_NE(refusal(problem(DType::bfloat16, 128, 128, 20, 20), h100()).find("multiples of 16"),
            std::string::npos)
      << "rows of 40 bytes";
  // A row of o that ends inside of 16 bytes would be written on to their end.
  for (const std::int64_t seq : {1, 128}) {
    Problem odd = problem(DType::bfloat16, seq, 128, 61, 61);
    for (Tensor* t : {&odd.q, &odd.k, &odd.v, &odd.o}) t->strides = {1 << 16, 1 << 12, 64, 1};
    EXPECT_NE(refusal(odd, h100()).find("o cannot be copied by TMA: its rows are 122 bytes"),
              std::string::npos)
        << refusal(odd, h100());
    odd.o.sizes[3] = odd.v.sizes[3] = odd.head_dim_v = 56;
    EXPECT_EQ(refusal(odd, h100()), "") << "rows that are read may end anywhere";
  }
  EXPECT_NE(refusal(problem(DType::bfloat16, 128, 0, 64, 64), h100()), "");
}

TEST(ForwardSm90, PacksHeadsWhereQueriesAreFew) {
  Problem p = problem(DType::bfloat16, 1, 8192, 128, 128);
  p.heads_q = 32;
  p.heads_k = 8;
  const FwdSm90Tile& tile = *fwd_sm90_choose(p, h100()).tile;
  EXPECT_EQ(fwd_sm90_pack_shift(p, tile), 2);
  EXPECT_TRUE(fwd_sm90_config(p, tile, false).pack_heads);
  EXPECT_EQ(fwd_sm90_order(p, fwd_sm90_config(p, tile, false), tile.block_m() >> 2, 1).heads,
            2 * 8);
  p.heads_q = 40;  // five to a group: eight rows a query, three of them idle
  EXPECT_EQ(fwd_sm90_pack_shift(p, tile), 3);
  p.packed = true;
  EXPECT_EQ(fwd_sm90_pack_shift(p, tile), 0)
      << "the map of packed sequences has no axis for idle rows";
  p = problem(DType::bfloat16, 4096, 4096, 128, 128);
  p.heads_q = 32;
  p.heads_k = 8;
  EXPECT_EQ(fwd_sm90_pack_shift(p, *fwd_sm90_choose(p, h100()).tile), 0) << "tiles are full anyway";
}

TEST(ForwardSm90, FewQueriesAndManyKeysTakeOneWarpgroup) {
  for (const auto& [batch, keys] : {std::pair{1, 131072}, {1, 8192}, {16, 8192}, {128, 1024}}) {
    Problem p = problem(DType::bfloat16, 1, keys, 128, 128);
    p.batch = batch;
    p.heads_q = 32;
    p.heads_k = 8;
    EXPECT_EQ(fwd_sm90_choose(p, h100()).tile->block_m(), 64) << batch << " x " << keys;
  }
}

TEST(ForwardSm90, AModificationHasItsOwnKernel) {
  using fwd_sm90::Modification;
  Problem p = problem(DType::bfloat16, 128, 128, 64, 64);
  const auto modification = [&] {
    return fwd_sm90_config(p, fwd_sm90_tiles(p).front(), false).modification;
  };
  EXPECT_EQ(modification(), Modification::none);
  p.softcap = 50.0;
  EXPECT_EQ(modification(), Modification::softcap);
  float slopes[4] = {};
  p.alibi_slopes = Tensor::contiguous(slopes, DType::float32, {1, 4}, p.device);
  EXPECT_EQ(modification(), Modification::general);
  p.softcap = 0.0;
  EXPECT_EQ(modification(), Modification::alibi);
  p.scale = -1.0F;
  EXPECT_EQ(modification(), Modification::general);
  p.alibi_slopes = {};
  EXPECT_EQ(modification(), Modification::general);
  p = problem(DType::bfloat16, 300, 500, 128, 128);
  p.alibi_slopes = Tensor::contiguous(slopes, DType::float32, {1, 4}, p.device);
  p.right = 0;
  EXPECT_EQ(modification(), Modification::leaning);
  p.right = 1;
  EXPECT_EQ(modification(), Modification::alibi) << "a key right of the diagonal";
}

// Row i of a sequence of n rows that begins at row b: x = N - n + i, y = n + b.
TEST(ForwardSm90, MapsOfSequencesEndWhereTheSequenceDoes) {
  static std::vector<TensorMapSpec> specs;
  specs.clear();
  Problem p = problem(DType::bfloat16, 50, 70, 64, 64);
  int offsets[3] = {0, 30, 80};
  std::vector<unsigned short> memory(1 << 16);
  p.packed = true;
  p.total_q = 80;
  p.total_k = 90;
  const auto rows = [&](std::int64_t total) {
    Tensor t = Tensor::bshd(memory.data(), p.dtype, 1, total, 4, 64, p.device);
    t.sizes[0] = 2;
    t.strides[0] = 0;
    return t;
  };
  p.q = p.o = rows(80);
  p.k = p.v = rows(90);
  p.cu_seqlens_q = p.cu_seqlens_k = Tensor::contiguous(offsets, DType::int32, {3}, p.device);
  const FwdSm90Tile& tile = fwd_sm90_tiles(p).front();
  fwd_sm90::PagedArgs args;
  fwd_sm90_fill(args, p, fwd_sm90_config(p, tile, false), 0,
                [](tile::TensorMapBytes&, const TensorMapSpec& spec) { specs.push_back(spec); });
  ASSERT_EQ(specs.size(), 4U);
  EXPECT_EQ(tensor_map_refusal(specs[0]), "");
  const int length = 50, begin = 30, row = 7;
  const std::int64_t x = args.q_rows - length + row, y = length + begin;
  EXPECT_LT(x, specs[0].sizes[2]);
  EXPECT_EQ(args.q_rows - length + length, specs[0].sizes[2]) << "the row behind the last one";
  EXPECT_LT(y, specs[0].sizes[3]);
  const std::byte* at = static_cast<const std::byte*>(specs[0].data) + x * specs[0].strides[2] +
                        y * specs[0].strides[3];
  EXPECT_EQ(static_cast<const void*>(at), &memory[(begin + row) * 4 * 64]);
  EXPECT_EQ(args.k_rows, 90);
}

/// 0 and infinity are scores, too: a factor of the series that is neither 0 nor infinite.
TEST(FwdSm90, SoftcapsThatHaveNoSeriesAreWorkedOutInTheGeneralWay) {
  std::vector<unsigned short> memory(1 << 16);
  Problem p = problem(DType::bfloat16, 100, 100, 64, 64);
  p.q = p.k = p.v = p.o = Tensor::bshd(memory.data(), p.dtype, 1, 100, 1, 64, p.device);
  const auto filled = [&](double softcap) {
    p.softcap = softcap;
    const fwd_sm90::Config config = fwd_sm90_config(p, fwd_sm90_tiles(p).front(), false);
    fwd_sm90::PagedArgs args;
    fwd_sm90_fill(args, p, config, 0, [](tile::TensorMapBytes&, const TensorMapSpec&) {});
    EXPECT_TRUE(std::isfinite(args.scale_cap)) << softcap;
    return std::pair{config.modification, args};
  };
  for (const double softcap : {1e-8, 1e-3, 1.0, 50.0, 1e6}) {
    const auto [modification, args] = filled(softcap);
    EXPECT_EQ(modification, fwd_sm90::Modification::softcap) << softcap;
    for (const float factor : {args.cap_1, args.cap_2, args.cap_slope, args.cubic_1})
      EXPECT_TRUE(std::isnormal(factor)) << softcap;
  }
  p.scale = 8.0F;
  for (const double softcap : {1.2e-38, 1e-30, 1e-12, 2e6, 1e12, 2e38})
    EXPECT_EQ(filled(softcap).first, fwd_sm90::Modification::general) << softcap;
}

Problem over_pages(std::int64_t page_size, std::int64_t seq_q, std::int64_t dim) {
  static int lengths[2] = {}, table[2] = {};
  static std::vector<unsigned short> memory(1 << 16);
  Problem p = problem(DType::bfloat16, seq_q, 1024 * page_size, dim, dim);
  p.paged = true;
  p.page_size = page_size;
  p.k = p.v = Tensor::bshd(memory.data(), p.dtype, 7, page_size, 4, dim, p.device);
  p.key_lengths = Tensor::contiguous(lengths, DType::int32, {2}, p.device);
  p.block_table = Tensor::contiguous(table, DType::int32, {2, 1024}, p.device);
  return p;
}

TEST(ForwardSm90, ABoxIsOfOnePage) {
  for (const auto& [page_size, block_n, rows] :
       {std::tuple{16, 128, 16}, {64, 80, 16}, {256, 128, 128}, {24, 128, 8}, {7, 128, 1}}) {
    EXPECT_EQ(fwd_sm90_box_rows(over_pages(page_size, 128, 64), block_n), rows) << page_size;
  }
  using fwd_sm90::PageCopies;
  for (const auto& [page_size, copies] : {std::pair{16, PageCopies::boxes},
                                          {4, PageCopies::boxes},
                                          {24, PageCopies::boxes},
                                          {26, PageCopies::rows},
                                          {7, PageCopies::rows},
                                          {1, PageCopies::rows}}) {
    const Problem p = over_pages(page_size, 128, 64);
    EXPECT_EQ(fwd_sm90_config(p, fwd_sm90_tiles(p).front(), false).pages, copies) << page_size;
  }
}

// Row i of a page with n keys: x = size - n + i, y = n.
TEST(ForwardSm90, MapsOfPagesEndWhereThePagesKeysDo) {
  static std::vector<TensorMapSpec> specs;
  specs.clear();
  const Problem p = over_pages(16, 128, 64);
  fwd_sm90::PagedArgs args;
  fwd_sm90_fill(args, p, fwd_sm90_config(p, fwd_sm90_tiles(p).front(), false), 0,
                [](tile::TensorMapBytes&, const TensorMapSpec& spec) { specs.push_back(spec); });
  ASSERT_EQ(specs.size(), 4U);
  const TensorMapSpec& k = specs[1];
  EXPECT_EQ(tensor_map_refusal(k), "");
  EXPECT_EQ(k.rank, 5);
  EXPECT_EQ(k.box[2], 16);
  const std::int64_t page = 3, keys = 5, row = 4;
  EXPECT_EQ(16 - keys + keys, k.sizes[2]) << "the row behind the last key";
  const std::byte* at = static_cast<const std::byte*>(k.data) + (16 - keys + row) * k.strides[2] +
                        keys * k.strides[3] + page * k.strides[4];
  EXPECT_EQ(static_cast<const void*>(at),
            static_cast<const unsigned short*>(p.k.data) + (page * 16 + row) * 4 * 64);
  EXPECT_EQ(args.box_rows, 16);
  EXPECT_EQ(args.pages.size, 16);
}

TEST(ForwardSm90, RefusesBlockListsOverPages) {
  Problem p = over_pages(16, 128, 64);
  EXPECT_EQ(refusal(p, h100()), "");
  p.block_list.block_q = p.block_list.block_k = 128;
  p.block_list.row_offsets = p.block_table;
  ASSERT_TRUE(p.block_list.defined());
  EXPECT_NE(refusal(p, h100()).find("block lists over pages"), std::string::npos);
}

TEST(ForwardSm90, SplitsKeysWhereTheGridIsSmall) {
  Problem p = problem(DType::bfloat16, 128, 16384, 128, 128);
  EXPECT_GT(fwd_sm90_choose(p, h100()).splits, 1);
  p = problem(DType::bfloat16, 16384, 16384, 128, 128);
  EXPECT_EQ(fwd_sm90_choose(p, h100()).splits, 1);
  // One query to each of two packed sequences.
  p = problem(DType::bfloat16, 1, 16384, 128, 128);
  p.packed = true;
  p.total_q = 2;
  p.total_k = 32768;
  EXPECT_GT(fwd_sm90_choose(p, h100()).splits, 1);
}

// Their tiles see nearly all keys each: parts that make one wave and a little more would take two.
TEST(ForwardSm90, PartsOfAChunkOnAPrefixRunAtOnce) {
  for (const auto& [seq_q, seq_k] : {std::pair{16, 8192}, {64, 16384}, {128, 8192}, {512, 16384}}) {
    Problem p = problem(DType::bfloat16, seq_q, seq_k, 128, 128);
    p.batch = 1;
    p.heads_q = 32;
    p.causal = Causal::bottom_right;
    p.right = 0;
    const FwdSm90Choice choice = fwd_sm90_choose(p, h100());
    const int shift = fwd_sm90_pack_shift(p, *choice.tile);
    const Config config = fwd_sm90_config(p, *choice.tile, choice.splits > 1);
    const SectionOrder order =
        fwd_sm90_order(p, config, choice.tile->block_m() >> shift, choice.splits);
    EXPECT_LE(order.heads * order.blocks, 132) << seq_q << ' ' << seq_k;
    EXPECT_GE(order.heads * order.blocks, 64) << seq_q << ' ' << seq_k;
  }
}

TEST(ForwardSm90, ATileForShortWindowsIsTakenForNothingElse) {
  for (const std::int64_t seq : {512, 2048, 8192, 16384}) {
    Problem p = problem(DType::bfloat16, seq, seq, 128, 128);
    p.batch = 1;
    p.heads_q = p.heads_k = 16;
    EXPECT_FALSE(fwd_sm90_choose(p, h100()).tile->for_windows()) << seq;
    p.causal = Causal::bottom_right;
    p.right = 0;
    EXPECT_FALSE(fwd_sm90_choose(p, h100()).tile->for_windows()) << seq;
    p.left = 4095;
    EXPECT_FALSE(fwd_sm90_choose(p, h100()).tile->for_windows()) << seq;
  }
  Problem p = problem(DType::bfloat16, 16384, 16384, 128, 128);
  p.batch = 1;
  p.heads_q = p.heads_k = 16;
  p.causal = Causal::bottom_right;
  p.right = 0;
  p.left = 1023;
  EXPECT_TRUE(fwd_sm90_choose(p, h100()).tile->for_windows());
}

TEST(ForwardSm90, TilesByLength) {
  Problem p = problem(DType::bfloat16, 512, 512, 128, 128);
  p.batch = 32;
  p.heads_q = p.heads_k = 16;
  EXPECT_EQ(fwd_sm90_choose(p, h100()).tile->block_m(), 128);
  p = problem(DType::bfloat16, 8192, 8192, 128, 128);
  p.heads_q = p.heads_k = 16;
  EXPECT_EQ(fwd_sm90_choose(p, h100()).tile->block_m(), 128);
  p.causal = Causal::bottom_right;
  p.right = 0;
  EXPECT_EQ(fwd_sm90_choose(p, h100()).tile->block_m(), 192);
  p = problem(DType::bfloat16, 369, 369, 128, 128);
  p.batch = 64, p.heads_q = 14, p.heads_k = 2;
  p.causal = Causal::bottom_right;
  p.right = 0;
  EXPECT_EQ(fwd_sm90_choose(p, h100()).tile->block_m(), 128) << "0.100 ms, 192 x 80 0.112";
}

TEST(ForwardSm90, FewTilesShareMultiprocessors) {
  Problem p = problem(DType::bfloat16, 512, 512, 64, 64);
  const auto shares = [&] { return fwd_sm90_choose(p, h100()).tile->shape.resident > 1; };
  p.batch = 8, p.heads_q = p.heads_k = 12;  // 768 tiles of 64 queries
  EXPECT_TRUE(shares());
  p.batch = 1;
  EXPECT_TRUE(shares());
  p.heads_q = 24;
  EXPECT_FALSE(shares()) << "grouped heads were not timed";
  p.heads_q = 12;
  p.causal = Causal::bottom_right, p.right = 0;
  EXPECT_FALSE(shares()) << "nor masks";
  p = problem(DType::bfloat16, 512, 512, 64, 64);
  p.batch = 1, p.heads_q = p.heads_k = 4;
  EXPECT_FALSE(shares()) << "32 tiles";
  p = problem(DType::bfloat16, 197, 197, 64, 64);
  p.batch = 64, p.heads_q = p.heads_k = 12;
  EXPECT_TRUE(shares()) << "0.0484 ms, 192 x 128 0.0519";
  p = problem(DType::bfloat16, 577, 577, 64, 64);
  p.batch = 32, p.heads_q = p.heads_k = 16;
  EXPECT_FALSE(shares()) << "192 x 128 was the fastest";
}

TEST(ForwardSm90, UnitCarriesItsProducts) {
  Config config;
  config.shape.block_n = 80;
  config.shape.warpgroups = 3;
  const KernelUnit unit = fwd_sm90_unit(config);
  EXPECT_EQ(unit.threads, 512);
  EXPECT_NE(unit.prelude.find("m64n80k16"), std::string::npos);
  EXPECT_NE(unit.prelude.find("m64n128k16"), std::string::npos);
  EXPECT_NE(unit.config.find(".block_n = 80"), std::string::npos);
  config.shape.block_n = 320;
  EXPECT_NE(config_refusal(config), "");
}

TEST(WgmmaText, OperandsAreCounted) {
  const std::string text = wgmma_text(tile::Element::fp16, {16, true, true});
  // Eight accumulators, then two descriptors and a predicate, or four registers and a descriptor.
  EXPECT_NE(text.find("m64n16k16.f32.f16.f16"), std::string::npos);
  EXPECT_NE(text.find("%7}, %8, %9, p, 1, 1, 0, 0"), std::string::npos) << text;
  EXPECT_NE(text.find("%7}, {%8, %9, %10, %11}, %12, 1, 1, 1, 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace tilewise::cuda
