/// bwd_sm90: scores of 64 keys against a block of queries, and what they become: P, with a softcap
/// its slope. Everything is transposed: rows are keys, columns queries.
#pragma once

#include "cuda/kernels/bwd_sm90/bias.cuh"
#include "cuda/kernels/bwd_sm90/shown.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/expression.cuh"
#include "cuda/tile/options.cuh"
#include "cuda/tile/softcap.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Scores : HeldOptions<kConfig.options.any()>, HeldPlaced<kConfig.tells_placed()> {
  static constexpr int kM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n,
                       kD = kConfig.head_dim;
  static constexpr Element kElement = kConfig.element;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kScore = kConfig.expressions.score, kHidden = kConfig.expressions.mask;
  /// ALiBi, or a score function of the form of tile::Slant, from the start of the products on.
  static constexpr bool kAddsAlibi = kConfig.logits.alibi && kConfig.fold_lse();
  /// A score function that is asked for every pair.
  static constexpr bool kCalls = kScore != 0 && !kAddsAlibi;
  static_assert(!kAddsAlibi || !kConfig.large_dim());
  static_assert(!kCalls ||
                (kConfig.logits.modified && !kConfig.logits.softcap && !kConfig.logits.alibi));
  static_assert(!kConfig.expressions.any() || !kConfig.large_dim());
  static_assert(!kConfig.expressions.shifts || (kCalls && !kPacked<kConfig>));
  static_assert(!kConfig.options.mask || (!kConfig.large_dim() && !kPacked<kConfig>));
  static_assert(!kConfig.options.dropout || !kConfig.large_dim());
  static_assert(!kConfig.options.bias() ||
                (kConfig.logits.modified && !kConfig.large_dim() && !kConfig.listed() &&
                 !kPacked<kConfig> && !kConfig.expressions.any() &&
                 kConfig.options.pairs.bias != BiasType::float32));
  using Product = Wgmma<kElement, kM>;

  Worker<kConfig> worker;
  /// Descriptors: 64 rows of K as A, the first stage of Q as B.
  u64 dK;
  const u64 dQ;
  int bh = 0, block = 0;  ///< head (of the whole batch) and block of queries whose P is ready
  float rS[kM / 2];       ///< S^T
  u32 rP[kM / 4];         ///< P^T
  u32 rPlow[kConfig.two_plane ? kM / 4 : 1];  ///< what rounding took from it
  u32 rGate[kConfig.logits.softcap && kConfig.large_dim() ? kM / 4
                                                          : 1];  ///< slope of the softcap, float16
  u32 rHalf[kConfig.half_registers() ? kD / 8 : 1];              ///< half of K as A fragments
  float slope = 0.0F;                                            ///< ALiBi's, log2 domain
  /// kAddsAlibi, log2 domain: of a block of queries a logit is rS times the scale, `side` a query
  /// from the thread's first one on, and `base` of the key. Where the diagonal crosses the block
  /// without the distance.
  Slant affine;
  float side = 0.0F, base[2];
  bool crosses = false;
  // expressions
  const Captures* captures = nullptr;
  int query_head = 0;
  typename ScoreFunction<kScore>::Uniform of_score;
  typename MaskFunction<kHidden>::Uniform of_mask;

  __forceinline__ Scores(const Args& a, u32 shared_base, int group)
      : worker(a, shared_base, group),
        dK(panel_descriptor(worker.shared.k(0) + first_row() * kPanelRowBytes, 16)),
        dQ(panel_descriptor(worker.shared.q(0), 16)) {}

  /// First of the warpgroup's keys in the tile.
  __forceinline__ int first_row() const { return kConfig.large_dim() ? 0 : worker.warpgroup * 64; }
  __forceinline__ int key_row() const {
    return worker.job.block * kBlockN + first_row() + worker.warp * 16 + worker.lane / 4;
  }

  /// Where the warp's 16 keys and a block of queries from `column` on lie.
  __forceinline__ PairCorner corner(int column) const {
    return {worker.job.batch,
            query_head,
            block * kM + column,
            key_row() - worker.lane / 4,
            queries_of<kConfig>(worker.args, worker.job),
            keys_of<kConfig>(worker.args, worker.job)};
  }
  __forceinline__ void load_slope(int of_head) {
    if constexpr (kConfig.expressions.any()) {
      query_head = of_head;
      const Place place = place_of(corner(0));
      if constexpr (kCalls) of_score = ScoreFunction<kScore>::uniform(place, *captures);
      if constexpr (kAddsAlibi && kScore != 0) {
        affine = ScoreSlant<kScore>::of(place, *captures);
        affine.multiply(kLog2e);
      }
      if constexpr (kHidden != 0) of_mask = MaskFunction<kHidden>::uniform(place, *captures);
    }
    if constexpr (kConfig.logits.alibi && kScore == 0) {
      slope =
          kLog2e *
          worker.args.alibi[worker.job.batch * worker.args.alibi_b + of_head * worker.args.alibi_h];
    }
  }
  /// (F3) ALiBi of a block of queries, before its products. Votes, though all lanes agree: see
  /// fwd_sm90/functions_and_lists.md.
  __forceinline__ void enter_block(int of_block) {
    if constexpr (kAddsAlibi) {
      Slant of = affine;
      if constexpr (kScore == 0) {
        of.distance = slope;
        of.shift = shift();
      }
      // Distances of the warp's last key to the first query, of its first one to the last.
      const int key = key_row(), least = of_block * kM + of.shift - (key - worker.lane / 4 + 15);
      const bool right = __any_sync(~0U, least < 0);
      crosses = right && __any_sync(~0U, least + 15 + kM - 1 > 0);
      const float distance = crosses ? 0.0F : right ? -of.distance : of.distance;
      const int query = of_block * kM + 2 * (worker.lane % 4);
      side = -distance;
      if constexpr (kScore != 0) side += of.row - of.ahead;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int j = key + 8 * r;
        base[r] = -distance * static_cast<float>(query + of.shift - j);
        if constexpr (kScore != 0) {
          base[r] += of.ahead * static_cast<float>(j - query) +
                     (of.row * static_cast<float>(query) + of.column * static_cast<float>(j) +
                      of.constant);
        }
      }
    }
  }

  /// A list: which block of queries the stage of Q at hand holds; `kMasked`: and what of it lists
  /// the warp's 16 keys, which are of one block of keys.
  template <bool kMasked>
  __forceinline__ u32 take_listed() {
    if constexpr (kConfig.listed()) {
      const u32 at = worker.shared.listed(worker.rQ.slot);
      block = static_cast<int>(load_shared_4(at));
      const int head =
          worker.job.head * worker.args.group + static_cast<int>(load_shared_4(at + 4));
      bh = entry_of<kConfig>(worker.job) * worker.args.heads_q + head;
      load_slope(head);
      if constexpr (kMasked && kConfig.tells_placed()) this->placed = load_shared_4(at + 12);
      if constexpr (kMasked && kConfig.lists == Lists::parts) return listed_columns(head);
    }
    return ~0U;
  }
  /// Asks for what the bool mask shows of a block of queries of a head (of the whole batch), before
  /// the products that its scores come from.
  __forceinline__ void take_mask(int of_bh, int of_block) {
    if constexpr (kConfig.options.mask) {
      const int head = of_bh - worker.job.batch * worker.args.heads_q;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = min(key_row() + 8 * r, keys_of<kConfig>(worker.args, worker.job) - 1);
        this->shown[r] = load_global_early(
            mask_words(this->options->mask, worker.job.batch, head, key, of_block) +
            worker.lane % 4);
      }
    }
  }
  /// Dropout's bits of a block are made under the products that its scores come from, in straight
  /// code, which may lie between products and their wait.
  static constexpr bool kDropsAhead = kConfig.options.dropout && !kConfig.two_plane;
  /// Calls `drop` with the number of each of the thread's scores that is dropped.
  /// NOTE: opaque, or each test looks for its bit in what the lanes exchanged.
  template <class Drop>
  __forceinline__ void for_dropped(Drop drop) const {
#pragma unroll
    for (int word = 0; word < kM / 64; ++word) {
      const u32 bits = static_cast<u32>(opaque(static_cast<int>(this->kept[word])));
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if ((bits >> i & 1) == 0) drop(32 * word + i);
      }
    }
  }
  /// (B3) Z P, packed; 1 / (1 - p) comes with dV.
  template <int kWords>
  __forceinline__ void drop(u32 (&words)[kWords]) const {
    if constexpr (kConfig.options.dropout)
      for_dropped([&](int i) { words[i / 2] &= i % 2 == 0 ? ~0xffffU : 0xffffU; });
  }
  /// A list has blocks whole of which the mask hides nothing: it is looked at in the others alone,
  /// together with what position hides.
  static constexpr bool kMasksListed = kConfig.options.mask && kConfig.listed();
  /// (F4) by the bool mask, where it hides a score of the warp. CONTRACT 10
  __forceinline__ void mask_shown() {
    if (!__any_sync(~0U, (this->shown[0] & this->shown[1]) != ~0U)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kM / 4; ++i) {
        if ((this->shown[r] >> i & 1) == 0) rS[4 * (i / 2) + 2 * r + i % 2] = -infinity();
      }
    }
  }
  /// A bit for each 16 queries of the block.
  __forceinline__ u32 listed_columns(int head) const {
    const TileLists& of = listed<kConfig>(worker.args).of_keys;
    const i64 list = static_cast<i64>(worker.job.batch) * of.list_b + head * of.list_h;
    const int key_block =
        (worker.job.block * kBlockN + first_row() + worker.warp * 16) >> of.shift_k;
    const unsigned* bits = of.listed + list * of.query_blocks * of.block_words + key_block / 32;
    u32 columns = 0;
#pragma unroll
    for (int c = 0; c < kM / 16; ++c) {
      // Queries past the end have no P: any block serves.
      const int of_queries = min((block * kM + 16 * c) >> of.shift_q, of.query_blocks - 1);
      const u32 word = bits[static_cast<i64>(of_queries) * of.block_words];
      columns |= (word >> (key_block % 32) & 1U) << c;
    }
    return columns;
  }

  /// Of K or V in a step. With ALiBi those of its products are made anew in each: kept through the
  /// loop they take more registers than there are.
  __forceinline__ u64 step_descriptor(u64 d) const {
    if constexpr (kConfig.logits.alibi && kM == 64 && !kConfig.large_dim()) return opaque(d);
    return d;
  }
  /// (F1) S^T = K Q^T; with fold_lse S - LSE
  __forceinline__ void issue_scores() {
    if constexpr (kConfig.fold_lse()) load_columns(rS, worker.shared.offset(worker.rQ.slot));
    if constexpr (kAddsAlibi) {
      const float raw = side * (-kLn2 * worker.args.offset_factor);
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) {
        const float query = static_cast<float>(8 * (i / 4) + i % 2);
        rS[i] = i / 2 % 2 == 1 ? rS[i - 2] : __fmaf_rn(raw, query, rS[i]);
      }
    }
    const u64 k = step_descriptor(dK);
    const u64 q = dQ + worker.rQ.slot * (kPlan.q_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      if constexpr (kConfig.half_registers()) {
        if (i >= kD / 32) {
          const u32* a = rHalf + 4 * (i - kD / 32);
          Product::multiply_register_rows(rS, a[0], a[1], a[2], a[3], q + panel_step<kM>(i), 1);
          continue;
        }
      }
      Product::multiply_shared(rS, k + panel_step<kBlockN>(i), q + panel_step<kM>(i),
                               kConfig.fold_lse() || i != 0);
    }
    wgmma_commit();
  }
  /// A value of each query to its column of a fragment.
  __forceinline__ void load_columns(float (&r)[kM / 2], u32 values) const {
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      const Floats2 x = load_shared_8(values + j * 32 + worker.lane % 4 * 8);
      r[4 * j] = r[4 * j + 2] = x.x;
      r[4 * j + 1] = r[4 * j + 3] = x.y;
    }
  }
  /// Where the thread keeps the slopes of its scores, 16 bytes for eight of them.
  __forceinline__ u32 gate_place() const {
    return worker.shared.base + kPlan.gate + (worker.warpgroup * 128 + worker.thread) * 16;
  }
  /// Slopes of the thread's scores from 8 n on: of the operands' type, or exact.
  __forceinline__ void store_slopes(const float (&g)[8], int n) const {
    if constexpr (kConfig.two_plane) {
      store_shared_16(gate_place() + 2 * n * 4096, g[0], g[1], g[2], g[3]);
      store_shared_16(gate_place() + (2 * n + 1) * 4096, g[4], g[5], g[6], g[7]);
    } else {
      const auto two = [&](int e) { return __uint_as_float(pack<kElement>(g[e], g[e + 1])); };
      store_shared_16(gate_place() + n * 4096, two(0), two(2), two(4), two(6));
    }
  }
  /// The slopes of two scores, e and e + 1 of those from 8 n on.
  __forceinline__ Floats2 slopes_of(const Bytes16 (&words)[2], int e) const {
    const auto word = [&](int i) {
      const Bytes16& x = words[kConfig.two_plane ? i / 4 : 0];
      return i % 4 == 0 ? x.x : i % 4 == 1 ? x.y : i % 4 == 2 ? x.z : x.w;
    };
    if constexpr (kConfig.two_plane)
      return {__uint_as_float(word(e)), __uint_as_float(word(e + 1))};
    return {widen<kElement>(word(e / 2) & 0xffffU), widen_high<kElement>(word(e / 2))};
  }
  __forceinline__ void load_slopes(Bytes16 (&words)[2], int n) const {
    constexpr int kWords = kConfig.two_plane ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      words[i] = load_shared_16(gate_place() + (kWords * n + i) * 4096);
  }
  /// The caller's score function on raw scores, which become logits in the log2 domain.
  __forceinline__ void score_function() {
    using Function = ScoreFunction<kScore>;
#pragma unroll
    for (int i = 0; i < kM / 2; i += 8) {
      float g[8];
      const PairCorner at = corner(2 * i);
      for_each_pair<Function, true, 1, 2>(
          at, of_score, *captures, opaque(worker.lane),
          [&](int, int n, int e, const auto& query, const auto& key, const auto& diagonal) {
            float& s = rS[i + 4 * n + e];
            const float y =
                Function::value(place_of(at), of_score, query.part, key.part, diagonal, query.index,
                                key.index, worker.args.scale * s, *captures, g[4 * n + e]);
            // As bwd_sm80's less_lse2, by which LSE was taken anew.
            s = kConfig.expressions.shifts ? __fmul_rn(kLog2e, y) : kLog2e * y;
          });
      if constexpr (kConfig.logits.gated) store_slopes(g, i / 8);
    }
  }
  __forceinline__ void mask_function() {
    using Function = MaskFunction<kHidden>;
    // A vote, though all lanes agree: see enter_block().
    if constexpr (kConfig.tells_placed()) {
      if (__any_sync(~0U, this->placed != 0)) return;
    }
#pragma unroll
    for (int i = 0; i < kM / 2; i += 8) {
      const PairCorner at = corner(2 * i);
      for_each_pair<Function, true, 1, 2>(
          at, of_mask, *captures, opaque(worker.lane),
          [&](int, int n, int e, const auto& query, const auto& key, const auto& diagonal) {
            const bool visible = Function::value(place_of(at), of_mask, query.part, key.part,
                                                 diagonal, query.index, key.index, *captures);
            if (!visible) rS[i + 4 * n + e] = -infinity();
          });
    }
  }
  /// (F2, F3) raw scores to logits in the log2 domain; the slope of the softcap to shared memory.
  __forceinline__ void modify() {
    if constexpr (kCalls) {
      score_function();
    } else if constexpr (kConfig.logits.softcap) {
      const u32 gate = gate_place();
#pragma unroll
      for (int i = 0; i < kM / 2; i += 8) {
        u32 g[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& a = rS[i + 2 * e];
          float& b = rS[i + 2 * e + 1];
          a = tanh_fast(worker.args.scale_cap * a);
          b = tanh_fast(worker.args.scale_cap * b);
          g[e] = pack<Element::fp16>(__fmaf_rn(-a, a, 1.0F), __fmaf_rn(-b, b, 1.0F));
          a *= worker.args.cap_log2;
          b *= worker.args.cap_log2;
        }
        if constexpr (kConfig.large_dim()) {
#pragma unroll
          for (int e = 0; e < 4; ++e) rGate[i / 2 + e] = g[e];
        } else {
          store_shared_16(gate + i / 8 * 4096, __uint_as_float(g[0]), __uint_as_float(g[1]),
                          __uint_as_float(g[2]), __uint_as_float(g[3]));
        }
      }
    } else if constexpr (kConfig.logits.modified && !kScalesWithBias<kConfig>) {
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) rS[i] *= worker.args.scale_log2;
    }
    if constexpr (kAddsAlibi) {
      if (__any_sync(~0U, crosses)) {
        const float factor = kScore != 0 ? affine.distance : slope;
        subtract_distance(factor * (-kLn2 * worker.args.offset_factor),
                          kScore != 0 ? affine.shift : shift());
      }
    } else if constexpr (kConfig.logits.alibi) {
      subtract_distance(slope, shift());
    }
  }
  /// Sk - Sq of the sequence.
  __forceinline__ int shift() const {
    return keys_of<kConfig>(worker.args, worker.job) - queries_of<kConfig>(worker.args, worker.job);
  }
  /// Subtracts factor * |i + shift - j|.
  __forceinline__ void subtract_distance(float factor, int of_shift) {
    const float distance =
        static_cast<float>(block * kM + 2 * (worker.lane % 4) + of_shift - key_row());
#pragma unroll
    for (int i = 0; i < kM / 2; ++i) {
      const float here = distance + static_cast<float>(8 * (i / 4) + i % 2 - 8 * (i / 2 % 2));
      rS[i] = __fmaf_rn(-factor, fabsf(here), rS[i]);
    }
  }

  /// Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4, 5, 10
  __forceinline__ void mask(u32 listed_columns) {
    const int column = block * kM + 2 * (worker.lane % 4);
    const Diagonals d = diagonals<kConfig>(worker.args, worker.job);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_row() + 8 * r;
      int begin = -Positions::kFar;
      if constexpr (kConfig.mask != Mask::none) begin = key - d.high + 1 - column;
      if (key >= keys_of<kConfig>(worker.args, worker.job)) begin = Positions::kFar;
#pragma unroll
      for (int j = 0; j < kM / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          bool hidden;
          if constexpr (kConfig.mask == Mask::both) {
            // Visible columns are a range: one comparison finds what lies outside.
            const int width = d.high - d.low;  // of a sequence that sees nothing below 0
            const u32 visible = static_cast<u32>(kConfig.ragged() ? max(width, 0) : width);
            hidden = static_cast<u32>(8 * j + e - begin) >= visible;
          } else {
            hidden = 8 * j + e < begin;
          }
          if constexpr (kConfig.lists == Lists::parts)
            hidden |= (listed_columns >> (j / 2) & 1U) == 0;
          if (hidden) rS[4 * j + 2 * r + e] = -infinity();
        }
      }
    }
  }

  /// (B1) P = exp(min(S - LSE, 0)). The minimum is taken after the exponential, of two at a time.
  template <bool kMasked>
  __forceinline__ void probabilities(u32 listed_columns = ~0U) {
    if constexpr (kConfig.options.mask && (kMasked || !kMasksListed))
      settle_shown(this->shown, rS, this->options->zero);
    modify();
    if constexpr (kConfig.options.bias()) add_bias<kConfig>(worker, rS);
    // What a block list does not mask is full: no mask applies there.
    if constexpr (kHidden != 0 && (kMasked || !kConfig.listed())) mask_function();
    if constexpr (kMasked && kMasksListed) {
      mask_by_bits<kConfig>(*this, listed_columns);
    } else {
      if constexpr (kConfig.options.mask && !kMasksListed) mask_shown();
      if constexpr (kMasked) mask(listed_columns);
    }
    const u32 offset = worker.shared.offset(worker.rQ.slot) + worker.lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      Floats2 l = {0.0F, 0.0F};
      if constexpr (!kConfig.fold_lse()) l = load_shared_8(offset + j * 32);
      Floats2 low = {0.0F, 0.0F};
      if constexpr (kConfig.shifts())
        low = load_shared_8(worker.shared.low(worker.rQ.slot) + worker.lane % 4 * 8 + j * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& a = rS[4 * j + 2 * r];
        float& b = rS[4 * j + 2 * r + 1];
        if constexpr (kAddsAlibi) {
          a = __fmaf_rn(a, worker.args.scale_log2, base[r]);
          b = __fmaf_rn(b, worker.args.scale_log2, base[r]);
        } else if constexpr (kConfig.fold_lse()) {
          a *= worker.args.scale_log2;
          b *= worker.args.scale_log2;
        } else if constexpr (kConfig.shifts()) {
          a = a + l.x - low.x;
          b = b + l.y - low.y;
        } else if constexpr (kConfig.logits.modified) {
          a += l.x;
          b += l.y;
        } else {
          a = __fmaf_rn(a, worker.args.scale_log2, l.x);
          b = __fmaf_rn(b, worker.args.scale_log2, l.y);
        }
        a = exp2_approx(a);
        b = exp2_approx(b);
        if constexpr (kCalls) {
          // Queries that see nothing or are none: whatever the function gives there.
          a = l.x == -infinity() ? 0.0F : a;
          b = l.y == -infinity() ? 0.0F : b;
        }
        if constexpr (kConfig.two_plane) {
          a = min_nan(a, 1.0F);
          b = min_nan(b, 1.0F);
          pack_planes<kElement>(rP[2 * j + r], rPlow[2 * j + r], a, b);
        } else {
          rP[2 * j + r] = min_nan_2<kElement>(pack<kElement>(a, b), kOnes<kElement>);
        }
      }
    }
  }
};

}  // namespace tilewise::bwd_sm90
