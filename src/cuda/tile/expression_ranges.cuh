/// What values can be over a tile of pairs: the words that host/expression_ranges.h prints. A range
/// holds every value that the functions of cuda/tile/expression.cuh can give, and may hold more.
#pragma once

#include "cuda/tile/expression.cuh"

namespace tilewise::tile {

/// Defined by a unit's text for the mask that its config names.
template <int kIndex>
struct MaskRanges;

namespace expression {

__forceinline__ int other_lane(int x, int lane, int apart) {
  return __shfl_sync(~0U, x, lane ^ apart);
}

struct Truth {
  bool may_hide, may_show;

  static __forceinline__ Truth unknown() { return {true, true}; }
  __forceinline__ bool always() const { return !may_hide; }
  __forceinline__ bool never() const { return !may_show; }
  __forceinline__ void join(const Truth& other) {
    may_hide |= other.may_hide;
    may_show |= other.may_show;
  }
  /// Joins those of all lanes of a warp, for all.
  __forceinline__ void gather(int /*lane*/) {
    may_hide = __any_sync(~0U, may_hide);
    may_show = __any_sync(~0U, may_show);
  }
};

struct Ints {
  int lo, hi;
  static constexpr int kLeast = -2147483647 - 1, kMost = 2147483647;

  static __forceinline__ Ints unknown() { return {kLeast, kMost}; }
  /// Integers wrap: bounds beyond 32 bits say nothing.
  static __forceinline__ Ints between(i64 lo, i64 hi) {
    if (lo < kLeast || hi > kMost) return unknown();
    return {static_cast<int>(lo), static_cast<int>(hi)};
  }
  __forceinline__ bool is_one() const { return lo == hi; }
  __forceinline__ void join(const Ints& other) {
    lo = min(lo, other.lo);
    hi = max(hi, other.hi);
  }
  __forceinline__ void gather(int lane) {
    for (int apart = 16; apart > 0; apart /= 2) {
      const Ints other = {other_lane(lo, lane, apart), other_lane(hi, lane, apart)};
      join(other);
    }
  }
};

/// Not `known`: any value, NaN too.
struct Reals {
  float lo, hi;
  bool known;

