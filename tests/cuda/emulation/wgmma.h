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
  /// Element (outer, k) of an operand: rows of 128 bytes along k, or along the other axis, 64 of it
  /// a panel.
  static float k_major(u64 descriptor, int outer, int k) {
    return element(address(descriptor, outer, k));
  }
  static float mn_major(u64 descriptor, int outer, int k) {
    const unsigned panel = static_cast<unsigned>(descriptor >> 16 & 0x3FFF) << 4;
    return element(address(descriptor, k, outer % 64) + outer / 64 * panel);
  }
  /// d (+)= a(row, k) * b(column, k). All lanes of a warp have read when one goes on.
  template <class A, class B>
  static void multiply(float (&d)[kN / 2], bool accumulate, A a, B b) {
    const int thread = emulator::current->thread % 128, lane = thread % 32;
    for (int i = 0; i < kN / 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + 8 * (i / 2 % 2);
      const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      float sum = accumulate ? d[i] : 0.0F;
      for (int k = 0; k < 16; ++k) sum += a(row, k) * b(column, k);
      d[i] = sum;
    }
    emulator::meet({});
  }
  /// A in registers, as fragments of a warp's 16 rows.
  struct Fragments {
    emulator::Slot slots[32];
    Fragments(u32 a0, u32 a1, u32 a2, u32 a3) {
      std::memcpy(slots, emulator::meet({{a0, a1, a2, a3}}), sizeof(slots));
    }
    float operator()(int row, int k) const {
      const u32 word = slots[row % 8 * 4 + k % 8 / 2].words[row % 16 / 8 + 2 * (k / 8)];
      return widen<kElement>(word >> (16 * (k % 2)) & 0xffffU);
    }
  };

  static void multiply_shared(float (&d)[kN / 2], u64 a, u64 b, int accumulate) {
    multiply(
        d, accumulate != 0, [a](int row, int k) { return k_major(a, row, k); },
        [b](int column, int k) { return k_major(b, column, k); });
  }
  static void multiply_transposed(float (&d)[kN / 2], u64 a, u64 b, int accumulate) {
    multiply(
        d, accumulate != 0, [a](int row, int k) { return mn_major(a, row, k); },
        [b](int column, int k) { return mn_major(b, column, k); });
  }
  static void multiply_register(float (&d)[kN / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    multiply(d, true, Fragments(a0, a1, a2, a3),
             [b](int column, int k) { return mn_major(b, column, k); });
  }
  static void multiply_register_rows(float (&d)[kN / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b,
                                     int accumulate) {
    multiply(d, accumulate != 0, Fragments(a0, a1, a2, a3),
             [b](int column, int k) { return k_major(b, column, k); });
  }
};

}  // namespace tilewise::tile
