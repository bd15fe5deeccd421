#include "cpu/micro/bf16_micro.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cpu/micro/elements.h"

namespace tilewise::cpu {
namespace {

using Bits = std::vector<Bf16>;
using Floats = std::vector<float>;

/// A backend of the bfloat16 products, the emulated tiles among them.
struct Backend {
  std::string name;
  Isa needs;
  const Bf16Micro& (*table)();
};

std::ostream& operator<<(std::ostream& out, const Backend& backend) { return out << backend.name; }

class Bf16Kernels : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (GetParam().needs > best_isa() || (GetParam().needs == Isa::amx && emulate_amx())) {
      GTEST_SKIP() << "this CPU has no " << isa_name(GetParam().needs);
    }
    m().enter();
    entered_ = true;
  }
  void TearDown() override {
    if (entered_) m().leave();
  }
  const Bf16Micro& m() const { return GetParam().table(); }

 private:
  bool entered_ = false;
};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

Floats random_floats(std::int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats x(at(n));
  for (float& value : x) value = normal(generator);
  return x;
}

Bits random_bits(std::int64_t n, unsigned seed) {
  Bits x;
  for (const float value : random_floats(n, seed)) x.push_back(float_to_bfloat16(value));
  return x;
}

TEST_P(Bf16Kernels, GemmOfEveryTail) {
  for (const int rows : {1, 7, 16, 24, 32, 47, 64}) {
    for (const int cols : {16, 32, 48, 80}) {
      for (const int k : {32, 64, 96}) {
        const int tile_rows = (rows + 15) / 16 * 16;
        const Bits a = random_bits(tile_rows * k, 1);
        const Bits b = random_bits(k * cols, 2);
        const Floats before = random_floats(tile_rows * cols, 3);
        Floats sum = before;
        Floats fresh(before.size(), NAN);
        m().gemm(rows, cols, k, a.data(), k, b.data(), 2 * cols, sum.data(), cols, true);
        m().gemm(rows, cols, k, a.data(), k, b.data(), 2 * cols, fresh.data(), cols, false);
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < cols; ++c) {
            double exact = 0.0;
            for (int i = 0; i < k; ++i) {
              exact += double{bfloat16_to_float(a[at(r * k + i)])} *
                       bfloat16_to_float(b[at(i / 2 * 2 * cols + 2 * c + i % 2)]);
            }
            const std::size_t here = at(r * cols + c);
            ASSERT_NEAR(fresh[here], exact, 2e-5) << rows << "x" << cols << " k " << k;
            ASSERT_NEAR(sum[here], exact + before[here], 2e-5) << rows << "x" << cols;
          }
        }
      }
    }
  }
}

TEST_P(Bf16Kernels, GemmKeepsInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  Bits a(at(16 * 32), 0);
  Bits b(at(32 * 16), float_to_bfloat16(1.0F));
  a[0] = float_to_bfloat16(infinity);
  a[32] = float_to_bfloat16(NAN);
  a[64] = float_to_bfloat16(3.0F);
  Floats c(at(16 * 16));
  m().gemm(16, 16, 32, a.data(), 32, b.data(), 32, c.data(), 16, false);
  EXPECT_EQ(c[0], infinity);
  EXPECT_TRUE(std::isnan(c[16]));
  EXPECT_EQ(c[32], 3.0F);
  EXPECT_EQ(c[48], 0.0F);
}

