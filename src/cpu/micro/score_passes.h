/// Passes over scores on their way to logits: cap, ALiBi, bias and masks, and the way back. One
/// table of functions per instruction set, each compiled in its own unit with its own flags.
#pragma once

#include <cstdint>

#include "cpu/micro/isa.h"

namespace tilewise::cpu {

/// Rows are n floats at any address.
struct ScorePasses {
  /// s = c tanh(s / c). (F2)
  void (*cap)(std::int64_t n, float c, float* s);
  /// ds *= 1 - tanh^2, from the capped scores c tanh(s / c); inverse = 1 / c. (B7)
  void (*cap_gradient)(std::int64_t n, float inverse, const float* capped, float* ds);
  /// s[j] -= slope |distance - j|. (F3)
  void (*alibi)(std::int64_t n, float slope, std::int64_t distance, float* s);
  /// s += bias. (F3)
  void (*add)(std::int64_t n, const float* bias, float* s);
  /// s = -inf where visible is 0. (F4)
  void (*hide)(std::int64_t n, const std::uint8_t* visible, float* s);
  /// s = value where by = -inf.
  void (*replace_hidden)(std::int64_t n, const float* by, float value, float* s);
};

/// The table of an instruction set; the CPU must have it to call through it.
const ScorePasses& score_passes(Isa isa);

// One per unit: score_passes_scalar.cpp, score_passes_avx2.cpp, score_passes_avx512.cpp.
const ScorePasses& score_passes_scalar();
const ScorePasses& score_passes_avx2();
const ScorePasses& score_passes_avx512();

}  // namespace tilewise::cpu
