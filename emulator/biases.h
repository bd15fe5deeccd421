/// Biases of the emulated cases.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cuda/tile/math.cuh"
#include "problem/problem.h"

namespace {

using namespace tilewise;

/// What a case says of its bias. Row 5 holds `shift` alone where there is one.
struct Added {
  DType type = DType::float32;
  bool by_batch = false, by_head = true, by_query = true, by_key = true;
  int pitch = 2;        ///< rows are whole multiples of so many elements
  double hidden = 0.0;  ///< share of elements that are -inf
  float shift = 0.0F;
};

struct Bias {
  const Added* of;
  std::int64_t batch = 1, heads = 1, queries = 1, keys = 1, pitch = 1;
  std::vector<float> values;
  std::vector<unsigned short> narrow;

  Bias(const Added* added, int batch_, int heads_, int queries_, int keys_) : of(added) {
    if (of == nullptr) return;
    batch = of->by_batch ? batch_ : 1;
    heads = of->by_head ? heads_ : 1;
    queries = of->by_query ? queries_ : 1;
    keys = of->by_key ? keys_ : 1;
    pitch = (keys + of->pitch - 1) / of->pitch * of->pitch;
    std::mt19937 random(23);
    std::normal_distribution<float> normal;
    std::bernoulli_distribution hides(of->hidden);
    values.assign(static_cast<std::size_t>(batch * heads * queries * pitch), NAN);
    for (std::size_t n = 0; n < values.size(); ++n) {
      const auto row = static_cast<std::int64_t>(n) / pitch % queries;
      float x = normal(random);
      if (row == 5 && of->shift != 0.0F) x = of->shift;
      if (hides(random)) x = -std::numeric_limits<float>::infinity();
      values[n] = x;
    }
    if (of->type == DType::float32) return;
    for (float& x : values) {
      using tile::Element;
      const bool bf16 = of->type == DType::bfloat16;
      const auto bits = static_cast<unsigned short>(bf16 ? tile::pack<Element::bf16>(x, 0.0F)
                                                         : tile::pack<Element::fp16>(x, 0.0F));
      narrow.push_back(bits);
      x = bf16 ? tile::widen<Element::bf16>(bits) : tile::widen<Element::fp16>(bits);
    }
  }
  double at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (of == nullptr) return 0.0;
    const std::int64_t row = (b % batch * heads + h % heads) * queries + i % queries;
    return values[static_cast<std::size_t>(row * pitch + j % keys)];
  }
  void give(Problem& p, int batch_, int heads_, int queries_, int keys_) {
    if (of == nullptr) return;
    void* data = narrow.empty() ? static_cast<void*>(values.data()) : narrow.data();
    p.bias = Tensor::contiguous(data, of->type, {batch_, heads_, queries_, keys_}, p.device);
    p.bias.strides = {batch > 1 ? heads * queries * pitch : 0, heads > 1 ? queries * pitch : 0,
                      queries > 1 ? pitch : 0, keys > 1 ? 1 : 0};
  }
};

}  // namespace