/// Rows of B in any order, and what lies past their ends is not read.
TEST_P(Bf16Kernels, ProductsWithListedRows) {
  const int unit = m().reading_rows;
  for (const int rows : {1, 2, 3, 4, 7, 9, 18}) {
    for (const int dim : {8, 32, 33, 40, 72, 96, 130, 576}) {
      for (const int keys : {1, 4, 7, 18, 64, 147}) {
        const int padded_dim = (dim + 31) / 32 * 32, padded_keys = (keys + 31) / 32 * 32;
        const int units = (rows + unit - 1) / unit;
        Bits q(at(units * unit * padded_dim), 0), p(at(units * unit * padded_keys), 0);
        const Bits some = random_bits(rows * (dim + keys), 5);
        for (int r = 0; r < rows; ++r) {
          std::copy_n(&some[at(r * dim)], dim, &q[at(r * padded_dim)]);
          std::copy_n(&some[at(rows * dim + r * keys)], keys, &p[at(r * padded_keys)]);
        }
        const Bits b = random_bits(keys * dim, 6);  // without room behind the last row
        std::vector<std::int64_t> list(at(keys));
        for (int j = 0; j < keys; ++j) list[at(j)] = (3 * j + 2) % keys * dim;
        const auto f = [](Bf16 x) { return double{bfloat16_to_float(x)}; };
        const auto value = [&](int j, int i) { return f(b[at(list[at(j)] + i)]); };
        Floats s(at(rows * padded_keys), NAN), o(at(rows * padded_dim), 1.0F);
        Ahead ahead{reinterpret_cast<const char*>(b.data()), list.data(), 2, 2 * dim, keys / 2};
        Bits factors = q;
        for (int n = 0; unit > 1 && n < units; ++n) {
          const auto first = at(n * unit * padded_dim);
          m().pack_transposed_pairs(unit, padded_dim, &q[first], padded_dim, &factors[first], 32);
        }
        m().row_products(rows, keys, dim, factors.data(), padded_dim, b.data(), list.data(), 0.5F,
                         s.data(), padded_keys, ahead);
        m().add_listed_rows(rows, dim, keys, p.data(), padded_keys, b.data(), list.data(), o.data(),
                            padded_dim, ahead);
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < keys; ++j) {
            double exact = 0.0;
            for (int i = 0; i < dim; ++i) exact += 0.5 * f(q[at(r * padded_dim + i)]) * value(j, i);
            ASSERT_NEAR(s[at(r * padded_keys + j)], exact, 3e-5) << rows << ' ' << dim << ' ' << j;
          }
          for (int i = 0; i < dim; ++i) {
            double exact = 1.0;
            for (int j = 0; j < keys; ++j) exact += f(p[at(r * padded_keys + j)]) * value(j, i);
            ASSERT_NEAR(o[at(r * padded_dim + i)], exact, 3e-5) << rows << ' ' << dim << ' ' << i;
          }
        }
      }
    }
  }
}

TEST_P(Bf16Kernels, Packing) {
  const int rows = 64;
  for (const int cols : {32, 96}) {
    const Bits src = random_bits(rows * cols, 4);
    const auto value = [&](int r, int c) { return src[at(r * cols + c)]; };
    Bits pairs(src.size());
    m().pack_pairs(rows, cols, src.data(), cols, pairs.data(), 2 * cols);
    Bits transposed_pairs(src.size());
    m().pack_transposed_pairs(rows, cols, src.data(), cols, transposed_pairs.data(), 2 * rows);
    Bits transposed(src.size());
    m().transpose(rows, cols, src.data(), cols, transposed.data(), rows);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) {
        ASSERT_EQ(pairs[at(r / 2 * 2 * cols + 2 * c + r % 2)], value(r, c)) << r << "," << c;
        ASSERT_EQ(transposed_pairs[at(c / 2 * 2 * rows + 2 * r + c % 2)], value(r, c));
        ASSERT_EQ(transposed[at(c * rows + r)], value(r, c)) << r << "," << c;
      }
    }
  }
  const Bits narrow = random_bits(4 * 16, 5);  // columns that are half a vector
  Bits pairs(narrow.size());
  m().pack_pairs(4, 16, narrow.data(), 16, pairs.data(), 32);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 16; ++c)
      ASSERT_EQ(pairs[at(r / 2 * 32 + 2 * c + r % 2)], narrow[at(r * 16 + c)]);
  }
}

