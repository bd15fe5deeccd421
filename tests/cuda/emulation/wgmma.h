/// The products of wgmma_text.h on the emulator: operands in swizzled panels of shared memory, as
/// their descriptors say.
#pragma once

#include "cuda/tile/wgmma.cuh"

namespace tilewise::tile {

/// The products of wgmma_text.h: a warp has 16 rows of A, all of B.
template <Element kElement, int kN>
struct Wgmma {
  static unsigned address(u64 descriptor, int outer, int inner) {  // inner: along 128 bytes
    return static_cast<unsigned>((descriptor & 0x3FFF) << 4) + outer / 8 * 1024 + outer % 8 * 128 +
           2 * inner;
  }
  static float element(unsigned at) {
    unsigned short x;
    std::memcpy(&x, emulator::shared_base + emulator::swizzled(at), 2);
    return widen<kElement>(x);
  }
  static void multiply_shared(float (&d)[kN / 2], u64 a, u64 b, int accumulate) {
    const int thread = emulator::current->thread % 128, lane = thread % 32;
    for (int i = 0; i < kN / 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + 8 * (i / 2 % 2);
      const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      float sum = accumulate != 0 ? d[i] : 0.0F;
      for (int k = 0; k < 16; ++k)
        sum += element(address(a, row, k)) * element(address(b, column, k));
      d[i] = sum;
    }
  }
  static void multiply_register(float (&d)[kN / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    const emulator::Slot* slots = emulator::meet({{a0, a1, a2, a3}});
    const int lane = emulator::current->thread % 32;
    const unsigned panel = static_cast<unsigned>(b >> 16 & 0x3FFF) << 4;
    for (int i = 0; i < kN / 2; ++i) {
      const int half = i / 2 % 2, column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      for (int k = 0; k < 16; ++k) {
        const u32 word = slots[lane / 4 * 4 + k % 8 / 2].words[half + 2 * (k / 8)];
        d[i] += widen<kElement>(word >> (16 * (k % 2)) & 0xffffU) *
                element(address(b, k, column % 64) + column / 64 * panel);
      }
    }
  }
};

}  // namespace tilewise::tile
