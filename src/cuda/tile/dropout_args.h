/// What dropout's random bits are made from, for host and device alike.
#pragma once

namespace tilewise::tile {

/// (F13) The word of a pair is kept when it is above `limit`. CONTRACT 13
struct DropoutBits {
  unsigned key[2] = {};  ///< the seed, low half first
  unsigned offset = 0;
  unsigned limit = 0;  ///< floor(p * 2^32) - 1
  float scale = 1.0F;  ///< of what is kept: 1 / (1 - p); 0 for p = 1
};

}  // namespace tilewise::tile