TEST_P(Bf16Kernels, PackingFindsTheLargestMagnitude) {
  const Bf16 large = float_to_bfloat16(-0x1p90F);
  for (const int cols : {16, 32, 48}) {
    for (const int at_element : {0, 5, 3 * cols - 1, 4 * cols - 1}) {
      Bits src = random_bits(4 * cols, 5);
      src[at(at_element)] = large;
      Bits pairs(src.size());
      EXPECT_EQ(m().pack_pairs(4, cols, src.data(), cols, pairs.data(), 2 * cols), large & 0x7FFF)
          << at_element << " of " << cols << " columns";
    }
  }
}

TEST_P(Bf16Kernels, SoftmaxInTwoSteps) {
  constexpr int kRows = 7;
  constexpr int kCols = 64;
  constexpr float kToLog2 = 0.18F;
  for (const float spread : {1.0F, 20.0F, 3e5F}) {
    Floats s = random_floats(kRows * 2 * kCols, 6);
    for (float& x : s) x *= spread;
    s[3] = -std::numeric_limits<float>::infinity();
    Floats m_row(kRows, -std::numeric_limits<float>::infinity());
    Floats l(kRows, 0.0F);
    Floats rescale(kRows);
    Bits p(at(kRows * 2 * kCols));
    Floats factor(kRows, 1.0F);
    for (int step = 0; step < 2; ++step) {
      m().softmax_step(kRows, kCols, s.data() + step * kCols, 2 * kCols, kToLog2, true,
                       m_row.data(), l.data(), rescale.data(), p.data() + step * kCols, 2 * kCols);
      if (step == 1) factor = rescale;
    }
    for (int r = 0; r < kRows; ++r) {
      double high = -std::numeric_limits<double>::infinity();
      double total = 0.0;
      for (int c = 0; c < 2 * kCols; ++c) high = std::max(high, double{s[at(r * 2 * kCols + c)]});
      const auto exact = [&](int c) {
        return std::exp2((s[at(r * 2 * kCols + c)] - high) * double{kToLog2});
      };
      for (int c = 0; c < 2 * kCols; ++c) total += exact(c);
      // Relative to whatever maximum the row kept: a sum below 2^20 of it.
      const double kept = std::exp2((high - m_row[at(r)]) * double{kToLog2});
      EXPECT_LE(kept, 0x1p20);
      EXPECT_NEAR(l[at(r)] / (total * kept), 1.0, 1e-4 + spread * 1e-7);
      for (int c = 0; c < 2 * kCols; ++c) {
        double ours = bfloat16_to_float(p[at(r * 2 * kCols + c)]);
        if (c < kCols) ours *= factor[at(r)];
        ASSERT_NEAR(ours / l[at(r)], exact(c) / total, exact(c) / total * 0.0045 + 1e-9)
            << r << "," << c << " of spread " << spread;
      }
    }
  }
}

TEST_P(Bf16Kernels, SoftmaxLeavesTheMaximumBehindOnlyIfItMay) {
  constexpr int kCols = 32;
  const Floats s(at(kCols), 10.0F);
  for (const bool keep : {true, false}) {
    float m_row = 0.0F;
    float l = 1.0F;
    float rescale = 0.0F;
    Bits p(at(kCols));
    m().softmax_step(1, kCols, s.data(), kCols, 1.0F, keep, &m_row, &l, &rescale, p.data(), kCols);
    EXPECT_EQ(m_row, keep ? 0.0F : 10.0F);
    EXPECT_EQ(rescale, keep ? 1.0F : 0x1p-10F);
    EXPECT_EQ(bfloat16_to_float(p[at(5)]), keep ? 1024.0F : 1.0F);
  }
}

