/// fwd_sm90: what a consumer asks for and adds for a bool mask, dropout and a bias. NOTE: functions
/// beside the consumer, not members: units that call none of them stay what they are.
#pragma once

#include "cuda/kernels/fwd_sm90/listed.cuh"
#include "cuda/kernels/fwd_sm90/scores.cuh"
#include "cuda/tile/bias.cuh"
#include "cuda/tile/tree.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// The block of keys that is the tile's n-th, or the one that a list has come to.
template <Config kConfig, class Consumer>
__forceinline__ int block_at(const Consumer& c, int n) {
  if constexpr (kListed<kConfig>) return c.tile_k;
  return key_block<kConfig>(c.args, c.tile, n);
}

/// Asks for what the bool mask shows of a block, of a list of a tile of keys.
template <Config kConfig, class Consumer>
__forceinline__ void load_mask(const Consumer& c, int n, u32 (&words)[2]) {
  const int first = c.group_query();
  const int block = kListed<kConfig> ? n : key_block<kConfig>(c.args, c.tile, n);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Rows past the last query see what it does.
    int line = min(query<kConfig>(c, first, r), queries<kConfig>(c.args, c.tile) - 1);
    if constexpr (kConfig.lengths == Lengths::packed) line += c.tile.q_begin;
    const int head = row_head<kConfig>(c, c.tile, local_row<kConfig>(c, r));
    words[r] = load_global_early(
        mask_words(c.scores.options->mask, c.tile.batch, head, line, block) + c.lane % 4);
  }
}
/// What it shows of a block, ahead of the products that its scores come from. Words are asked for a
/// block ahead: looked at as soon as products may be issued, they must be there, or the turn waits
/// for them. Of what a list has whole nothing is hidden.
template <Config kConfig, bool kMasked, class Consumer>
__forceinline__ void take_mask(Consumer& c, int n) {
  if constexpr (kListed<kConfig> && !kMasked) return;
  c.scores.shown[0] = c.scores.coming[0], c.scores.shown[1] = c.scores.coming[1];
  load_mask<kConfig>(c, kListed<kConfig> ? c.next_tile_k : max(n - 1, 0), c.scores.coming);
}

/// What a tree shows the thread's rows of a block, from `column` on.
template <Config kConfig, class Consumer>
__forceinline__ void take_tree(Consumer& c, const int (&rows)[2], int column) {
  const int seq_q = queries<kConfig>(c.args, c.tile), seq_k = keys<kConfig>(c.args, c.tile);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Rows past the last query see what it does.
    const u32 bits = tree_bits<kConfig.shape.block_n>(
        c.scores.options->tree, c.tile.batch, min(rows[r], seq_q - 1), column - (seq_k - seq_q));
    c.scores.shown[r] = kConfig.options.mask ? c.scores.shown[r] & bits : bits;
  }
}

/// Shared memory of a warp for dropout's words of keys.
template <Config kConfig, class Consumer>
__forceinline__ u32 dropout_place(const Consumer& c) {
  return c.shared.base + Consumer::kPlan.dropout +
         (c.warpgroup * 4 + c.warp) * SharedPlan::dropout_warp(kConfig);
}
/// Makes dropout's bits of a block. Straight code: no branch may lie between products and their
/// wait, or ptxas serialises them.
template <Config kConfig, class Consumer>
__forceinline__ void take_dropout(Consumer& c, int n) {
  using Scores = Scores<kConfig>;
  if constexpr (kConfig.options.dropout) {
    const int bh = c.tile.batch * c.args.heads_q + c.tile.head, row = c.group_query() + c.warp * 16;
    const int key = block_at<kConfig>(c, n) * kConfig.shape.block_n;
    const tile::DropoutBits& bits = c.scores.options->dropout;
    const u32 place = dropout_place<kConfig>(c);
    if constexpr (kConfig.schedule.bits_between) {
      auto& maker = c.scores.maker;
      maker.enter_rows(bits, bh, row, c.lane, place);
      maker.hold(static_cast<u32>(c.lane) * c.scores.options->zero);
      maker.enter_columns(key);
#pragma unroll
      for (int i = 0; i < Scores::Maker::kGroups; ++i)
        c.scores.kept[i] = maker.template group_bits<true>(i);
    } else {
      const typename Scores::Kept made(bits, bh, row, key, c.lane, place);
#pragma unroll
      for (int i = 0; i < Consumer::kScores / Scores::kPerWord; ++i)
        c.scores.kept[i] = made.bits[i];
    }
  }
}

