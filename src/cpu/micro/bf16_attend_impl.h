/// A block of keys from Q K^T to O on matrix tiles, with the softmax between the products: while
/// the tile unit multiplies, the vector units take the exponentials of the scores before. T as in
/// bf16_tiles_impl.h.
#pragma once

#include "cpu/micro/bf16_tiles_impl.h"

namespace tilewise::cpu {
namespace {

/// Scores of 32 rows and 32 keys that wait for their exponentials.
struct WaitingScores {
  const float* s = nullptr;  ///< 32 x 32
  const float* shift;        ///< -m to_log2 of each row
  float* sums;               ///< 16 lanes of each row
  Bf16* p;
  std::ptrdiff_t ld_p;
  std::ptrdiff_t row = 0, rows = 0;  ///< done, and in all
  __m512 to_log2;

  /// The next `count` rows, as many as are left.
  __attribute__((always_inline)) void take(std::ptrdiff_t count) {
    const std::ptrdiff_t end = row + count < rows ? row + count : rows;
    for (; row < end; ++row) {
      const float* at = s + 32 * row;
      const __m512 m = _mm512_set1_ps(shift[row]);
      const __m512 p0 = exp2_vector(_mm512_fmadd_ps(_mm512_loadu_ps(at), to_log2, m));
      const __m512 p1 = exp2_vector(_mm512_fmadd_ps(_mm512_loadu_ps(at + 16), to_log2, m));
      float* sum = sums + 16 * row;
      _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), _mm512_add_ps(p0, p1)));
      store_bits(p + row * ld_p, round_row(p0, p1));
    }
  }
};

/// The keys of a panel from `key` on that lie in [begin, end), as bits.
inline std::uint32_t keys_seen(int begin, int end, std::ptrdiff_t key) {
  const auto below = [key](int limit) {
    const std::ptrdiff_t count = limit - key;
    return count <= 0 ? 0U : count >= 32 ? ~0U : (1U << count) - 1U;
  };
  return below(end) & ~below(begin);
}

template <class T>
struct TileAttention {
  const AttendBlock& x;
  std::ptrdiff_t panels;                     ///< of 32 keys
  alignas(64) float s[2][32 * 32 + 16];      ///< of one panel, and of the next
  alignas(64) float sums[kAttendRows * 16];  ///< of P
  float shift[kAttendRows];

  explicit TileAttention(const AttendBlock& block) : x(block), panels(block.keys / 32) {}

  /// One step of a 32 x 32 product, 32 of the inner length, with `count` rows of what waits behind
  /// each instruction. Registers as in TileProducts::block().
  __attribute__((always_inline)) static void step(const Bf16* a, std::ptrdiff_t lda, const Bf16* b,
                                                  std::ptrdiff_t ldb, WaitingScores& waiting,
                                                  std::ptrdiff_t count) {
    T::template load<4>(a, lda * 2);
    T::template load<6>(b, ldb * 2);
    T::template dot<0, 4, 6>();
    waiting.take(count);
    T::template load<7>(b + 32, ldb * 2);
    T::template dot<1, 4, 7>();
    waiting.take(count);
    T::template load<5>(a + 16 * lda, lda * 2);
    T::template dot<2, 5, 6>();
    waiting.take(count);
    T::template dot<3, 5, 7>();
    waiting.take(count);
  }

  /// S of a panel into `out`, and what waits.
  __attribute__((always_inline)) void scores(std::ptrdiff_t panel, float* out,
                                             WaitingScores& waiting) const {
    T::template zero<0>();
    T::template zero<1>();
    T::template zero<2>();
    T::template zero<3>();
    const Bf16* k = x.k + 32 * panel * x.dim;
    constexpr std::ptrdiff_t kPanelStep = 1024;  // 32 of D by 32 keys
    const std::ptrdiff_t steps = x.dim / 32;
    const std::ptrdiff_t count = (kAttendRows / 4 + steps - 1) / steps;
    for (std::ptrdiff_t i = 0; i < steps; ++i, k += kPanelStep) {
      step(x.q + 32 * i, x.ld_q, k, 64, waiting, count);
    }
    waiting.take(kAttendRows);
    TileProducts<T>::store_sums(out, 32);
  }

