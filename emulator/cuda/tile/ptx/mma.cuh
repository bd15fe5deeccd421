/// The wrappers of src/cuda/tile/ptx/mma.cuh, each with what its instruction does on the emulator.
/// Fragments are described there.
#pragma once

#include "cuda/tile/ptx/math.cuh"

namespace tilewise::tile {

using Acc = float[4];

template <Element kElement>
__forceinline__ void mma(Acc& c, const u32 (&a)[4], u32 b0, u32 b1) {
  const int lane = emulator::current->thread % 32;
  const emulator::Slot* w = emulator::meet({{a[0], a[1], a[2], a[3], b0, b1}});
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), col = 2 * (lane % 4) + e % 2;
    double sum = 0.0;
    for (int k = 0; k < 16; ++k) {
      const u32 x = w[row % 8 * 4 + k % 8 / 2].words[row / 8 + 2 * (k / 8)];
      const u32 y = w[col * 4 + k % 8 / 2].words[4 + k / 8];
      sum += static_cast<double>(widen<kElement>(x >> (16 * (k % 2)) & 0xffffU)) *
             static_cast<double>(widen<kElement>(y >> (16 * (k % 2)) & 0xffffU));
    }
    c[e] += static_cast<float>(sum);
  }
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
