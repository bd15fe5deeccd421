/// A score function of one's own: a soft penalty on distance,
///
///   mod(x) = x - strength * log(1 + |i - j|),
///
/// which leans towards near keys without hiding far ones. Prints where one query's attention goes,
/// without and with it. Build against an installed Tilewise: c++ -std=c++20 score_mod.cpp
/// $(pkg-config --cflags --libs tilewise)
#include <tilewise/attention.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kLength = 8;
constexpr int kDim = 16;

tilewise::ScoreMod distance_penalty(float strength) {
  tilewise::ScoreMod mod;
  mod.apply = [strength](const tilewise::ScoreTile& x) {
    for (std::int64_t r = 0; r < x.rows; ++r) {
      for (std::int64_t c = 0; c < x.cols; ++c) {
        const auto distance = static_cast<float>(std::abs((x.i0 + r) - (x.j0 + c)));
        x.scores[r * x.row_stride + c] -= strength * std::log1p(distance);
      }
    }
  };
  // The penalty does not depend on x: d mod / dx = 1, and grad stays as it is.
  mod.derivative = [](const tilewise::ScoreTile&, float*) {};
  return mod;
}

/// Attention weights of the last query: with V the identity, O is P.
void print_weights(const char* title, const tilewise::ScoreMod* mod) {
  std::vector<float> q(kLength * kDim, 0.1F);
  std::vector<float> v(kLength * kLength, 0.0F);
  std::vector<float> o(kLength * kLength);
  for (int i = 0; i < kLength; ++i) v[static_cast<std::size_t>(i * kLength + i)] = 1.0F;
  const auto tensor = [](std::vector<float>& x, int dim) {
    return tilewise::Tensor::bhsd(x.data(), tilewise::DType::float32, 1, 1, kLength, dim);
  };
  tilewise::AttentionSpec spec;
  spec.score_mod = mod;
  const tilewise::Tensor qk = tensor(q, kDim);
  tilewise::forward({qk, qk, tensor(v, kLength), tensor(o, kLength), {}, {}}, spec);
  std::printf("%-16s", title);
  for (int j = 0; j < kLength; ++j)
    std::printf(" %.3f", o[static_cast<std::size_t>((kLength - 1) * kLength + j)]);
  std::printf("\n");
}

}  // namespace

int main() {
  const tilewise::ScoreMod mod = distance_penalty(1.0F);
  print_weights("plain", nullptr);
  print_weights("with penalty", &mod);
}
