/// Score functions and masks that the caller wrote: where a kernel applies the functions that
/// host/expression_text.h prints, and the words that these use.
///
/// A printed function has its parts by what they depend on: Uniform, of the batch entry and the
/// head; Row, of the query beside these; Column, of the key; Diagonal, of the distance i - j; what
/// remains belongs to a pair.
#pragma once

#include "cuda/tile/expression_args.h"
#include "cuda/tile/pairs.cuh"
#include "cuda/tile/softcap.cuh"

namespace tilewise::tile {

/// What a function knows of its tile.
struct Place {
  int b, h, query_length, key_length;
};

/// Defined by the unit's text for the index that its config names.
template <int kIndex>
struct ScoreFunction;
template <int kIndex>
struct MaskFunction;
struct NoFunction {
  struct Uniform {};
  static __forceinline__ Uniform uniform(const Place& /*p*/, const Captures& /*t*/) { return {}; }
};
template <>
struct ScoreFunction<0> : NoFunction {};
template <>
struct MaskFunction<0> : NoFunction {};

/// What a score function adds to the score where that grows evenly with i and j:
///   -distance |i - j + shift| + ahead (j - i) + row i + column j + constant
struct Slant {
  float distance = 0.0F, ahead = 0.0F, row = 0.0F, column = 0.0F, constant = 0.0F;
  int shift = 0;

  __forceinline__ void multiply(float factor) {
    distance *= factor;
    ahead *= factor;
    row *= factor;
    column *= factor;
    constant *= factor;
  }
};
/// Defined by the unit's text beside ScoreFunction, where the function is of that form.
template <int kIndex>
struct ScoreSlant;

/// A kernel's parameters, and the captured tensors beside them.
template <class Args>
__forceinline__ const Args& plain_args(const Args& args) {
  return args;
}
template <class Args>
__forceinline__ const Args& plain_args(const Expressed<Args>& args) {
  return args.args;
}
template <class Args>
__forceinline__ const Captures* captures_of(const Args& /*args*/) {
  return nullptr;
}
template <class Args>
__forceinline__ const Captures* captures_of(const Expressed<Args>& args) {
  return &args.captures;
}

// ---- words of printed functions

namespace expression {

/// Elements of a captured tensor in memory.
enum class Stored : int { float64, float32, bf16, fp16, boolean, uint8, int32, int64 };

template <Stored kStored>
__forceinline__ auto load_at(const void* data, i64 at) {
  if constexpr (kStored == Stored::float64) {
    return static_cast<float>(__ldg(static_cast<const double*>(data) + at));
  } else if constexpr (kStored == Stored::float32) {
    return __ldg(static_cast<const float*>(data) + at);
  } else if constexpr (kStored == Stored::bf16) {
    return widen<Element::bf16>(__ldg(static_cast<const unsigned short*>(data) + at));
  } else if constexpr (kStored == Stored::fp16) {
    return widen<Element::fp16>(__ldg(static_cast<const unsigned short*>(data) + at));
  } else if constexpr (kStored == Stored::boolean) {
    return __ldg(static_cast<const unsigned char*>(data) + at) != 0;
  } else if constexpr (kStored == Stored::uint8) {
    return static_cast<int>(__ldg(static_cast<const unsigned char*>(data) + at));
  } else if constexpr (kStored == Stored::int32) {
    return __ldg(static_cast<const int*>(data) + at);
  } else {
    return static_cast<int>(__ldg(static_cast<const long long*>(data) + at));
  }
}

/// Where a captured tensor is read: an integer for each axis. kNatural has a bit for those that are
/// known not to be negative.
template <int kRank, unsigned kNatural = 0>
struct Index {
  int at[kRank];