TEST_P(Bf16Kernels, SoftmaxOfNothingInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  constexpr int kCols = 32;
  Floats s(at(3 * kCols), 0.5F);
  std::fill_n(s.begin(), kCols, -infinity);
  s[at(kCols + 9)] = NAN;
  s[at(2 * kCols + 9)] = infinity;
  Floats m_row(3, -infinity);
  Floats l(3, 0.0F);
  Floats rescale(3);
  Bits p(at(3 * kCols), 1);
  m().softmax_step(3, kCols, s.data(), kCols, 1.0F, true, m_row.data(), l.data(), rescale.data(),
                   p.data(), kCols);
  EXPECT_EQ(m_row[0], -infinity);
  EXPECT_EQ(l[0], 0.0F);
  EXPECT_EQ(rescale[0], 1.0F);
  for (int c = 0; c < kCols; ++c) EXPECT_EQ(p[at(c)], 0);
  EXPECT_TRUE(std::isnan(l[1]));
  EXPECT_TRUE(std::isnan(bfloat16_to_float(p[at(kCols + 9)])));
  EXPECT_EQ(bfloat16_to_float(p[at(kCols)]), 1.0F);
  EXPECT_TRUE(std::isnan(l[2]));  // inf - inf, as the formula has it
}

TEST_P(Bf16Kernels, GradientOfATile) {
  constexpr int kRows = 21;
  constexpr int kCols = 64;
  constexpr float kToLog2 = 0.3F;
  constexpr float kFactor = 0.2F;
  const Floats s = random_floats(kRows * kCols, 7);
  const Floats dp = random_floats(kRows * kCols, 8);
  const Floats delta = random_floats(kRows, 9);
  Floats lse = random_floats(kRows, 10);
  lse[2] = std::numeric_limits<float>::infinity();  // sees nothing
  Bits p_pairs(at(32 * kCols), 1);
  Bits ds_pairs(at(32 * kCols), 1);
  Bits ds_rows(at(32 * kCols), 1);
  const GradientTile tile{p_pairs.data(), ds_pairs.data(), ds_rows.data(), 2 * kCols, kCols};
  m().gradient_step(kRows, kCols, s.data(), dp.data(), kCols, kToLog2, lse.data(), delta.data(),
                    kFactor, tile);
  Floats p_all(at(kRows * kCols));
  Floats ds_all(at(kRows * kCols));
  for (int r = 0; r < 32; ++r) {
    for (int c = 0; c < kCols; ++c) {
      const std::size_t pair = at(r / 2 * 2 * kCols + 2 * c + r % 2);
      if (r >= kRows) {
        ASSERT_EQ(p_pairs[pair], 0) << r;
        ASSERT_EQ(ds_pairs[pair], 0) << r;
        continue;
      }
      const std::size_t here = at(r * kCols + c);
      const double p = std::exp2(std::min(0.0, double{s[here]} * kToLog2 - lse[at(r)]));
      const double ds = kFactor * p * (double{dp[here]} - delta[at(r)]);
      ASSERT_NEAR(bfloat16_to_float(p_pairs[pair]), p, p * 0.0041);
      ASSERT_NEAR(bfloat16_to_float(ds_pairs[pair]), ds, std::abs(ds) * 0.0041 + 1e-6);
      ASSERT_EQ(ds_pairs[pair], ds_rows[here]);
      p_all[here] = static_cast<float>(p);
      ds_all[here] = static_cast<float>(ds);
    }
  }
  m().round_gradient(kRows, kCols, p_all.data(), ds_all.data(), kCols, tile);
  m().remainder(kRows, kCols, ds_all.data(), kCols);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) {
      const std::size_t pair = at(r / 2 * 2 * kCols + 2 * c + r % 2);
      const std::size_t here = at(r * kCols + c);
      ASSERT_EQ(p_pairs[pair], float_to_bfloat16(p_all[here]));
      const float rounded = bfloat16_to_float(ds_rows[here]);
      ASSERT_LE(std::abs(ds_all[here]), std::abs(rounded) * 0.0041F);
      ASSERT_EQ(bfloat16_to_float(float_to_bfloat16(rounded + ds_all[here])), rounded);
    }
  }
}

