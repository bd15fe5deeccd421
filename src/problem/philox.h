/// Dropout's random bits: Philox 4x32-10 and the keep rule that every backend shares. CONTRACT 13.
///
/// Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
/// tests/reference/philox_test.cpp holds its published known answers.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "tilewise/spec.h"

namespace tilewise {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53U;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9U;  // golden ratio
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85U;  // sqrt(3) - 1

/// Four random words for a counter and a key.
constexpr PhiloxCounter philox4x32_10(PhiloxCounter c, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * c[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * c[2];
    c = {static_cast<std::uint32_t>(product1 >> 32) ^ c[1] ^ key[0],
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ key[1],
         static_cast<std::uint32_t>(product0)};
    key = {key[0] + kPhiloxWeyl0, key[1] + kPhiloxWeyl1};
  }
  return c;
}

/// The probabilities that dropout keeps, and the factor of a kept one. (F13) in docs/math.md.
/// `bh` is b * Hq + h; packed sequences: b is the sequence, i and j count inside it.
class DropoutMask {
 public:
  explicit DropoutMask(const Dropout& dropout)
      : key_{static_cast<std::uint32_t>(dropout.seed),
             static_cast<std::uint32_t>(dropout.seed >> 32)},
        offset_(static_cast<std::uint32_t>(dropout.offset)),
        threshold_(static_cast<std::uint64_t>(std::floor(dropout.p * 0x1p32))),
        scale_(dropout.p < 1.0 ? 1.0 / (1.0 - dropout.p) : 0.0) {}

  /// The words of keys 4 * j4 .. 4 * j4 + 3: key j's is word j mod 4 of j4 = j / 4.
  PhiloxCounter words(std::int64_t bh, std::int64_t i, std::int64_t j4) const {
    return philox4x32_10({static_cast<std::uint32_t>(j4), static_cast<std::uint32_t>(i),
                          static_cast<std::uint32_t>(bh), offset_},
                         key_);
  }
  /// p = 0 keeps every word and p = 1 none, because the threshold has 33 bits.
  bool keeps(std::uint32_t word) const { return word >= threshold_; }
  bool keeps(std::int64_t bh, std::int64_t i, std::int64_t j) const {
    return keeps(words(bh, i, j / 4)[static_cast<std::size_t>(j % 4)]);
  }

  PhiloxKey key() const { return key_; }
  std::uint32_t offset() const { return offset_; }
  std::uint64_t threshold() const { return threshold_; }  ///< floor(p * 2^32), in [0, 2^32]
  double scale() const { return scale_; }                 ///< 1 / (1 - p); 0 for p = 1

 private:
  PhiloxKey key_;
  std::uint32_t offset_;
  std::uint64_t threshold_;
  double scale_;
};

}  // namespace tilewise