  /// A negative index counts from the end; one that is still outside is cut.
  __forceinline__ int inside(int axis, int size) const {
    const int i = at[axis];
    const bool natural = (kNatural >> axis & 1U) != 0;
    return min(natural ? i : max(i < 0 ? i + size : i, 0), size - 1);
  }
};

template <Stored kStored, int kRank, unsigned kNatural>
__forceinline__ auto load(const Capture& t, const Index<kRank, kNatural>& index) {
  i64 at = 0;
#pragma unroll
  for (int axis = 0; axis < kRank; ++axis)
    at += index.inside(axis, t.sizes[axis]) * t.strides[axis];
  return load_at<kStored>(t.data, at);
}
/// Where the sum of an element's gradient is, of kStep floats.
template <int kStep, int kRank, unsigned kNatural>
__forceinline__ float* gradient_at(const Capture& t, const Index<kRank, kNatural>& index) {
  i64 at = 0;
#pragma unroll
  for (int axis = 0; axis < kRank; ++axis)
    at = at * t.sizes[axis] + index.inside(axis, t.sizes[axis]);
  return t.gradient + at * kStep;
}

/// The value of distance 0 in the strip of a batch entry and a head, of values of so many bytes.
__forceinline__ const void* strip_of(const Place& p, const Captures& t, int bytes) {
  const i64 at = static_cast<i64>(p.b * t.strip.heads + p.h) * t.strip.count + t.strip.zero;
  return static_cast<const char*>(t.strip.values) + at * bytes;
}

// Quotients that floor, and remainders with the sign of the divisor, as in Python.
__forceinline__ int floor_divide(int a, int b) {
  const int quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}
__forceinline__ int modulo(int a, int b) {
  const int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
__forceinline__ float modulo(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0.0F && (rest < 0.0F) != (b < 0.0F) ? rest + b : rest;
}
__forceinline__ float floor_divide(float a, float b) { return floorf(a / b); }
/// Integers wrap.
__forceinline__ int multiply(int a, int b) {
  return static_cast<int>(static_cast<u32>(a) * static_cast<u32>(b));
}
__forceinline__ int absolute(int a) { return a < 0 ? -a : a; }
__forceinline__ float absolute(float a) { return fabsf(a); }
__forceinline__ int minimum(int a, int b) { return a < b ? a : b; }
__forceinline__ int maximum(int a, int b) { return a > b ? a : b; }
__forceinline__ float minimum(float a, float b) { return min_nan(a, b); }
__forceinline__ float maximum(float a, float b) { return max_nan(a, b); }
__forceinline__ int sign(int a) { return (a > 0) - (a < 0); }
__forceinline__ float sign(float a) { return a > 0.0F ? 1.0F : a < 0.0F ? -1.0F : a; }
__forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
__forceinline__ float gelu(float x) { return 0.5F * x * (1.0F + erff(x * 0.70710678F)); }

}  // namespace expression

// ---- fragments: kM x kN accumulator tiles of a warp, rows are queries and columns keys, or with
// kTransposed keys and queries

__forceinline__ Place place_of(const PairCorner& at) {
  return {at.batch, at.head, at.seq_q, at.seq_k};
}

/// What a function has of one query, and of one key. Pairs beyond the lengths are hidden later: for
/// them functions see the last query and key.
template <class Function, bool kQuery>
struct Side {
  int index;
  typename Function::Row part;

  __forceinline__ void set(const PairCorner& at, const typename Function::Uniform& u, int offset,
                           const Captures& t) {
    index = min(at.query + offset, at.seq_q - 1);
    part = Function::row(place_of(at), u, index, t);
  }
};
template <class Function>
struct Side<Function, false> {
  int index;
  typename Function::Column part;