TEST_P(Bf16Kernels, Dropping) {
  Floats keep(at(2 * 32), 1.25F);
  Bits p(at(2 * 32), float_to_bfloat16(0.5F));
  keep[5] = 0.0F;
  p[5] = float_to_bfloat16(NAN);
  keep[33] = 0.0F;
  m().keep(2, 32, keep.data(), 32, p.data(), 32);
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(bfloat16_to_float(p[at(i)]), i == 5 || i == 33 ? 0.0F : 0.5F) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Backends, Bf16Kernels,
    ::testing::Values(Backend{"avx512bf16", Isa::avx512bf16, bf16_micro_avx512bf16},
                      Backend{"amx", Isa::amx, bf16_micro_amx},
                      Backend{"amx_emulated", Isa::avx512bf16, bf16_micro_emulated}),
    [](const auto& p) { return p.param.name; });

/// TDPBF16PS as the manual defines it, where that shows: on tiles and on their emulation.
class Tiles : public Bf16Kernels {};

TEST_P(Tiles, EvenAndOddProductsAreSummedApart) {
  // Even: 2^24 + 1 - 2^24 loses the 1; odd: 1. Summed in order of k the result would be another.
  Bits a(at(16 * 32), 0);
  Bits b(at(32 * 16), float_to_bfloat16(1.0F));
  a[0] = float_to_bfloat16(16777216.0F);
  a[1] = float_to_bfloat16(1.0F);
  a[2] = float_to_bfloat16(1.0F);
  a[4] = float_to_bfloat16(-16777216.0F);
  Floats c(at(16 * 16));
  m().gemm(16, 16, 32, a.data(), 32, b.data(), 32, c.data(), 16, false);
  EXPECT_EQ(c[0], 1.0F);
}

TEST_P(Tiles, SubnormalsAreZero) {
  Bits a(at(16 * 32), 0);
  Bits b(at(32 * 16), float_to_bfloat16(1.0F));
  a[0] = 0x0040;                        // a subnormal bfloat16
  a[32] = float_to_bfloat16(1.5e-38F);  // normal, its product is not
  a[64] = float_to_bfloat16(2.0e-38F);  // stays normal
  Floats c(at(16 * 16));
  m().gemm(16, 16, 32, a.data(), 32, b.data(), 32, c.data(), 16, false);
  EXPECT_EQ(c[0], 0.0F);
  EXPECT_GT(c[32], 0.0F);
  for (Bf16& x : b) x = float_to_bfloat16(0.5F);
  m().gemm(16, 16, 32, a.data(), 32, b.data(), 32, c.data(), 16, false);
  EXPECT_EQ(c[16], 0.0F);
  EXPECT_EQ(c[32], 0.0F);
}

/// Query rows, and keys in two blocks of which each row sees a range, for AttendBlock.
struct AttendProblem {
  static constexpr int kRows = 21;
  static constexpr int kTileRows = 32;
  static constexpr int kKeys = 2 * 96;
  static constexpr int kDim = 64;
  static constexpr float kToLog2 = 0.18F;

  int dim_v;
  Bits q = random_bits(kTileRows * kDim, 11);
  Bits k = random_bits(kKeys * kDim, 12);
  Bits v, k_panels, v_pairs;
  Floats m = Floats(kRows, -std::numeric_limits<float>::infinity());
  Floats sums = Floats(at(kRows * 16), 0.0F);
  Floats o;
  Bits p = Bits(at(kTileRows * kKeys));
  std::vector<int> begin, end;

  AttendProblem(const Bf16Micro& micro, int value_dim)
      : dim_v(value_dim), v(random_bits(kKeys * dim_v, 13)), k_panels(k.size()), v_pairs(v.size()) {
    o.assign(at(kTileRows * dim_v), 0.0F);
    for (int key = 0; key < kKeys; key += 32) {
      micro.pack_transposed_pairs(32, kDim, k.data() + key * kDim, kDim,
                                  k_panels.data() + key * kDim, 64);
    }
    micro.pack_pairs(kKeys, dim_v, v.data(), dim_v, v_pairs.data(), 2 * dim_v);
    for (int r = 0; r < kRows; ++r) {
      begin.push_back(r / 4);
      end.push_back(150 + 2 * r);
    }
  }

