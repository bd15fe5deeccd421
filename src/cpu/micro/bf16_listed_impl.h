/// Rows of B that lie anywhere, as the bfloat16 products of a few rows read them. In an unnamed
/// namespace, as in micro_impl.h.
#pragma once

#include "cpu/micro/ahead_impl.h"
#include "cpu/micro/bf16_impl.h"

namespace tilewise::cpu {
namespace {

constexpr std::ptrdiff_t kPairLanes = 32;  // bfloat16 in a vector

/// Rows of B anywhere, and what is asked for while they are read.
struct ListedBf16 {
  const Bf16* first;
  const std::int64_t* at;
  Ahead& ahead;

  const Bf16* row(std::ptrdiff_t j) const { return first + at[j]; }
  void ask(std::ptrdiff_t elems) { cpu::ask(ahead, elems * std::ptrdiff_t{sizeof(Bf16)}); }
};

/// The first `count` < 32 elements of a row, then zeros.
inline __m512i load_first(const Bf16* p, int count) {
  return _mm512_maskz_loadu_epi16((1U << static_cast<unsigned>(count)) - 1U, p);
}

/// 32 C columns, or the first `part` of 32.
template <int C, bool Part>
struct Columns {};

/// add(Columns<C, Part>, part, first column) for all columns of a C, with the rows of B at that
/// column: 64 at a time, then 32, then the rest.
template <class Add>
inline void for_columns(int cols, ListedBf16& b, const Add& add) {
  std::ptrdiff_t j = 0;
  for (; j + 2 * kPairLanes <= cols; j += 2 * kPairLanes, b.first += 2 * kPairLanes) {
    add(Columns<2, false>{}, 0, j);
  }
  if (j + kPairLanes <= cols) {
    add(Columns<1, false>{}, 0, j);
    j += kPairLanes;
    b.first += kPairLanes;
  }
  if (j < cols) add(Columns<1, true>{}, cols - static_cast<int>(j), j);
}

/// c[0 .. 31] += sums in the order that unpacking rows of B has: per 128 bits four columns.
inline void add_unpacked(__m512 low, __m512 high, float* c) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  _mm512_storeu_ps(c, _mm512_add_ps(_mm512_loadu_ps(c), _mm512_permutex2var_ps(low, first, high)));
  _mm512_storeu_ps(
      c + 16, _mm512_add_ps(_mm512_loadu_ps(c + 16), _mm512_permutex2var_ps(low, second, high)));
}

}  // namespace
}  // namespace tilewise::cpu
