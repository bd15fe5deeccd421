/// fwd_sm90: what a consumer does to a block of scores: softcap, ALiBi, mask, a step of the online
/// softmax.
#pragma once

#include "cuda/kernels/fwd_sm90/held.cuh"
#include "cuda/kernels/fwd_sm90/listed.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/expression.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/options.cuh"
#include "cuda/tile/softcap.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// How the softcap is applied to a block of a warp, by its largest score: to every score before the
/// exponent (those of other kernels count as such), or by a series on the way.
enum class Cap : int { before, series, cubic };

/// Where rows from query `first` on and keys from `key` on of a tile lie.
template <Config kConfig>
__forceinline__ PairCorner corner_of(const Args& args, const Tile& tile, int first, int key) {
  return {
      tile.batch, tile.head, first, key, queries<kConfig>(args, tile), keys<kConfig>(args, tile)};
}

/// Scores of 64 rows x block_n keys, as wgmma leaves them, and the statistics of the thread's two
/// rows (r and r + 8 of the warp).
template <Config kConfig>
struct Scores : HeldOptions<kConfig.options.any()>,
                HeldCut<kConfig.shows_cut()>,
                HeldTie<kConfig.leans()>,
                HeldMaker<kConfig.shape.block_n, kConfig.schedule.bits_between> {
  static constexpr int kBlockN = kConfig.shape.block_n;
  static constexpr int kScores = kBlockN / 2;  ///< of a thread
  static constexpr Modification kModification = kConfig.modification;
  static constexpr Expressions kExpressions = kConfig.expressions;
  static constexpr bool kInLog2 = kModification == Modification::general || kConfig.options.bias();
  static constexpr bool kLeans = kConfig.leans();
  static constexpr bool kAddsAlibi = kModification == Modification::alibi || kLeans;
  /// A score function that is asked for every pair.
  static constexpr bool kCalls = kExpressions.score != 0 && !kAddsAlibi;
  static_assert(!kConfig.options.bias() || kModification == Modification::none ||
                kModification == Modification::general);
  float rS[kBlockN / 2];
  float m[2], l[2],
      alpha[2];        ///< reference maximum (log2 domain), sum, what O is scaled by
  float slope = 0.0F;  ///< ALiBi's, log2 domain

  // alibi, log2 domain: a logit of the block is rS times the scale, and `side` a column from the
  // thread's first one on, and `offset` of the row
  Slant affine;  ///< of a score function
  float side = 0.0F, offset[2];
  bool crosses = false;  ///< the diagonal crosses the block: its distances are subtracted apart
  bool nears = false;    ///< the block lies where maxima are not yet to be trusted

  // expressions
  const Captures* captures = nullptr;
  int outgrown = 0;  ///< blocks of the tile whose maxima did; past kMostOutgrown all are searched
  static constexpr int kMostOutgrown = 3;
  typename ScoreFunction<kExpressions.score>::Uniform of_score;
  typename MaskFunction<kExpressions.mask>::Uniform of_mask;

  // softcap
  Cap cap = Cap::before;
  float largest[2];  ///< size of a raw score in each row

  /// (F2) Softcap, (F3) ALiBi and (F1) the scale, as far as softmax() does not apply it. `rows`: of
  /// the thread; `column`: of its first score. `high`: of the tile's diagonals().
  template <bool kMasked, int kCount = kScores>
  __forceinline__ void modify(const Args& args, const int (&rows)[2], int shift, int high,
                              int column, int lane) {
    if constexpr (kModification == Modification::softcap) {
      find_largest<kCount>();
      apply_softcap<kMasked || kConfig.options.mask, kCount>(args);
    }
    if constexpr (kAddsAlibi) {
      if constexpr (kLeans) return lean(rows, shift, column, lane);
      add_alibi(args, rows, shift, high, column, lane);
      if (__any_sync(~0U, crosses)) {
        constexpr bool kText = kExpressions.score != 0;
        subtract_distance((kText ? affine.distance : slope) * args.scale_inverse, rows,
                          kText ? affine.shift : shift, column);
      }
    }
    if constexpr (kModification == Modification::general) {
      if (args.cap_log2 != 0.0F) {
#pragma unroll
        for (int i = 0; i < kBlockN / 2; ++i)
          rS[i] = args.cap_log2 * tanh_fast(args.scale_cap * rS[i]);
      } else if (!kConfig.options.bias() || slope != 0.0F) {
#pragma unroll
        for (int i = 0; i < kBlockN / 2; ++i) rS[i] *= args.scale_log2;
      }
      if (slope != 0.0F) subtract_distance(slope, rows, shift, column);
    }
  }

  /// What the caller's functions have of a batch entry and a head.
  __forceinline__ void enter_place(const Args& args, const Tile& tile) {
    outgrown = 0;
    const Place place = place_of(corner_of<kConfig>(args, tile, 0, 0));
    if constexpr (kCalls) of_score = ScoreFunction<kExpressions.score>::uniform(place, *captures);
    if constexpr (kAddsAlibi && kExpressions.score != 0) {
      affine = ScoreSlant<kExpressions.score>::of(place, *captures);
      affine.multiply(kLog2e);
    }
    if constexpr (kExpressions.mask != 0)
      of_mask = MaskFunction<kExpressions.mask>::uniform(place, *captures);
  }
  /// The caller's functions, after modify(): scores become natural logits, hidden ones -inf.
  /// `at`: the warp's first row and the block's first key.
  template <bool kMasks>
  __forceinline__ void apply_expressions(const Args& args, const PairCorner& at, int lane) {
    const Place place = place_of(at);
    if constexpr (kCalls) {
      using Function = ScoreFunction<kExpressions.score>;
      const float natural = kInLog2 ? kLn2 : args.scale_log2 * kLn2;
      for_each_pair<Function, false, 1, kBlockN / 8>(
          at, of_score, *captures, lane,
          [&](int, int n, int e, const auto& query, const auto& key, const auto& diagonal) {
            float& s = rS[4 * n + e];
            const float y = Function::value(place, of_score, query.part, key.part, diagonal,
                                            query.index, key.index, natural * s, *captures);
            // What its bias hides stays hidden.
            s = kConfig.options.bias() && s == -infinity() ? s : y;
          });
    }
    if constexpr (kExpressions.mask != 0 && kMasks) {
      using Function = MaskFunction<kExpressions.mask>;
      if (this->knows_cut()) return;
      for_each_pair<Function, false, 1, kBlockN / 8>(
          at, of_mask, *captures, lane,
          [&](int, int n, int e, const auto& query, const auto& key, const auto& diagonal) {
            const bool visible = Function::value(place, of_mask, query.part, key.part, diagonal,
                                                 query.index, key.index, *captures);
            if (!visible) rS[4 * n + e] = -infinity();
          });
    }
  }
  /// From scores to exponents.
  static __forceinline__ float exponent_scale(const Args& args) {
    if constexpr (kCalls) return kLog2e;
    return kInLog2 ? 1.0F : args.scale_log2;
  }

  template <int kCount = kScores>
  __forceinline__ void find_largest() {
#pragma unroll
    for (int r = 0; r < 2; ++r) largest[r] = 0.0F;
#pragma unroll
    for (int i = 0; i < kCount; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(rS[i]));
  }

  /// (F2) Softcap. Few blocks hold a score so large that the cap bends it by more than 2 %: there
  /// raw scores become capped ones; the others stay, softmax() caps them in the exponent without
  /// another exponential. Hidden scores, -inf, stay so in the longer series only. After
  /// find_largest().
  template <bool kMasked, int kCount = kScores>
  __forceinline__ void apply_softcap(const Args& args) {
    const float top = fmaxf(largest[0], largest[1]);
    if (!kMasked && !__any_sync(~0U, top > args.cap_cubic)) {
      cap = Cap::cubic;
    } else if (!__any_sync(~0U, top > args.cap_narrow)) {
      cap = Cap::series;
    } else {
      cap = Cap::before;
#pragma unroll
      for (int i = 0; i < kCount; ++i) rS[i] = cap_wide(rS[i], args.cap_slope, args.cap_raw);
    }
  }

  /// (F3) ALiBi. Where all keys of the block lie on one side of the warp's diagonals, the distance
  /// grows with the column alike for every row: an fma a score in the exponent, and what depends on
  /// the row goes to `offset`. Else distances are subtracted from raw scores. `high` is that of the
  /// tile's diagonals: args.high leaves Sk - Sq out where the device looks lengths up.
  /// NOTE: votes, though all lanes agree. A branch that ptxas takes for divergent takes every
  /// descriptor of the loop out of uniform registers.
  __forceinline__ void add_alibi(const Args& args, const int (&rows)[2], int shift, int high,
                                 int column, int lane) {
    Slant of = affine;
    if constexpr (kExpressions.score == 0) of.distance = slope, of.shift = shift;
    // Distance of the warp's first row to the last key, of its last row to the first one.
    const int first = rows[0] - lane / 4 + of.shift - (column - 2 * (lane % 4));
    const bool left = high <= of.shift + 1 || first >= kBlockN - 1;
    float distance = of.distance;
    nears = crosses = false;
    if (__any_sync(~0U, !left)) {
      // From the right on scores grow until the block has passed the diagonal.
      constexpr int kRows = 64 * kConfig.shape.warpgroups + kBlockN;
      nears = kConfig.schedule.from_diagonal && __any_sync(~0U, first + kRows > 0);
      crosses = __any_sync(~0U, first + 15 > 0);
      distance = crosses ? 0.0F : -distance;
    }
    set_sides(of, distance, rows, column);
  }
  __forceinline__ void set_sides(const Slant& of, float distance, const int (&rows)[2],
                                 int column) {
    side = distance;
    if constexpr (kExpressions.score != 0) side += of.ahead + of.column;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = -distance * static_cast<float>(rows[r] + of.shift - column);
      if constexpr (kExpressions.score != 0) {
        const float base = of.row * static_cast<float>(rows[r]) +
                           of.column * static_cast<float>(column) + of.constant;
        offset[r] += of.ahead * static_cast<float>(column - rows[r]) + base;
      }
    }
  }
  /// add_alibi() where every key lies on the left.
  /// NOTE: `side` by a shuffle. Else the compiler keeps it in a uniform register, and copies it for
  /// each column.
  __forceinline__ void lean(const int (&rows)[2], int shift, int column, int lane) {
    Slant of = affine;
    if constexpr (kExpressions.score == 0) of.distance = slope, of.shift = shift;
    set_sides(of, of.distance, rows, column);
    side = __shfl_sync(~0U, side, lane);
  }
  /// A thread's columns are 0, 1, 8, 9, 16, ... from its first one on.
  static constexpr __forceinline__ float column_of(int i) {
    return static_cast<float>(8 * (i / 4) + i % 2);
  }

  /// Subtracts factor * |i + Sk - Sq - j|. In float32: exact up to 2^24 keys, and rounded as the
  /// distance itself would be beyond.
  __forceinline__ void subtract_distance(float factor, const int (&rows)[2], int shift,
                                         int column) {
    const float distance[2] = {static_cast<float>(rows[0] + shift - column),
                               static_cast<float>(rows[1] + shift - column)};
#pragma unroll
    for (int i = 0; i < kBlockN / 2; ++i) {
      const float here = distance[i / 2 % 2] - column_of(i);
      rS[i] = __fmaf_rn(-factor, fabsf(here), rS[i]);
    }
  }

  /// A list has blocks whole of which the bool mask hides nothing.
  static constexpr bool kMasksListed = kConfig.options.mask && kConfig.lists != Lists::none;
  /// Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4, 5, 10.
  /// `begin`, `end`: columns that each row sees, from the thread's first one on; of them those in
  /// `listed`, a bit a score.
  template <int kCount>
  __forceinline__ void mask(const int (&begin)[2], const int (&end)[2], u32 listed = ~0U) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // One bit a score: the tests of seven of them are one instruction.
      const int from = scores_before(begin[r]), to = scores_before(end[r]);
      u32 visible = bit_mask(static_cast<u32>(from), static_cast<u32>(max(to - from, 0))) & listed;
      if constexpr (kMasksListed) {
        // Under a vote, or each of the tests joins the words anew.
        if (__any_sync(~0U, visible != ~0U)) this->shown[r] &= visible;
        continue;
      }
      if constexpr (kConfig.options.mask || kConfig.options.tree) visible &= this->shown[r];
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if ((visible >> i & 1) == 0) rS[4 * (i / 2) + 2 * r + i % 2] = -infinity();
      }
    }
    if constexpr (kMasksListed) mask_shown();
  }
  /// By the bool mask alone, where it hides a score of the warp.
  __forceinline__ void mask_shown() {
    if (!__any_sync(~0U, (this->shown[0] & this->shown[1]) != ~0U)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        if ((this->shown[r] >> i & 1) == 0) rS[4 * (i / 2) + 2 * r + i % 2] = -infinity();
      }
    }
  }
  using Kept = KeptPairs<kConfig.options.dropout, false, 1, kBlockN / 8, 5, true, true>;
  /// Scores of a word of `kept`.
  static constexpr int kPerWord = 4 * Kept::kGroup;
  /// (F10) Z P of what has been summed; 1 / (1 - p) comes at the end.
  /// NOTE: opaque, or the tests of two places of a step are made once, and their answers kept.
  __forceinline__ void drop() {
    if constexpr (kConfig.options.dropout) {
#pragma unroll
      for (int word = 0; word < kScores / kPerWord; ++word) {
        const u32 bits = static_cast<u32>(opaque(static_cast<int>(this->kept[word])));
#pragma unroll
        for (int i = 0; i < kPerWord; ++i) {
          if ((bits >> i & 1) == 0) rS[word * kPerWord + i] = 0.0F;
        }
      }
    }
  }
  /// Of `rows`, keys from `column` on.
  template <int kCount>
  __forceinline__ void mask_rows(const Args& args, const Tile& tile, const int (&rows)[2],
                                 int column, u32 listed) {
    const int seq_k = keys<kConfig>(args, tile);
    const Diagonals d = diagonals<kConfig>(args, tile);
    int begin[2] = {}, end[2] = {seq_k - column, seq_k - column};
    if constexpr (kConfig.mask != Mask::none) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        end[r] = min(end[r], rows[r] + d.high - column);
        if constexpr (kConfig.mask == Mask::both) begin[r] = rows[r] + d.low - column;
      }
    }
    mask<kCount>(begin, end, listed);
  }
  /// How many of a row's scores in this thread (columns 0, 1, 8, 9, 16, ...) are left of `column`.
  static __forceinline__ int scores_before(int column) {
    const int c = max(column, 0);
    return c / 8 * 2 + min(c % 8, 2);
  }

  /// Largest logit of each row in the log2 domain.
  template <int kCount>
  __forceinline__ void row_maxima(const Args& args, float scale, float (&now)[2]) const {
    float top[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) top[i / 2][i % 2] = rS[i];
#pragma unroll
    for (int i = 4; i < kCount; ++i) top[i / 2 % 2][i % 2] = fmaxf(top[i / 2 % 2][i % 2], rS[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = fmaxf(top[r][0], top[r][1]);
      if constexpr (kModification == Modification::softcap) {
        const bool before = cap == Cap::before;
        now[r] = quad_max(x * (before ? scale : cap_narrow(x * x, scale, args.cap_1, args.cap_2)));
      } else if constexpr (kAddsAlibi) {
        now[r] = quad_max(x * scale + offset[r]);  // the offset is the thread's own
      } else {
        now[r] = quad_max(x) * scale;
      }
    }
  }

  /// True when no row of the warp can have grown by 2^8: seen from the sizes of its scores alone.
  __forceinline__ bool keeps_maxima(float scale) const {
    if constexpr (kModification != Modification::softcap || !kConfig.schedule.lazy_rescale)
      return false;
    const bool grows = largest[0] * scale > m[0] + kSlack || largest[1] * scale > m[1] + kSlack ||
                       m[0] == -infinity() || m[1] == -infinity();
    return cap != Cap::before && !__any_sync(~0U, grows);
  }

  /// (F7) m follows the maxima `now`; alpha is what O must be scaled by, `base` what the exponents
  /// are taken against.
  template <bool kFirst, bool kLazy>
  __forceinline__ void move_maxima(const float (&now)[2], float (&base)[2]) {
    if constexpr (kLeans) return move_tied<kFirst, kLazy>(now, base);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = m[r];
      if constexpr (kFirst) {
        m[r] = now[r];
      } else if constexpr (kLazy) {
        // A NaN (-inf - -inf) is no reason to keep.
        m[r] = now[r] - before <= kSlack ? before : now[r];
      } else {
        m[r] = fmaxf(before, now[r]);
      }
      // Where nothing was seen yet every score is -inf: any finite base gives 2^-inf = 0, as alpha
      // is 0 wherever `before` is -inf. CONTRACT 3
      base[r] = fmaxf(m[r], -kLargest);
      alpha[r] = kFirst ? 0.0F : exp2_approx(before - base[r]);
      if constexpr (kAddsAlibi) base[r] -= offset[r];
    }
  }

  /// move_maxima() of rows that are tied.
  template <bool kFirst, bool kLazy>
  __forceinline__ void move_tied(const float (&now)[2], float (&base)[2]) {
    const float before[2] = {m[0], m[1]};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool keeps = !kFirst && kLazy && now[r] - before[r] <= kSlack;
      m[r] = keeps ? before[r] : kFirst || kLazy ? now[r] : fmaxf(before[r], now[r]);
    }
    float between = -8.0F * slope;
    if constexpr (kExpressions.score != 0)
      between = 8.0F * (affine.row - affine.ahead - affine.distance);
    this->tied = tie_maxima<kConfig.element>(m, between);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      base[r] = fmaxf(m[r], -kLargest);
      alpha[r] = kFirst ? 0.0F : exp2_approx(before[r] - base[r]);
      base[r] -= offset[r];
    }
  }

  /// (F8) P = exp(S - m) in place; sums over the thread's columns.
  template <Cap kCap, int kCount = kScores, bool kAdds = false>
  __forceinline__ void exponentials(const Args& args, float scale, const float (&base)[2],
                                    float (&sum)[2][2]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = i / 2 % 2;
      float factor = scale;
      if constexpr (kCap == Cap::series) {
        factor = cap_narrow(rS[i] * rS[i], scale, args.cap_1, args.cap_2);
      } else if constexpr (kCap == Cap::cubic) {
        factor = __fmaf_rn(rS[i] * rS[i], args.cubic_1, args.cubic_0);
      }
      float against = -base[r];
      if (kAdds && !(kLeans && i % 4 % 2 + i / 4 == 0))
        against = __fmaf_rn(side, column_of(i), against);
      rS[i] = exp2_approx(__fmaf_rn(rS[i], factor, against));
      sum[r][i % 2] += rS[i];
    }
  }

  /// S becomes P in place against the maxima so far, and l follows, when no P of the warp outgrew
  /// them. Otherwise false, l stays, and S is lost. A maximum that is -inf or huge is not trusted.
  template <int kCount>
  __forceinline__ bool trusted_softmax(const Args& args) {
    float base[2], sum[2][2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      base[r] = fabsf(m[r]) <= kHugeMaximum ? m[r] : not_a_number();
      if constexpr (kAddsAlibi) base[r] -= offset[r];
    }
    if constexpr (kLeans) base[1] = base[0];
    const float scale = kConfig.adds_raw_bias() ? args.scale_log2 : exponent_scale(args);
    exponentials<Cap::before, kCount, kAddsAlibi>(args, scale, base, sum);
    const float here[2] = {sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]};
    // Not true for a NaN either.
    const bool holds = here[0] <= kOutgrown<kConfig> && here[1] <= kOutgrown<kConfig>;
    if (__any_sync(~0U, !holds)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) l[r] += here[r];  // (F9)
    return true;
  }

  /// With a softcap S tells by its sizes that no maximum grows and that all bend so little that the
  /// cubic serves: one vote, and S becomes P in place. Otherwise false, and nothing has changed.
  __forceinline__ bool trusted_softcap(const Args& args) {
    find_largest();
    bool holds = fmaxf(largest[0], largest[1]) <= args.cap_cubic;
#pragma unroll
    for (int r = 0; r < 2; ++r) holds &= largest[r] * args.scale_log2 <= m[r] + kSlack;
    if (__any_sync(~0U, !holds)) return false;
    float sum[2][2] = {};
    exponentials<Cap::cubic>(args, args.scale_log2, m, sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) l[r] += sum[r][0] + sum[r][1];  // (F9)
    return true;
  }

  /// The first kCount scores of S become P in place, m and l follow, alpha is what O must be scaled
  /// by.
  template <bool kFirst, bool kLazy = kConfig.schedule.lazy_rescale, int kCount = kScores>
  __forceinline__ void softmax(const Args& args) {
    float scale = exponent_scale(args);
    if constexpr (kAddsAlibi) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        rS[i] = __fmaf_rn(side * args.scale_inverse, column_of(i), rS[i]);
    }
    float base[2];
    if (!kFirst && keeps_maxima(scale)) {
      alpha[0] = alpha[1] = 1.0F;
      base[0] = m[0];
      base[1] = m[1];
    } else {
      float now[2];
      row_maxima<kCount>(args, scale, now);
      move_maxima<kFirst, kLazy>(now, base);
    }
    if constexpr (!kInLog2 || kCalls) {
      // A fused s * scale - m is off by the rounding of m = s * scale at the largest score. That
      // cancels in O and in LSE until it passes what P can hold: then both are rounded alike.
      if (__any_sync(~0U, fmaxf(fabsf(m[0]), fabsf(m[1])) > kHugeMaximum)) {
        if (kModification != Modification::softcap || cap == Cap::before) {
#pragma unroll
          for (int i = 0; i < kCount; ++i) rS[i] = __fmul_rn(rS[i], scale);
          scale = 1.0F;
        }
      }
    }
    float sum[2][2] = {};
    if (kModification == Modification::softcap && cap == Cap::cubic) {
      exponentials<Cap::cubic, kCount>(args, scale, base, sum);
    } else if (kModification == Modification::softcap && cap == Cap::series) {
      exponentials<Cap::series, kCount>(args, scale, base, sum);
    } else {
      exponentials<Cap::before, kCount>(args, scale, base, sum);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // (F9) l
      const float here = sum[r][0] + sum[r][1];
      l[r] = kFirst ? here : __fmaf_rn(l[r], alpha[r], here);
    }
  }
};

}  // namespace tilewise::fwd_sm90
