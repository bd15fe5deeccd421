#include "cuda/host/sm90_mask.h"

#include <algorithm>
#include <cstdint>

#include "cuda/tile/types.h"

namespace tilewise::cuda {

using tile::Lengths;
using tile::Mask;

Lengths sm90_lengths(const Problem& p) {
  return p.packed ? Lengths::packed : p.key_lengths.defined() ? Lengths::keys : Lengths::dense;
}

Sm90Mask sm90_mask(const Problem& p) {
  constexpr std::int64_t kFar = tile::Positions::kFar;
  const bool dense = sm90_lengths(p) == Lengths::dense;
  const bool top_left = p.causal == Causal::top_left;
  const std::int64_t shift = dense ? p.seq_k - p.seq_q : 0;
  std::int64_t high = shift + p.right + 1;
  if (dense && top_left) high = std::min<std::int64_t>(high, 1);
  const std::int64_t low = shift - p.left;
  Sm90Mask mask;
  mask.high = static_cast<int>(std::clamp(high, -kFar, kFar));
  mask.low = static_cast<int>(std::clamp(low, -kFar, kFar));
  mask.top = top_left ? 1 : static_cast<int>(kFar);
  // The first row has the nearest right edge, the last row the nearest left one. With lengths from
  // the device: in the longest sequence.
  if (p.left < p.seq_k - 1) {
    mask.mask = Mask::both;
  } else if (dense ? high < p.seq_k : top_left || p.right + 1 < p.seq_q) {
    mask.mask = Mask::right;
  }
  return mask;
}

}  // namespace tilewise::cuda
