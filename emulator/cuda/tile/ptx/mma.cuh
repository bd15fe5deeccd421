/// The wrappers of src/cuda/tile/ptx/mma.cuh, each with what its instruction does on the emulator.
/// Fragments are described there.
#pragma once

#include "cuda/tile/ptx/math.cuh"

namespace tilewise::tile {

using Acc = float[4];

/// Takes fragments of A and B from the slots of a warp and leaves the sums of each lane there.
template <Element kElement>
inline void multiply(emulator::Slot* lanes) {
  using Eight = double __attribute__((vector_size(64), aligned(8)));
  const auto half = [](u32 pair, int e) {
    return static_cast<double>(widen<kElement>(pair >> (16 * e) & 0xffffU));
  };
  double a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int k = 2 * (lane % 4);
    for (int e = 0; e < 2; ++e) {
      for (int r = 0; r < 4; ++r)
        a[lane / 4 + 8 * (r % 2)][k + 8 * (r / 2) + e] = half(lanes[lane].words[r], e);
      for (int r = 0; r < 2; ++r) b[k + 8 * r + e][lane / 4] = half(lanes[lane].words[4 + r], e);
    }
  }
  Eight sums[16] = {};
  for (int k = 0; k < 16; ++k) {
    const Eight columns = *reinterpret_cast<const Eight*>(b[k]);
    for (int row = 0; row < 16; ++row) sums[row] += a[row][k] * columns;
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const double sum = sums[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + e % 2];
      lanes[lane].words[e] = emulator::bits(static_cast<float>(sum));
    }
  }
}

/// The last lane that comes multiplies for all.
template <Element kElement>
__forceinline__ void mma(Acc& c, const u32 (&a)[4], u32 b0, u32 b1) {
  const emulator::Slot* lanes = emulator::meet({{a[0], a[1], a[2], a[3], b0, b1}},
                                               [] { multiply<kElement>(emulator::met_slots()); });
  const emulator::Slot& own = lanes[emulator::current->thread % 32];
  for (int e = 0; e < 4; ++e) c[e] += emulator::number(own.words[e]);
}

__forceinline__ void mma_tf32(Acc& c, const u32 (&a)[4], u32 b0, u32 b1) {
  const int lane = emulator::current->thread % 32;
  const emulator::Slot* w = emulator::meet({{a[0], a[1], a[2], a[3], b0, b1}});
  const auto kept = [](u32 x) { return static_cast<double>(emulator::number(x & 0xffffe000U)); };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), col = 2 * (lane % 4) + e % 2;
    double sum = c[e];
    for (int k = 0; k < 8; ++k) {
      sum += kept(w[row % 8 * 4 + k % 4].words[row / 8 + 2 * (k / 4)]) *
             kept(w[col * 4 + k % 4].words[4 + k / 4]);
    }
    c[e] = static_cast<float>(sum);
  }
}

}  // namespace tilewise::tile
