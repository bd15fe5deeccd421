/// The seed of a run and what is drawn from it: when asynchronous operations take effect, which
/// warps stall. TILEWISE_EMULATION_SEED is a number, 1 by default; with 0 all takes effect at once
/// and nobody stalls.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace emulator {

inline const std::uint64_t seed = [] {
  const char* text = std::getenv("TILEWISE_EMULATION_SEED");
  return text == nullptr ? 1ULL : std::strtoull(text, nullptr, 10);
}();
inline const bool is_late = seed != 0;

/// Below `bound`. xorshift64*.
inline unsigned draw(unsigned bound) {
  static std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 0x2545f4914f6cdd1dULL;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return static_cast<unsigned>((state * 0x2545f4914f6cdd1dULL >> 32) * bound >> 32);
}
inline bool one_in(unsigned n) { return is_late && draw(n) == 0; }

}  // namespace emulator