  /// What rows do not see of a panel becomes -inf in its scores.
  void hide(std::ptrdiff_t panel) {
    if (panel >= x.all_begin && panel < x.all_end) return;
    const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
    for (std::ptrdiff_t r = 0; r < x.rows; ++r) {
      const std::uint32_t unseen = ~keys_seen(x.seen_begin[r], x.seen_end[r], 32 * panel);
      float* at = s[panel % 2] + 32 * r;
      _mm512_mask_storeu_ps(at, static_cast<__mmask16>(unseen), hidden);
      _mm512_mask_storeu_ps(at + 16, static_cast<__mmask16>(unseen >> 16), hidden);
    }
  }

  /// The scores of a panel, in s[panel % 2], wait.
  WaitingScores waiting(std::ptrdiff_t panel) {
    hide(panel);
    return {.s = s[panel % 2],
            .shift = shift,
            .sums = sums,
            .p = x.p + 32 * panel,
            .ld_p = x.ld_p,
            .row = 0,
            .rows = x.rows,
            .to_log2 = _mm512_set1_ps(x.to_log2)};
  }

  /// m of rows that have seen nothing: the maxima over one panel. False when that leaves one out.
  bool first_maxima() {
    const std::ptrdiff_t panel = x.all_begin < x.all_end ? x.all_begin : 0;
    WaitingScores none;
    scores(panel, s[panel % 2], none);
    hide(panel);
    const __m512 nothing = _mm512_set1_ps(-__builtin_inff());
    float high[kAttendRows];
    bool known = true;
    for (std::ptrdiff_t r = 0; r < x.rows; ++r) {
      const float* at = s[panel % 2] + 32 * r;
      // NOTE: the operand order lets NaN pass by, as in softmax_rows().
      const __m512 first = _mm512_max_ps(_mm512_loadu_ps(at), nothing);
      high[r] = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_loadu_ps(at + 16), first));
      known &= moderate(high[r], x.to_log2);
    }
    for (std::ptrdiff_t r = 0; known && r < x.rows; ++r) x.m[r] = high[r];
    return known;
  }

  bool sums_are_small() const {
    __mmask16 over = 0;  // NaN is over, too
    const __m512 most = _mm512_set1_ps(kKeptSum / 16);
    for (std::ptrdiff_t r = 0; r < x.rows; ++r) {
      over |= _mm512_cmp_ps_mask(_mm512_load_ps(sums + 16 * r), most, _CMP_NLE_UQ);
    }
    return over == 0;
  }

  /// O += P V; what waits is `last` behind the products of the first 32 columns. False before O is
  /// touched.
  bool add_values(WaitingScores& last) {
    const std::ptrdiff_t together = x.dim_v < 32 ? 0 : 32;
    if (together != 0) {
      TileProducts<T>::load_sums(x.o, x.ld_o);
      for (std::ptrdiff_t panel = 0; panel + 1 < panels; ++panel) values(panel, last);
    }
    last.take(kAttendRows);
    if (!sums_are_small()) return false;
    if (together != 0) {
      values(panels - 1, last);
      TileProducts<T>::store_sums(x.o, x.ld_o);
    }
    TileProducts<T>::gemm(x.rows, x.dim_v - static_cast<int>(together), x.keys, x.p, x.ld_p,
                          x.v + 2 * together, x.ld_v, x.o + together, x.ld_o, true);
    return true;
  }
  /// The first 32 columns of P V of a panel.
  __attribute__((always_inline)) void values(std::ptrdiff_t panel, WaitingScores& waiting) const {
    step(x.p + 32 * panel, x.ld_p, x.v + 16 * panel * x.ld_v, x.ld_v, waiting, 1);
  }

  bool run() {
    bool fresh = true;
    bool known = true;
    for (std::ptrdiff_t r = 0; r < x.rows; ++r) {
      fresh &= x.m[r] == -__builtin_inff();
      known &= moderate(x.m[r], x.to_log2);
    }
    if (!known && !(fresh && first_maxima())) return false;
    for (std::ptrdiff_t r = 0; r < x.rows; ++r) {
      shift[r] = -x.m[r] * x.to_log2;
      _mm512_store_ps(sums + 16 * r, _mm512_setzero_ps());
    }
    WaitingScores last;
    for (std::ptrdiff_t panel = 0; panel < panels; ++panel) {
      scores(panel, s[panel % 2], last);
      last = waiting(panel);
    }
    if (!add_values(last)) return false;
    for (std::ptrdiff_t r = 0; r < x.rows; ++r) {
      float* to = x.sums + 16 * r;
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_load_ps(sums + 16 * r)));
    }
    return true;
  }
};

/// Bf16Micro's attend().
template <class T>
bool attend(const AttendBlock& block) {
  return TileAttention<T>(block).run();
}

}  // namespace
}  // namespace tilewise::cpu
