/// Shapes of bwd_sm90 and bwd_short_sm90 that the seed draws for a config. As many for each as
/// TILEWISE_EMULATION_DRAWN says, none by default.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <list>
#include <string>

#include "bwd_sm90_truth.h"

namespace {

class ShapeDraws {
 public:
  explicit ShapeDraws(unsigned of_config) : random_(unsigned(emulator::seed) * 1009U + of_config) {}

  static int count() {
    const char* text = std::getenv("TILEWISE_EMULATION_DRAWN");
    return text == nullptr ? 0 : std::atoi(text);
  }

  /// A shape for a config with this mask, lengths and options, and dims up to `dim`. In dense
  /// problems every row sees a key, as the config says.
  Shape draw(bwd_sm90::Mask mask, bwd_sm90::Lengths lengths, int dim, int dim_v) {
    using bwd_sm90::Lengths, bwd_sm90::Mask;
    Shape s;
    s.values = random_() % 1000;
    s.heads_k = between(1, 2), s.heads_q = s.heads_k * between(1, 3);
    s.dim = draw_dim(dim), s.dim_v = draw_dim(dim_v);
    s.scale = 1.0F / std::sqrt(float(s.dim));
    s.d_lse = percent(30), s.blocks = unsigned(between(1, 4));
    s.amplitude = percent(20) ? 2.0F : 1.0F;
    if (lengths == Lengths::packed) {
      for (int n = between(1, 5); n > 0; --n) {
        s.queries.push_back(percent(20) ? 0 : between(1, 200));
        s.keys.push_back(percent(20) ? 0 : between(1, 200));
      }
      s.queries[0] = std::max(s.queries[0], 20), s.keys[0] = std::max(s.keys[0], 20);
      s.tail = percent(50) ? 0 : between(1, 140);
    } else {
      s.batch = between(1, 2);
      s.seq_q = between(12, 280), s.seq_k = between(12, 340);
      if (lengths == Lengths::keys) {
        for (int b = 0; b < s.batch; ++b) s.keys.push_back(between(b == 0 ? 12 : 0, s.seq_k));
      }
    }
    if (mask != Mask::none) draw_mask(mask, lengths != Lengths::dense, s);
    return s;
  }
  /// A bias of the config's type: of each query, or of keys alone.
  const Added* bias(tile::BiasType type, bool rows) {
    kept_.push_back({.type = type == tile::BiasType::bf16 ? DType::bfloat16 : DType::float16,
                     .by_batch = percent(50),
                     .by_head = percent(50),
                     .by_query = rows,
                     .pitch = 8,
                     .hidden = percent(40) ? 0.3 : 0.0,
                     .shift = percent(30) ? -300.0F : 0.0F});
    return &kept_.back();
  }
  Shows mask() {
    return {.density = percent(30) ? 0.2 : 0.8,
            .by_batch = percent(50),
            .by_head = percent(50),
            .by_query = percent(70),
            .pitch = percent(50) ? 16 : 1,
            .transposed = percent(20)};
  }
  int between(int low, int high) { return low + int(random_() % unsigned(high - low + 1)); }
  bool percent(int of_hundred) { return between(0, 99) < of_hundred; }

 private:
  /// The last panel has at least one column.
  int draw_dim(int most) { return 8 * between((most - 1) / 64 * 8 + 1, most / 8); }
  void draw_mask(bwd_sm90::Mask mask, bool ragged, Shape& s) {
    const bool top_left = percent(30);
    const int shift = ragged || top_left ? 0 : s.seq_k - s.seq_q;
    s.top = ragged && top_left ? 1 : kFar;
    s.high = shift + 1;
    if (mask == bwd_sm90::Mask::both) {
      s.high += percent(50) ? 0 : between(0, 90);
      s.low = shift - between(0, 120);
    }
    if (ragged) return;
    s.high = std::max(s.high, 1);
    s.low = std::min(s.low, s.seq_k - s.seq_q);
  }

  std::mt19937 random_;
  std::list<Added> kept_;
};

}  // namespace
