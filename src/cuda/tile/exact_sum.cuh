/// Sums of float32 numbers in integers: exact, and so the same in any order.
///
/// A number is an integer of 24 bits times a power of two. Shifted to the next multiple of 32 bits
/// it has 55, of which the low 32 go to one word and the others to the next. A word holds the sum
/// of 2^31 numbers.
#pragma once

#include "cuda/tile/exact_sum_args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::tile {

/// Adds x to the sum at `words`, which other threads add to.
__forceinline__ void add_exactly(u64* words, float x) {
  const u32 bits = static_cast<u32>(__float_as_int(x));
  const int exponent = static_cast<int>(bits >> 23 & 0xffU);
  const u32 fraction = bits & 0x7fffffU;
  const bool negative = bits >> 31 != 0;
  if (exponent == 0xff) {
    const unsigned what = fraction != 0 ? ExactSum::kNan
                          : negative    ? ExactSum::kNegative
                                        : ExactSum::kPositive;
    atomicOr(reinterpret_cast<unsigned*>(words + ExactSum::kBins), what);
    return;
  }
  // Subnormal numbers have the exponent of the least normal one.
  const int from = max(exponent, 1) - 150 - ExactSum::kLowest;
  const u64 size = static_cast<u64>(exponent == 0 ? fraction : fraction | 0x800000U) << (from % 32);
  const u64 low = size & 0xffffffffULL, high = size >> 32;
  u64* const word = words + from / 32;
  if (low != 0) atomicAdd(word, negative ? 0 - low : low);
  if (high != 0) atomicAdd(word + 1, negative ? 0 - high : high);
}

/// The sum. The same bits for the same numbers.
__forceinline__ double exact_sum(const u64* words) {
  const u64 flags = words[ExactSum::kBins];
  if ((flags & ExactSum::kNan) != 0 || (flags & (ExactSum::kPositive | ExactSum::kNegative)) ==
                                           (ExactSum::kPositive | ExactSum::kNegative))
    return static_cast<double>(not_a_number());
  if ((flags & ExactSum::kPositive) != 0) return static_cast<double>(infinity());
  if ((flags & ExactSum::kNegative) != 0) return static_cast<double>(-infinity());
  // A negative sum's opposite is taken, so that the digits are of its size.
  i64 carry = 0;
  for (int n = 0; n < ExactSum::kBins; ++n) carry = (static_cast<i64>(words[n]) + carry) >> 32;
  const i64 sign = carry < 0 ? -1 : 1;
  i64 digits[ExactSum::kBins];
  carry = 0;
  for (int n = 0; n < ExactSum::kBins; ++n) {
    const i64 here = sign * static_cast<i64>(words[n]) + carry;
    carry = here >> 32;
    digits[n] = here & 0xffffffffLL;
  }
  double size = static_cast<double>(carry);
  for (int n = ExactSum::kBins - 1; n >= 0; --n)
    size = size * 0x1p32 + static_cast<double>(digits[n]);
  return static_cast<double>(sign) * size * 0x1p-160;
}

}  // namespace tilewise::tile