  static __forceinline__ Reals unknown() { return {0.0F, 0.0F, false}; }
  static __forceinline__ Reals between(float lo, float hi, bool known) {
    return {lo, hi, known && lo <= hi};  // false for a NaN
  }
  __forceinline__ void join(const Reals& other) {
    lo = fminf(lo, other.lo);
    hi = fmaxf(hi, other.hi);
    known = known && other.known;
  }
  __forceinline__ void gather(int lane) {
    for (int apart = 16; apart > 0; apart /= 2) {
      lo = fminf(lo, __shfl_sync(~0U, lo, lane ^ apart));
      hi = fmaxf(hi, __shfl_sync(~0U, hi, lane ^ apart));
    }
    known = !__any_sync(~0U, !known);
  }
};

__forceinline__ Truth range_of(bool x) { return {!x, x}; }
__forceinline__ Ints range_of(int x) { return {x, x}; }
__forceinline__ Reals range_of(float x) { return Reals::between(x, x, true); }

// ---- booleans

__forceinline__ Truth both(const Truth& a, const Truth& b) {
  return {a.may_hide || b.may_hide, a.may_show && b.may_show};
}
__forceinline__ Truth either(const Truth& a, const Truth& b) {
  return {a.may_hide && b.may_hide, a.may_show || b.may_show};
}
__forceinline__ Truth opposite(const Truth& a) { return {a.may_show, a.may_hide}; }
__forceinline__ Truth one_of(const Truth& a, const Truth& b) {
  return {(a.may_hide && b.may_hide) || (a.may_show && b.may_show),
          (a.may_hide && b.may_show) || (a.may_show && b.may_hide)};
}
template <class Range>
__forceinline__ Range choose(const Truth& condition, const Range& yes, const Range& no) {
  if (condition.always()) return yes;
  Range result = no;
  if (!condition.never()) result.join(yes);
  return result;
}

// ---- comparisons

__forceinline__ Truth less(const Ints& a, const Ints& b) { return {a.hi >= b.lo, a.lo < b.hi}; }
__forceinline__ Truth less_equal(const Ints& a, const Ints& b) {
  return {a.hi > b.lo, a.lo <= b.hi};
}
__forceinline__ Truth equal(const Ints& a, const Ints& b) {
  return {!(a.is_one() && b.is_one() && a.lo == b.lo), a.lo <= b.hi && b.lo <= a.hi};
}
__forceinline__ Truth less(const Reals& a, const Reals& b) {
  if (!a.known || !b.known) return Truth::unknown();
  return {a.hi >= b.lo, a.lo < b.hi};
}
__forceinline__ Truth less_equal(const Reals& a, const Reals& b) {
  if (!a.known || !b.known) return Truth::unknown();
  return {a.hi > b.lo, a.lo <= b.hi};
}
__forceinline__ Truth equal(const Reals& a, const Reals& b) {
  if (!a.known || !b.known) return Truth::unknown();
  return {!(a.lo == a.hi && b.lo == b.hi && a.lo == b.lo), a.lo <= b.hi && b.lo <= a.hi};
}
template <class Range>
__forceinline__ Truth not_equal(const Range& a, const Range& b) {
  return opposite(equal(a, b));
}

// ---- integers

__forceinline__ Ints add(const Ints& a, const Ints& b) {
  return Ints::between(static_cast<i64>(a.lo) + b.lo, static_cast<i64>(a.hi) + b.hi);
}
__forceinline__ Ints subtract(const Ints& a, const Ints& b) {
  return Ints::between(static_cast<i64>(a.lo) - b.hi, static_cast<i64>(a.hi) - b.lo);
}
__forceinline__ Ints negate(const Ints& a) {
  return Ints::between(-static_cast<i64>(a.hi), -static_cast<i64>(a.lo));
}
__forceinline__ Ints multiply(const Ints& a, const Ints& b) {
  const i64 corners[4] = {static_cast<i64>(a.lo) * b.lo, static_cast<i64>(a.lo) * b.hi,
                          static_cast<i64>(a.hi) * b.lo, static_cast<i64>(a.hi) * b.hi};
  i64 lo = corners[0], hi = corners[0];
  for (int n = 1; n < 4; ++n) {
    lo = corners[n] < lo ? corners[n] : lo;
    hi = corners[n] > hi ? corners[n] : hi;
  }
  return Ints::between(lo, hi);
}
__forceinline__ Ints absolute(const Ints& a) {
  if (a.lo >= 0) return a;
  const i64 below = -static_cast<i64>(a.lo), above = a.hi;
  return Ints::between(above >= 0 ? 0 : -above, below > above ? below : above);
}
__forceinline__ Ints minimum(const Ints& a, const Ints& b) {
  return {min(a.lo, b.lo), min(a.hi, b.hi)};
}
__forceinline__ Ints maximum(const Ints& a, const Ints& b) {
  return {max(a.lo, b.lo), max(a.hi, b.hi)};
}
/// Known for one divisor above 0 alone.
__forceinline__ Ints floor_divide(const Ints& a, const Ints& b) {
  if (!b.is_one() || b.lo <= 0) return Ints::unknown();
  return {floor_divide(a.lo, b.lo), floor_divide(a.hi, b.lo)};
}
__forceinline__ Ints modulo(const Ints& a, const Ints& b) {
  if (!b.is_one() || b.lo <= 0) return Ints::unknown();
  if (floor_divide(a.lo, b.lo) == floor_divide(a.hi, b.lo))
    return {modulo(a.lo, b.lo), modulo(a.hi, b.lo)};
  return {0, b.lo - 1};
}
__forceinline__ Ints shift_right(const Ints& a, const Ints& b) {
  if (!b.is_one() || b.lo < 0 || b.lo > 31) return Ints::unknown();
  return {a.lo >> b.lo, a.hi >> b.lo};
}
__forceinline__ Ints shift_left(const Ints& a, const Ints& b) {
  if (!b.is_one() || b.lo < 0 || b.lo > 30) return Ints::unknown();
  return multiply(a, range_of(1 << b.lo));
}
__forceinline__ Ints bit_not(const Ints& a) { return {~a.hi, ~a.lo}; }
/// All ones from the highest bit of either on; of numbers that are not negative.
__forceinline__ int ones_above(int a, int b) {
  int x = a | b;
  for (int shift = 1; shift < 32; shift *= 2) x |= x >> shift;
  return x;
}
__forceinline__ Ints bit_and(const Ints& a, const Ints& b) {
  if (a.is_one() && b.is_one()) return range_of(a.lo & b.lo);
  if (a.lo >= 0 && b.lo >= 0) return {0, min(a.hi, b.hi)};
  if (a.lo >= 0) return {0, a.hi};
  if (b.lo >= 0) return {0, b.hi};
  return Ints::unknown();
}
__forceinline__ Ints bit_or(const Ints& a, const Ints& b) {
  if (a.is_one() && b.is_one()) return range_of(a.lo | b.lo);
  if (a.lo < 0 || b.lo < 0) return Ints::unknown();
  return {max(a.lo, b.lo), ones_above(a.hi, b.hi)};
}
__forceinline__ Ints bit_xor(const Ints& a, const Ints& b) {
  if (a.is_one() && b.is_one()) return range_of(a.lo ^ b.lo);
  if (a.lo < 0 || b.lo < 0) return Ints::unknown();
  return {0, ones_above(a.hi, b.hi)};
}

// ---- reals. A function's product may be rounded or not before it is added to: bounds of products
// are wider by more than that.

__forceinline__ Reals add(const Reals& a, const Reals& b) {
  return Reals::between(a.lo + b.lo, a.hi + b.hi, a.known && b.known);
}
__forceinline__ Reals negate(const Reals& a) { return Reals::between(-a.hi, -a.lo, a.known); }
__forceinline__ Reals subtract(const Reals& a, const Reals& b) { return add(a, negate(b)); }
__forceinline__ Reals multiply(const Reals& a, const Reals& b) {
  const float corners[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  float lo = corners[0], hi = corners[0];
  bool numbers = true;
  for (int n = 0; n < 4; ++n) {
    numbers = numbers && corners[n] == corners[n];
    lo = fminf(lo, corners[n]);
    hi = fmaxf(hi, corners[n]);
  }
  constexpr float kWider = 0x1p-20F, kLeast = 1e-37F;
  return Reals::between(lo - fabsf(lo) * kWider - kLeast, hi + fabsf(hi) * kWider + kLeast,
                        numbers && a.known && b.known);
}
__forceinline__ Reals absolute(const Reals& a) {
  const float below = fabsf(a.lo), above = fabsf(a.hi);
  const bool around = a.lo <= 0.0F && a.hi >= 0.0F;
  return Reals::between(around ? 0.0F : fminf(below, above), fmaxf(below, above), a.known);
}
__forceinline__ Reals minimum(const Reals& a, const Reals& b) {
  return Reals::between(fminf(a.lo, b.lo), fminf(a.hi, b.hi), a.known && b.known);
}
__forceinline__ Reals maximum(const Reals& a, const Reals& b) {
  return Reals::between(fmaxf(a.lo, b.lo), fmaxf(a.hi, b.hi), a.known && b.known);
}
__forceinline__ Reals floor_of(const Reals& a) {
  return Reals::between(floorf(a.lo), floorf(a.hi), a.known);
}
__forceinline__ Reals ceil_of(const Reals& a) {
  return Reals::between(ceilf(a.lo), ceilf(a.hi), a.known);
}
__forceinline__ Reals floor_divide(const Reals& /*a*/, const Reals& /*b*/) {
  return Reals::unknown();
}
__forceinline__ Reals modulo(const Reals& /*a*/, const Reals& /*b*/) { return Reals::unknown(); }

// ---- casts

__forceinline__ Truth to_boolean(const Ints& a) { return not_equal(a, range_of(0)); }
__forceinline__ Truth to_boolean(const Reals& a) { return not_equal(a, range_of(0.0F)); }
__forceinline__ Ints to_integer(const Truth& a) { return {a.may_hide ? 0 : 1, a.may_show ? 1 : 0}; }
__forceinline__ Ints to_integer(const Reals& a) {
  constexpr float kFar = 2e9F;
  if (!a.known || a.lo < -kFar || a.hi > kFar) return Ints::unknown();
  return {static_cast<int>(a.lo), static_cast<int>(a.hi)};
}
/// Rounding keeps the order.
__forceinline__ Reals to_real(const Ints& a) {
  return {static_cast<float>(a.lo), static_cast<float>(a.hi), true};
}
__forceinline__ Reals to_real(const Truth& a) { return to_real(to_integer(a)); }

// ---- captured tensors

template <int kRank>
struct IndexRanges {
  Ints at[kRank];
};
/// Elements at these indices, where they are few.
template <Stored kStored, int kRank>
__forceinline__ auto load_range(const Capture& t, const IndexRanges<kRank>& index) {
  constexpr i64 kFew = 8;
  i64 count = 1;
  for (int axis = 0; axis < kRank; ++axis) {
    const i64 here = static_cast<i64>(index.at[axis].hi) - index.at[axis].lo + 1;
    count = count > kFew || here > kFew ? kFew + 1 : count * here;
  }
  using Range = decltype(range_of(load_at<kStored>(t.data, 0)));
  if (count > kFew) return Range::unknown();
  Index<kRank> at;
  for (int axis = 0; axis < kRank; ++axis) at.at[axis] = index.at[axis].lo;
  Range result = range_of(load<kStored>(t, at));
  for (int n = 1; n < static_cast<int>(count); ++n) {
    for (int axis = kRank - 1; axis >= 0; --axis) {
      if (++at.at[axis] <= index.at[axis].hi) break;
      at.at[axis] = index.at[axis].lo;
    }
    result.join(range_of(load<kStored>(t, at)));
  }
  return result;
}

}  // namespace expression
}  // namespace tilewise::tile