  /// What attend() says to the keys from `first` on.
  bool attend(const Bf16Micro& micro, int first, int keys) {
    std::vector<int> from;
    std::vector<int> to;
    for (int r = 0; r < kRows; ++r) {
      from.push_back(std::clamp(begin[at(r)] - first, 0, keys));
      to.push_back(std::clamp(end[at(r)] - first, 0, keys));
    }
    return micro.attend({.rows = kRows,
                         .keys = keys,
                         .dim = kDim,
                         .dim_v = dim_v,
                         .q = q.data(),
                         .ld_q = kDim,
                         .k = k_panels.data() + first * kDim,
                         .v = v_pairs.data() + first * dim_v,
                         .ld_v = 2 * dim_v,
                         .to_log2 = kToLog2,
                         .seen_begin = from.data(),
                         .seen_end = to.data(),
                         .all_begin = (from.back() + 31) / 32,
                         .all_end = to.front() / 32,
                         .m = m.data(),
                         .sums = sums.data(),
                         .p = p.data(),
                         .ld_p = kKeys,
                         .o = o.data(),
                         .ld_o = dim_v});
  }

  double score(int r, int key) const {
    double sum = 0.0;
    for (int i = 0; i < kDim; ++i) {
      sum +=
          double{bfloat16_to_float(q[at(r * kDim + i)])} * bfloat16_to_float(k[at(key * kDim + i)]);
    }
    return sum * double{kToLog2};
  }
};

TEST_P(Tiles, AttendingInTwoBlocks) {
  for (const int dim_v : {16, 48, 64}) {
    AttendProblem x(m(), dim_v);
    ASSERT_TRUE(x.attend(m(), 0, 96));
    ASSERT_TRUE(x.attend(m(), 96, 96));
    for (int r = 0; r < AttendProblem::kRows; ++r) {
      double total = 0.0;
      std::vector<double> exact(at(dim_v), 0.0);
      for (int key = x.begin[at(r)]; key < x.end[at(r)]; ++key) {
        const double p = std::exp2(x.score(r, key) - double{x.m[at(r)]} * AttendProblem::kToLog2);
        total += p;
        for (int c = 0; c < dim_v; ++c)
          exact[at(c)] += p * bfloat16_to_float(x.v[at(key * dim_v + c)]);
      }
      EXPECT_LE(total, 0x1p20);
      const auto* sums = x.sums.data() + r * 16;
      EXPECT_NEAR(std::accumulate(sums, sums + 16, 0.0) / total, 1.0, 1e-4) << r;
      for (int c = 0; c < dim_v; ++c) {
        EXPECT_NEAR(x.o[at(r * dim_v + c)] / total, exact[at(c)] / total, 4e-3) << r << "," << c;
      }
    }
  }
}

TEST_P(Tiles, AttendingLeavesTheSumsAloneWhenItCannot) {
  AttendProblem x(m(), 64);
  const auto refused = [&](int first) {
    const bool done = x.attend(m(), first, 96);
    for (const float sum : x.sums) EXPECT_EQ(sum, 0.0F);
    for (const float sum : x.o) EXPECT_EQ(sum, 0.0F);
    return !done;
  };
  x.end[0] = 0;  // sees nothing: no maximum
  EXPECT_TRUE(refused(0));
  x.end[0] = 150;
  x.m.assign(x.m.size(), -200.0F);  // 2^36 too small
  EXPECT_TRUE(refused(0));
  x.m.assign(x.m.size(), 1e9F);  // an exponent would not be exact
  EXPECT_TRUE(refused(0));
  x.m.assign(x.m.size(), 0.0F);
  x.k_panels[5] = float_to_bfloat16(NAN);
  EXPECT_TRUE(refused(0));
  EXPECT_FALSE(x.attend(m(), 0, 96));
  EXPECT_TRUE(x.attend(m(), 96, 96)) << "keys without the NaN";
}

INSTANTIATE_TEST_SUITE_P(Backends, Tiles,
                         ::testing::Values(Backend{"amx", Isa::amx, bf16_micro_amx},
                                           Backend{"amx_emulated", Isa::avx512bf16,
                                                   bf16_micro_emulated}),
                         [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace tilewise::cpu
