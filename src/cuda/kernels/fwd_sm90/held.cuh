/// fwd_sm90: what Scores holds for some problems alone.
#pragma once

#include "cuda/kernels/fwd_sm90/args.h"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/math.cuh"
#include "cuda/tile/options.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// What a consumer holds of the options. NOTE: nothing where there is none: members that it never
/// used moved instructions of other units.
template <bool kAny>
struct HeldOptions {};
template <>
struct HeldOptions<true> {
  const Options* options;
  u32 shown[2];   ///< of the thread's rows what mask and tree show, a bit a score
  u32 coming[2];  ///< the same of the block after
  u32 kept[2];    ///< dropout: of the thread's scores, a bit for each of `kPerWord`
};

/// And of ALiBi, where one reference serves the thread's two rows.
template <bool kLeans>
struct HeldTie {};
template <>
struct HeldTie<true> {
  bool tied = false;  ///< exponents of a column differ by their scores alone
};

/// And of dropout, where its bits are made between products, one counter of a lane at a time.
template <int kBlockN, bool kAny>
struct HeldMaker {};
template <int kBlockN>
struct HeldMaker<kBlockN, true> {
  using Maker = KeptMaker<false, 1, kBlockN / 8, 1, true, true, true>;
  Maker maker;
};

/// leaning: one reference for a thread's two rows. What the exponents of a column are taken against
/// is worked out once then. `between`: what the term puts between the rows' maxima. The lower of
/// both serves: it never passes a row's own maximum, however often the other one rises. False, and
/// m as it was, where P of the higher row would be too large.
template <Element kElement>
__forceinline__ bool tie_maxima(float (&m)[2], float between) {
  constexpr float kMostApart = kElement == Element::bf16 ? 20.0F : 7.0F;
  // A score may be kSlack above its row's maximum.
  constexpr float kMostOfP = kElement == Element::bf16 ? 30.0F : 15.0F;
  static_assert(kMostApart + kSlack <= kMostOfP);
  const float other = m[1] - between;
  const bool tied = !__any_sync(~0U, !(fabsf(m[0] - other) <= kMostApart));
  const float one = fminf(m[0], other);
  m[0] = tied ? one : m[0];
  m[1] = tied ? one + between : m[1];
  return tied;
}

}  // namespace tilewise::fwd_sm90
