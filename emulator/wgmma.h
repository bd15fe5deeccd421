/// The products of wgmma_text.h on the emulator: operands in swizzled panels of shared memory, as
/// their descriptors say, or in registers. See products.h for when they take effect.
#pragma once

#include <optional>

#include "cuda/tile/hopper/wgmma.cuh"
#include "emulator.h"

namespace tilewise::tile {

/// The products of wgmma_text.h: a warp has 16 rows of A, all of B. Register operands are taken as
/// references: they are the instruction's until the wait.
template <Element kElement, int kN>
struct Wgmma {
  using Bits = unsigned short;
  using Sums = float[kN / 2];

  /// In shared memory: rows of 128 bytes along K, or along the other axis, 64 of it a panel.
  struct Operand {
    u64 descriptor;
    bool is_k_major;

    /// Rows (of A) or columns (of B) first..first+count-1, times 16 of K: in that order where
    /// K-major, else K comes first.
    void read(Bits* to, int first, int count) const {
      const unsigned begin = static_cast<unsigned>((descriptor & 0x3FFF) << 4);
      const unsigned panel = static_cast<unsigned>(descriptor >> 16 & 0x3FFF) << 4;
      const unsigned group = static_cast<unsigned>(descriptor >> 32 & 0x3FFF) << 4;
      const auto take = [&](unsigned at) {
        emulator::order_read(emulator::swizzled(at), 16);
        std::memcpy(to, emulator::shared_base + emulator::swizzled(at), 16);
        to += 8;
      };
      if (is_k_major) {
        for (int i = first; i < first + count; ++i) {
          const unsigned row = begin + i / 8 * group + i % 8 * 128;
          take(row), take(row + 16);
        }
      } else {
        for (int k = 0; k < 16; ++k) {
          const unsigned row = begin + k / 8 * group + k % 8 * 128;
          for (int i = first; i < first + count; i += 8) take(row + i / 64 * panel + i % 64 * 2);
        }
      }
    }
    int index(int outer, int k, int count) const {
      return is_k_major ? outer * 16 + k : k * count + outer;
    }
  };
  struct Fragments {
    const u32* words[32][4];
    void read(Bits* to) const {  // rows first
      for (int lane = 0; lane < 32; ++lane) {
        for (int r = 0; r < 4; ++r) {
          std::memcpy(to + (lane / 4 + r % 2 * 8) * 16 + r / 2 * 8 + lane % 4 * 2, words[lane][r],
                      4);
        }
      }
    }
  };

  struct Product : emulator::Product {
    std::optional<Operand> shared_a;
    Fragments fragments;
    Operand b;
    int first_row;
    Bits rows[16 * 16], columns[16 * kN];  ///< of A, of B, as they were

    void read(Bits* to_rows, Bits* to_columns) const {
      if (shared_a) {
        shared_a->read(to_rows, first_row, 16);
      } else {
        fragments.read(to_rows);
      }
      b.read(to_columns, 0, kN);
    }
    void multiply() {
      read(rows, columns);
      using Eight = float __attribute__((vector_size(32), aligned(4)));
      float x[16][kN];
      for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < kN; ++i) x[k][i] = widen<kElement>(columns[b.index(i, k, kN)]);
      }
      for (int row = 0; row < 16; ++row) {
        float* to = sums->values.data() + row * kN;
        for (int k = 0; k < 16; ++k) {
          const float a =
              widen<kElement>(rows[shared_a ? shared_a->index(row, k, 16) : row * 16 + k]);
          for (int i = 0; i < kN; i += 8) {
            *reinterpret_cast<Eight*>(to + i) += a * *reinterpret_cast<const Eight*>(&x[k][i]);
          }
        }
      }
    }
    void check() const override {
      Bits now_rows[16 * 16], now_columns[16 * kN];
      read(now_rows, now_columns);
      if (std::memcmp(rows, now_rows, sizeof(rows)) != 0) {
        emulator::report(shared_a ? "a write to A of a product that was not waited for"
                                  : "a write to registers of a product that was not waited for",
                         shared_a ? static_cast<u32>(shared_a->descriptor & 0x3FFF) << 4 : 0);
      }
      if (std::memcmp(columns, now_columns, sizeof(columns)) != 0) {
        emulator::report("a write to B of a product that was not waited for",
                         static_cast<u32>(b.descriptor & 0x3FFF) << 4);
      }
    }
  };

  /// What the lanes of a warp bring, by lane.
  struct Lanes {
    float* d[32];
    Fragments fragments;
  };
  static Lanes& lanes_of(const emulator::Warp& warp) {
    static std::map<const emulator::Warp*, Lanes> all;
    return all[&warp];
  }

  static void issue(Sums& d, bool accumulate, std::optional<Operand> a, Operand b) {
    lanes_of(emulator::current_warp()).d[emulator::current->thread % 32] = d;
    emulator::meet({}, [&] {
      const Lanes& lanes = lanes_of(emulator::current_warp());
      emulator::Products& products = emulator::current_products();
      auto product = std::make_unique<Product>();
      product->shared_a = a;
      product->fragments = lanes.fragments;
      product->b = b;
      product->first_row = static_cast<int>(emulator::current->thread % 128 / 32 * 16);
      product->sums = start_sums(products, lanes, accumulate);
      product->multiply();
      const bool is_nan = emulator::is_late && emulator::draw(2) == 0;
      for (float* lane : lanes.d) std::fill_n(lane, kN / 2, is_nan ? __builtin_nanf("") : 7.0F);
      products.open.push_back(std::move(product));
    });
  }
  static emulator::Accumulators* start_sums(emulator::Products& products, const Lanes& lanes,
                                            bool accumulate) {
    const auto [at, is_new] = products.sums.try_emplace(lanes.d[0]);
    emulator::Accumulators& sums = at->second;
    if (is_new) {
      std::copy(lanes.d, lanes.d + 32, sums.lanes.begin());
      sums.values.resize(16 * kN);
      emulator::take_values(sums, kN);
    }
    if (!accumulate) std::fill(sums.values.begin(), sums.values.end(), 0.0F);
    ++sums.in_flight;
    return &sums;
  }

  static void multiply_shared(Sums& d, u64 a, u64 b, int accumulate) {
    issue(d, accumulate != 0, Operand{a, true}, {b, true});
  }
  static void multiply_transposed(Sums& d, u64 a, u64 b, int accumulate) {
    issue(d, accumulate != 0, Operand{a, false}, {b, false});
  }
  static void bring(const u32& a0, const u32& a1, const u32& a2, const u32& a3) {
    const u32** words =
        lanes_of(emulator::current_warp()).fragments.words[emulator::current->thread % 32];
    words[0] = &a0, words[1] = &a1, words[2] = &a2, words[3] = &a3;
  }
  static void multiply_register(Sums& d, const u32& a0, const u32& a1, const u32& a2, const u32& a3,
                                u64 b) {
    bring(a0, a1, a2, a3);
    issue(d, true, {}, {b, false});
  }
  static void multiply_register_rows(Sums& d, const u32& a0, const u32& a1, const u32& a2,
                                     const u32& a3, u64 b, int accumulate) {
    bring(a0, a1, a2, a3);
    issue(d, accumulate != 0, {}, {b, true});
  }
};

}  // namespace tilewise::tile
