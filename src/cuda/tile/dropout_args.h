/// What dropout's random bits are made from, for host and device alike.
#pragma once

namespace tilewise::tile {

/// The keys of Philox's rounds, of the seed's halves, the low one first. NOTE: made by the host: an
/// instruction takes one from the parameters' memory as it stands, where on the device they were a
/// third of the instructions.
struct PhiloxKeys {
  static constexpr int kRounds = 10;
  static constexpr unsigned kMultipliers[2] = {0xD2511F53U, 0xCD9E8D57U};
  static constexpr unsigned kSteps[2] = {0x9E3779B9U, 0xBB67AE85U};
  unsigned round[kRounds][2] = {};

  constexpr PhiloxKeys() = default;
  constexpr PhiloxKeys(unsigned low, unsigned high) {
    for (auto& keys : round) {
      keys[0] = low, keys[1] = high;
      low += kSteps[0], high += kSteps[1];
    }
  }
};

/// (F13) The word of a pair is kept when it is above `limit`. CONTRACT 13
struct DropoutBits {
  PhiloxKeys key;
  unsigned offset = 0;
  const unsigned* counter = nullptr;  ///< in memory: added to offset; may be null
  unsigned limit = 0;                 ///< floor(p * 2^32) - 1
  float scale = 1.0F;                 ///< of what is kept: 1 / (1 - p); 0 for p = 1
};

}  // namespace tilewise::tile