  __forceinline__ void set(const PairCorner& at, const typename Function::Uniform& u, int offset,
                           const Captures& t) {
    index = min(at.key + offset, at.seq_k - 1);
    part = Function::column(place_of(at), u, index, t);
  }
};

/// Calls visit(m, n, e, query's side, key's side, diagonal's part) for the elements of a thread.
/// Tiles of eight rows and columns that follow each other along a diagonal share its part.
template <class Function, bool kTransposed, int kM, int kN, class Visit>
__forceinline__ void for_each_pair(const PairCorner& at, const typename Function::Uniform& u,
                                   const Captures& t, int lane, Visit visit) {
  constexpr int kRows = 2 * kM;
  const int row = lane / 4, column = 2 * (lane % 4);
  const Place place = place_of(at);
  Side<Function, !kTransposed> first[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) first[r].set(at, u, 8 * r + row, t);
  const int distance = at.query - at.key + (kTransposed ? column - row : row - column);
  const float real_distance = static_cast<float>(distance);
  typename Function::Diagonal diagonals[kRows][2];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      Side<Function, kTransposed> second;
      second.set(at, u, 8 * n + column + e, t);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        typename Function::Diagonal& diagonal = diagonals[(n - r + kRows) % kRows][e];
        if (n == 0 || r == 0) {
          const int more = kTransposed ? 8 * (n - r) + e : 8 * (r - n) - e;
          diagonal = Function::diagonal(place, u, distance + more,
                                        real_distance + static_cast<float>(more), t);
        }
        if constexpr (kTransposed) {
          visit(r / 2, n, 2 * (r % 2) + e, second, first[r], diagonal);
        } else {
          visit(r / 2, n, 2 * (r % 2) + e, first[r], second, diagonal);
        }
      }
    }
  }
}

/// Scores times `natural` are logits before the score function; they become logits after it. With
/// kBias a score of -inf is hidden by its bias, and stays so.
template <int kIndex, bool kTransposed, bool kBias, int kM, int kN>
__forceinline__ void apply_score_function(Acc (&S)[kM][kN], float natural, const PairCorner& at,
                                          const Captures& t, int lane) {
  using Function = ScoreFunction<kIndex>;
  const Place place = place_of(at);
  const typename Function::Uniform u = Function::uniform(place, t);
  for_each_pair<Function, kTransposed, kM, kN>(
      at, u, t, lane,
      [&](int m, int n, int e, const auto& query, const auto& key, const auto& diagonal) {
        float& s = S[m][n][e];
        const float y = Function::value(place, u, query.part, key.part, diagonal, query.index,
                                        key.index, natural * s, t);
        s = kBias && s == -infinity() ? s : y;
      });
}

/// The same; G becomes the derivative, or is multiplied by it where kChained.
template <int kIndex, bool kTransposed, bool kBias, bool kChained, int kM, int kN>
__forceinline__ void differentiate_score_function(Acc (&S)[kM][kN], Acc (&G)[kM][kN], float natural,
                                                  const PairCorner& at, const Captures& t,
                                                  int lane) {
  using Function = ScoreFunction<kIndex>;
  const Place place = place_of(at);
  const typename Function::Uniform u = Function::uniform(place, t);
  for_each_pair<Function, kTransposed, kM, kN>(
      at, u, t, lane,
      [&](int m, int n, int e, const auto& query, const auto& key, const auto& diagonal) {
        float& s = S[m][n][e];
        float of_score;
        const float y = Function::value(place, u, query.part, key.part, diagonal, query.index,
                                        key.index, natural * s, t, of_score);
        s = kBias && s == -infinity() ? s : y;
        G[m][n][e] = kChained ? G[m][n][e] * of_score : of_score;
      });
}

/// X times the derivatives G; where X is 0, of a hidden pair say, it stays so whatever they are.
template <int kM, int kN>
__forceinline__ void multiply_where_set(Acc (&X)[kM][kN], const Acc (&G)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = X[m][n][e];
        X[m][n][e] = x == 0.0F ? 0.0F : x * G[m][n][e];
      }
    }
  }
}

/// (F4) Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 10
template <int kIndex, bool kTransposed, int kM, int kN>
__forceinline__ void apply_mask_function(Acc (&S)[kM][kN], const PairCorner& at, const Captures& t,
                                         int lane) {
  using Function = MaskFunction<kIndex>;
  const Place place = place_of(at);
  const typename Function::Uniform u = Function::uniform(place, t);
  for_each_pair<Function, kTransposed, kM, kN>(
      at, u, t, lane,
      [&](int m, int n, int e, const auto& query, const auto& key, const auto& diagonal) {
        const bool visible =
            Function::value(place, u, query.part, key.part, diagonal, query.index, key.index, t);
        if (!visible) S[m][n][e] = -infinity();
      });
}

}  // namespace tilewise::tile
