/// expression_values: what printed functions give at points, for checks of their text on a device.
/// A row of blocks (y) has one function, a thread one point.
#pragma once

#include "cuda/kernels/rows/expression_values_args.h"
#include "cuda/tile/expression.cuh"

namespace tilewise::expression_values {

using namespace tile;

/// A function's parts at a point, as kernels work them out apart from the pair.
template <class Function>
struct Parts {
  typename Function::Uniform uniform;
  typename Function::Row row;
  typename Function::Column column;
  typename Function::Diagonal diagonal;

  __forceinline__ Parts(const Place& place, const Point& at, const Captures& t)
      : uniform(Function::uniform(place, t)),
        row(Function::row(place, uniform, at.i, t)),
        column(Function::column(place, uniform, at.j, t)),
        diagonal(
            Function::diagonal(place, uniform, at.i - at.j, static_cast<float>(at.i - at.j), t)) {}
};

template <Config kConfig, int kIndex>
__forceinline__ void score(const Args& args, const Place& place, const Point& at, int n) {
  if constexpr (kIndex <= kConfig.scores) {
    if (static_cast<int>(blockIdx.y) != kIndex - 1)
      return score<kConfig, kIndex + 1>(args, place, at, n);
    using Function = ScoreFunction<kIndex>;
    const Captures& t = args.captures[kIndex - 1];
    const Parts<Function> of(place, at, t);
    float derivative;
    const float value = Function::value(place, of.uniform, of.row, of.column, of.diagonal, at.i,
                                        at.j, at.score, t, derivative);
    float* const to = args.values + 2LL * (kIndex - 1) * args.count + n;
    to[0] = value;
    to[args.count] = derivative;
  }
}

template <Config kConfig, int kIndex>
__forceinline__ void mask(const Args& args, const Place& place, const Point& at, int n) {
  if constexpr (kIndex <= kConfig.masks) {
    if (static_cast<int>(blockIdx.y) != kConfig.scores + kIndex - 1)
      return mask<kConfig, kIndex + 1>(args, place, at, n);
    using Function = MaskFunction<kIndex>;
    const Captures& t = args.captures[kConfig.scores + kIndex - 1];
    const Parts<Function> of(place, at, t);
    const bool visible =
        Function::value(place, of.uniform, of.row, of.column, of.diagonal, at.i, at.j, t);
    args.values[(2LL * kConfig.scores + kIndex - 1) * args.count + n] = visible ? 1.0F : 0.0F;
  }
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  const int n = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (n >= args.count) return;
  const Point at = args.points[n];
  const Place place = {at.b, at.h, at.query_length, at.key_length};
  score<kConfig, 1>(args, place, at, n);
  mask<kConfig, 1>(args, place, at, n);
}

}  // namespace tilewise::expression_values