/// Dropout's bits of a block whose products are being issued, a tile's second or a later one.
/// Without bits_between they are made behind them.
template <Config kConfig, class Consumer>
struct BitsBetween {
  Consumer& c;
  int n;

  __forceinline__ BitsBetween(Consumer& consumer, int block) : c(consumer), n(block) {
    if constexpr (kConfig.schedule.bits_between)
      c.scores.maker.enter_columns(block_at<kConfig>(c, n) * kConfig.shape.block_n);
  }
  /// Behind the i-th of kProducts: its share of a group's counters.
  template <int kGroup, int kProducts>
  __forceinline__ void make(int i) {
    if constexpr (kConfig.schedule.bits_between) {
      auto& maker = c.scores.maker;
      constexpr int kEach = Scores<kConfig>::Maker::kEach;
      if (i == 0) maker.begin(kGroup);
#pragma unroll
      for (int x = kEach * i / kProducts; x < kEach * (i + 1) / kProducts; ++x)
        maker.make(kGroup, x);
      if (i == kProducts - 1) c.scores.kept[kGroup] = maker.end();
    }
  }
  __forceinline__ void finish() {
    if constexpr (!kConfig.schedule.bits_between) take_dropout<kConfig>(c, n);
  }
};

/// Where the warp's rows and a block of keys lie in tensors of pairs.
template <Config kConfig, class Consumer>
__forceinline__ PairCorner pair_corner(const Consumer& c, int n) {
  const int key = block_at<kConfig>(c, n) * kConfig.shape.block_n;
  PairCorner at = corner_of<kConfig>(c.args, c.tile, c.group_query() + c.warp * 16, key);
  if constexpr (kConfig.lengths == Lengths::packed) {
    at.query += c.tile.q_begin;
    at.seq_q += c.tile.q_begin;
  }
  return at;
}
template <Config kConfig, class Consumer>
__forceinline__ auto bias_block(const Consumer& c) {
  const u32 place = c.shared.base + Consumer::kPlan.bias +
                    (c.warpgroup * 4 + c.warp) * SharedPlan::bias_warp(kConfig);
  return BiasBlock<kConfig.options.pairs, kConfig.shape.block_n>{c.scores.options->pairs.bias,
                                                                 place, c.lane};
}
/// A bias in boxes. A block's is waited for ahead of its products, if they come apart behind them.
template <Config kConfig, class Consumer>
__forceinline__ void wait_boxes(const Consumer& c) {
  if constexpr (kConfig.boxes_bias())
    mbarrier_wait(c.shared.boxes_full(c.boxes.slot(), c.warpgroup), c.boxes.parity());
}
/// Their place is free if `done`: all lanes have read.
template <Config kConfig, class Consumer>
__forceinline__ void free_boxes(const Consumer& c, bool done) {
  const u32 empty = c.shared.boxes_empty(c.boxes.slot(), c.warpgroup);
  if (done && c.lane == 0) mbarrier_arrive(empty);
}
/// `freed`: the place is free already.
template <Config kConfig, class Consumer>
__forceinline__ void release_boxes(Consumer& c, bool freed = false) {
  if constexpr (kConfig.boxes_bias()) {
    __syncwarp();
    free_boxes<kConfig>(c, !freed);
    c.boxes.advance();
  }
}
/// Those of a block that is passed over.
template <Config kConfig, class Consumer>
__forceinline__ void pass_boxes(Consumer& c) {
  wait_boxes<kConfig>(c);
  release_boxes<kConfig>(c);
}
/// Adds them: see BiasBlock::add_to(). A matrix of eight rows and eight keys is an accumulator's:
/// two below each other, and those to their right.
template <Config kConfig, bool kLifts, class Consumer>
__forceinline__ void add_boxes(Consumer& c, float factor) {
  constexpr int kPanelChunks = kPanelColumns / 8;
  constexpr bool kRaw = !kLifts && kConfig.adds_raw_bias();
  if constexpr (kConfig.schedule.boxes_apart) wait_boxes<kConfig>(c);
  const float inverse = kLog2e * c.args.scale_inverse;
  const auto add = [&](float& s, float b) {
    if constexpr (kRaw) {
      s = __fmaf_rn(b, inverse, s);
    } else if constexpr (kLifts) {
      s = with_bias(s * factor, b);
    } else {
      s = __fmaf_rn(s, factor, __fmul_rn(b, kLog2e));
    }
  };
  const int row = c.warp * 16 + c.lane % 16;
  u32 from = c.shared.boxes(c.boxes.slot(), c.warpgroup) + static_cast<u32>(row * kPanelRowBytes);
  auto& S = c.scores.rS;
#pragma unroll
  for (int j = 0; j < kConfig.shape.block_n / 8; j += 2) {
    // A few at a time: read far ahead they would spill.
    if (j >= 4) from = after(from, S[4 * (j - 4)]);
    const int chunk = (j % kPanelChunks + c.lane / 16) ^ (row % 8);
    u32 words[4];
    load_matrix_x4(words,
                   from + j / kPanelChunks * SharedPlan::kPanel + static_cast<u32>(chunk * 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      BiasPair<kConfig.options.pairs.bias> b;
      b.take(words[i]);
      const int score = 4 * (j + i / 2) + 2 * (i % 2);
      add(S[score], b.x.x);
      add(S[score + 1], b.x.y);
    }
  }
}
/// (F3) The bias of a block: raw scores become logits in the log2 domain, as far as modify() has
/// not made them so. kLifts: of BiasBlock.
template <Config kConfig, bool kLifts, class Consumer>
__forceinline__ void add_bias(Consumer& c, int n) {
  const bool scaled = Consumer::kModification == Modification::general &&
                      (c.args.cap_log2 != 0.0F || c.scores.slope != 0.0F);
  if constexpr (kConfig.boxes_bias())
    return add_boxes<kConfig, kLifts>(c, scaled ? 1.0F : c.args.scale_log2);
  bias_block<kConfig>(c).template add_to<kLifts>(c.scores.rS, scaled ? 1.0F : c.args.scale_log2,
                                                 pair_corner<kConfig>(c, n));
}

/// What a block needs beside its operands, asked for ahead of its products.
template <Config kConfig, bool kMasked, class Consumer>
__forceinline__ void take_options(Consumer& c, int n) {
  if constexpr (kConfig.options.mask) take_mask<kConfig, kMasked>(c, n);
  if constexpr (kConfig.boxes_bias()) {
    if constexpr (!kConfig.schedule.boxes_apart) wait_boxes<kConfig>(c);
  } else if constexpr (kConfig.options.bias()) {
    bias_block<kConfig>(c).load_async(pair_corner<kConfig>(c, n));
  }
}
/// The same of a tile's first block.
template <Config kConfig, class Consumer>
__forceinline__ void take_first_options(Consumer& c, int n) {
  if constexpr (kConfig.options.mask)
    load_mask<kConfig>(c, kListed<kConfig> ? c.tile_k : n, c.scores.coming);
  take_options<kConfig, true>(c, n);
  take_dropout<kConfig>(c, n);
}

}  // namespace tilewise::fwd_sm90
