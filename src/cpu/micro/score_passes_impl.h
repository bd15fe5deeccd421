/// The score passes, written once over vectors of kLanes floats and compiled per instruction set,
/// in an unnamed namespace as lanes_impl.h.
#pragma once

#include "cpu/micro/lanes_impl.h"
#include "cpu/micro/score_passes.h"

namespace tilewise::cpu {
namespace {

constexpr float kHidden = -__builtin_inff();

void cap(std::int64_t n, float c, float* s) {
  const float inverse = 1.0F / c;
  const bool normal = inverse >= 0x1p-126F && c >= 0x1p-126F;  // else 1 / c may be 0 or infinite
  map(n, s, s, [&](Float x, Float) { return Lanes::tanh(normal ? x * inverse : x / c) * c; });
}

void cap_gradient(std::int64_t n, float inverse, const float* capped, float* ds) {
  map(n, capped, ds, [&](Float x, Float gradient) {
    const Float t = x * inverse;
    return gradient * (1.0F - t * t);
  });
}

/// s - slope |distance|; the distance is rounded once.
inline Float slanted(Float s, Float slope, Lanes::Signed distance) {
  const auto magnitude = distance < 0 ? -distance : distance;
  return s - slope * __builtin_convertvector(magnitude, Float);
}

void alibi(std::int64_t n, float slope, std::int64_t distance, float* s) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;
  const Float slopes = Lanes::set(slope);
  std::int64_t j = 0;
  for (; j < n && (distance - j > kFar || distance - j < -kFar); ++j) {  // not in 32 bits
    const std::int64_t far = distance > j ? distance - j : j - distance;
    s[j] -= slope * static_cast<float>(far);
  }
  Lanes::Signed at;
  for (int lane = 0; lane < Lanes::kLanes; ++lane) at[lane] = -lane;
  at += static_cast<int>(distance - j);
  for (; j + Lanes::kLanes <= n; j += Lanes::kLanes, at -= Lanes::kLanes) {
    Lanes::store(s + j, slanted(Lanes::load(s + j), slopes, at));
  }
  if (j < n) store_tail(n - j, s + j, slanted(load_tail(n - j, s + j, 0.0F), slopes, at));
}

void add(std::int64_t n, const float* bias, float* s) {
  map(n, bias, s, [](Float x, Float score) { return score + x; });
}

void hide(std::int64_t n, const std::uint8_t* visible, float* s) {
  for (std::int64_t j = 0; j < n; ++j) {  // NOTE: the compiler widens the bytes better than we can
    const float score = s[j];
    s[j] = visible[j] != 0 ? score : kHidden;
  }
}

void replace_hidden(std::int64_t n, const float* by, float value, float* s) {
  map(n, by, s, [&](Float x, Float score) { return x == kHidden ? Lanes::set(value) : score; });
}

constexpr ScorePasses make_score_passes() {
  return {.cap = cap,
          .cap_gradient = cap_gradient,
          .alibi = alibi,
          .add = add,
          .hide = hide,
          .replace_hidden = replace_hidden};
}

}  // namespace
}  // namespace tilewise::cpu
