/// The score functions and masks that the emulation runs, as text, and the tensors that they
/// capture.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "expression/lower.h"
#include "tilewise/expression.h"

namespace tilewise::samples {

struct Sample {
  const char *score, *mask;  ///< empty: none
};
inline constexpr Sample kSamples[] = {
    {"score - slopes[h]*abs(i - j) + gate[h, i // 32, j // 64]", ""},
    {"12*tanh(score/12) + 0.1*((j - i) // 3) - 0.05*((j - i) % 5)", "docs[b, i] == docs[b, j]"},
    // Hidden pairs have an infinite slope.
    {"score/float(j <= i) + table[clamp(i - j, 0, 6), h]", "j <= i"},
    {"score + sum(8, left[i, lane]*right[j, lane])",
     "any(4, top[i // 16, lane] == j // 16) | j == 0"},
    // It has the form of tile::Slant.
    {"score - slopes[h]*abs(i - j + 9) + 0.04*slopes[h]*(j - i) - 0.01*j + 0.003*i + float(h)", ""},
    // Shifts whole rows, by -2^100.
    {"where(i % 3 == 0, -1.2676506002282294e30, score)", "docs[b, i] == docs[b, j] | j < 9"},
    // Position alone cuts some tiles.
    {"", "docs[b, i // 6] == docs[b, j // 6]"},
};
inline constexpr int kCount = 7, kShifting = 5, kPlaced = 6;
/// Masks whose maps are made (mask_maps.cxx).
inline constexpr const char* kMasks[] = {
    "docs[b, i] == docs[b, j] & i >= j",
    "docs[b, i // 6] == docs[b, j // 6]",
    "i >= j & (i - j < 200 | j < 130)",
    "i >= j | j < prefix[b]",
    "any(4, top[i // 16, lane] == j // 16) | ((i ^ j) & 64) == 0",
    "(i >= j) ^ (h % 2 == 0)",
    "abs(clamp(i % 16, 3, 12) - j % 16) <= 3 & abs(clamp(i // 16, 3, 36) - j // 16) <= 3",
    "(i - j) % 256 < 128 & float(j)*0.5 < float(i) + slopes[h]",
    "where(i // 128 == 2, j % 128 < 0, (j >> 7) != 1) | ~(i + j > 40)",
    "i > 3000",
    "i*j - 5 < 250000 & max(i, j) >= 100 & (min(i, 1000) << 1) > j & !(h == 1 & b == 1)",
};
/// Their numbers as functions.
inline constexpr int kMasksFrom = 300;
/// Numbers of units: kSamples from 0 on; those with a derivative,
inline constexpr int kGradients = 100;
/// those of them that read a strip,
inline constexpr int kStripped = 400;
/// those that add to the gradients of captured tensors,
inline constexpr int kCaptures = 200;
/// and sample 0, which adds to the gradient of its gate alone.
inline constexpr int kGate = 250;

/// Tensors for up to 1040 queries and keys and four heads.
struct Tables {
  static constexpr int kLength = 1040;
  std::vector<float> slopes{0.25F, 0.0625F, 0.5F, 0.125F};
  std::vector<std::int32_t> docs = std::vector<std::int32_t>(kLength);
  std::vector<float> table = std::vector<float>(7 * 4);
  std::vector<float> gate = std::vector<float>(4 * 5 * 3);  ///< the last ones take the rest
  std::vector<float> left = std::vector<float>(kLength * 8), right = left;
  std::vector<std::int64_t> top = std::vector<std::int64_t>(kLength / 16 * 4);
  std::vector<std::int32_t> prefix{200, 0, 385, 31};
  std::vector<Captured> captures;

  Tables() {
    for (int n = 0; n < kLength; ++n) docs[n] = n / 37;
    for (int n = 0; n < 7 * 4; ++n) table[n] = std::sin(static_cast<float>(n));
    for (int n = 0; n < 4 * 5 * 3; ++n) gate[n] = std::cos(static_cast<float>(n));
    for (int n = 0; n < kLength * 8; ++n) {
      left[n] = std::sin(0.7F * static_cast<float>(n));
      right[n] = std::cos(1.3F * static_cast<float>(n));
    }
    for (int n = 0; n < static_cast<int>(top.size()); ++n) top[n] = (5 * n + n / 4) % 9;
    const auto add = [&](const char* name, auto& data, DType dtype,
                         std::initializer_list<std::int64_t> sizes) {
      captures.emplace_back(name, Tensor::contiguous(data.data(), dtype, sizes));
    };
    add("slopes", slopes, DType::float32, {4});
    // All batch entries have the same.
    Tensor of_all = Tensor::contiguous(docs.data(), DType::int32, {4, kLength});
    of_all.strides[0] = 0;
    captures.emplace_back("docs", of_all);
    add("prefix", prefix, DType::int32, {4});
    add("table", table, DType::float32, {7, 4});
    add("gate", gate, DType::float32, {4, 5, 3});
    add("left", left, DType::float32, {kLength, 8});
    add("right", right, DType::float32, {kLength, 8});
    add("top", top, DType::int64, {kLength / 16, 4});
  }
};

inline Tables& tables() {
  static Tables kept;
  return kept;
}

/// The functions of a sample; not defined where its text is empty.
inline Expression score_of(const Sample& s) {
  return *s.score == '\0' ? Expression() : Expression::parse(s.score, tables().captures);
}
inline Expression mask_of(const Sample& s) {
  return *s.mask == '\0' ? Expression() : Expression::parse(s.mask, tables().captures);
}

}  // namespace tilewise::samples
