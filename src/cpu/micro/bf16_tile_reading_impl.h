/// Products of a few rows with B that is read once, where it lies, on matrix tiles: Bf16Micro's
/// row_products and add_listed_rows. T as in bf16_tiles_impl.h.
#pragma once

#include "cpu/micro/bf16_listed_impl.h"
#include "cpu/micro/bf16_tiles_impl.h"

namespace tilewise::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr std::ptrdiff_t kTile = kTileRows * kTileRows;       // float32 of a tile
constexpr std::ptrdiff_t kPairTile = kTileRows * kPairLanes;  // bfloat16 of a tile

struct Place {
  const Bf16* first;
  std::ptrdiff_t ld;
};

/// 16 keys as tiles read them: whole vectors, and what is left of a row, filled up.
struct TileOfKeys {
  const Bf16* first;
  std::ptrdiff_t ld;
  const Bf16* rest;
  std::ptrdiff_t rest_ld;
};

template <class T>
struct TileReading {
  static constexpr int kRows = kTileRows;
  static constexpr int kTogether = 4;  // tiles that accumulate side by side: no product waits
  static constexpr int kKeys = kTogether * kTileRows;
  static constexpr int kInner = 640;  // columns of keys that are copied at a time

  /// True when 16 rows of B have one distance.
  static bool evenly_spaced(const std::int64_t* at) {
    const __m512i distance = _mm512_set1_epi64(at[1] - at[0]);
    const __m512i n = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i low = _mm512_add_epi64(_mm512_set1_epi64(at[0]), _mm512_mullo_epi64(n, distance));
    const __m512i high = _mm512_add_epi64(low, _mm512_slli_epi64(distance, 3));
    return (_mm512_cmpneq_epi64_mask(low, _mm512_loadu_si512(at)) |
            _mm512_cmpneq_epi64_mask(high, _mm512_loadu_si512(at + 8))) == 0;
  }

  static void copy_row(int count, const Bf16* row, Bf16* to) {
    constexpr std::ptrdiff_t kWide = 4 * kPairLanes;
    std::ptrdiff_t n = 0;
    for (; n + kWide <= count; n += kWide) {
      __m512i x[4];
#pragma GCC unroll 4
      for (std::ptrdiff_t v = 0; v < 4; ++v) x[v] = load_bits(row + n + v * kPairLanes);
#pragma GCC unroll 4
      for (std::ptrdiff_t v = 0; v < 4; ++v) store_bits(to + n + v * kPairLanes, x[v]);
    }
    for (; n + kPairLanes <= count; n += kPairLanes) store_bits(to + n, load_bits(row + n));
    if (n < count) store_bits(to + n, load_first(row + n, count - static_cast<int>(n)));
  }

  /// `inner` columns from column i on of up to 16 rows of B: where they lie, or copied.
  static TileOfKeys tile_of_keys(int keys, int inner, const ListedBf16& b, std::ptrdiff_t i,
                                 Bf16* copy) {
    const std::ptrdiff_t whole = inner / kPairLanes * kPairLanes;
    const auto copied = [&](std::ptrdiff_t from, std::ptrdiff_t ld) {
      for (std::ptrdiff_t j = 0; j < keys; ++j) {
        copy_row(inner - static_cast<int>(from), b.row(j) + i + from, copy + j * ld);
      }
    };
    if (keys == kTileRows && whole > 0 && evenly_spaced(b.at)) {
      if (whole < inner) copied(whole, kPairLanes);
      return {b.first + b.at[0] + i, b.at[1] - b.at[0], copy, kPairLanes};
    }
    const std::ptrdiff_t ld = (inner + kPairLanes - 1) / kPairLanes * kPairLanes;
    copied(0, ld);
    return {copy, ld, copy + whole, ld};
  }

  /// 16 rows of A by N tiles of keys, over `inner` columns.
  template <int N>
  static void score_tiles_of(int inner, bool accumulate, const Bf16* a, const TileOfKeys* keys,
                             ListedBf16& b, float* tiles) {
    const auto all = [&](auto&& one) __attribute__((always_inline)) {
      one.template operator()<0>(tiles);
      if constexpr (N > 1) one.template operator()<1>(tiles + kTile);
      if constexpr (N > 2) one.template operator()<2>(tiles + 2 * kTile);
      if constexpr (N > 3) one.template operator()<3>(tiles + 3 * kTile);
    };
    all([&]<int Tile>(const float* from) __attribute__((always_inline)) {
      if (accumulate) {
        T::template load<Tile>(from, 4 * kTileRows);
      } else {
        T::template zero<Tile>();
      }
    });
    // of(keys): where 32 columns of a tile of keys begin, and their distance.
    const auto add_columns = [&](const auto& of) __attribute__((always_inline)) {
      const auto step = [&]<int Tile, int Keys>() __attribute__((always_inline)) {
        const auto [from, ld] = of(keys[Tile]);
        T::template load<Keys>(from, 2 * ld);
        T::template dot<Tile, Keys, 6>();
        b.ask(kPairTile);
      };
      T::template load<6>(a, 2 * kPairLanes);
      step.template operator()<0, 4>();
      if constexpr (N > 1) step.template operator()<1, 5>();
      if constexpr (N > 2) step.template operator()<2, 4>();
      if constexpr (N > 3) step.template operator()<3, 5>();
      a += kPairTile;
    };
    std::ptrdiff_t i = 0;
    for (; i + kPairLanes <= inner; i += kPairLanes) {
      add_columns([i](const TileOfKeys& x) { return Place{x.first + i, x.ld}; });
    }
    if (i < inner) add_columns([](const TileOfKeys& x) { return Place{x.rest, x.rest_ld}; });
    all([&]<int Tile>(float* to)
            __attribute__((always_inline)) { T::template store<Tile>(to, 4 * kTileRows); });
  }
  static void score_tiles(int used, int inner, bool accumulate, const Bf16* a,
                          const TileOfKeys* keys, ListedBf16& b, float* tiles) {
    switch (used) {
      case 4:
        return score_tiles_of<4>(inner, accumulate, a, keys, b, tiles);
      case 3:
        return score_tiles_of<3>(inner, accumulate, a, keys, b, tiles);
      case 2:
        return score_tiles_of<2>(inner, accumulate, a, keys, b, tiles);
      default:
        return score_tiles_of<1>(inner, accumulate, a, keys, b, tiles);
    }
  }

  /// A tile of keys x queries as rows of queries, times factor.
  static void store_transposed(int rows, const float* tile, float factor, float* c,
                               std::ptrdiff_t ldc) {
    const __m512 times = _mm512_set1_ps(factor);
    for (std::ptrdiff_t r = 0; r < rows; r += 4, tile += 4) {
      __m512 x[4];  // of four queries: keys n, n + 4, n + 8, n + 12
#pragma GCC unroll 4
      for (std::ptrdiff_t n = 0; n < 4; ++n) {
        x[n] = _mm512_castps128_ps512(_mm_load_ps(tile + n * kTileRows));
        x[n] = _mm512_insertf32x4(x[n], _mm_load_ps(tile + (n + 4) * kTileRows), 1);
        x[n] = _mm512_insertf32x4(x[n], _mm_load_ps(tile + (n + 8) * kTileRows), 2);
        x[n] = _mm512_insertf32x4(x[n], _mm_load_ps(tile + (n + 12) * kTileRows), 3);
      }
      const __m512d low0 = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
      const __m512d low1 = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
      const __m512d high0 = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
      const __m512d high1 = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
      const __m512d of[4] = {_mm512_unpacklo_pd(low0, low1), _mm512_unpackhi_pd(low0, low1),
                             _mm512_unpacklo_pd(high0, high1), _mm512_unpackhi_pd(high0, high1)};
#pragma GCC unroll 4
      for (std::ptrdiff_t n = 0; n < 4; ++n) {
        if (r + n < rows) {
          _mm512_storeu_ps(c + (r + n) * ldc, _mm512_mul_ps(_mm512_castpd_ps(of[n]), times));
        }
      }
    }
  }

  static void row_products(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda,
                           const Bf16* b, const std::int64_t* at, float factor, float* c,
                           std::ptrdiff_t ldc, Ahead& ahead) {
    ListedBf16 listed{b, at, ahead};
    Ahead nothing;
    alignas(64) Bf16 copies[kKeys * kInner];
    alignas(64) float tiles[kTogether * kTile];
    for (std::ptrdiff_t j = 0; j < cols; j += kKeys) {
      const int count = cols - j < kKeys ? cols - static_cast<int>(j) : kKeys;
      const int used = (count + kTileRows - 1) / kTileRows;
      ListedBf16 silent{b, at, nothing};
      TileOfKeys keys[kTogether];
      for (std::ptrdiff_t r = 0; r < rows; r += kTileRows) {
        ListedBf16& asking = r == 0 ? listed : silent;  // once for all rows
        for (std::ptrdiff_t i = 0; i < k; i += kInner) {
          const int inner = k - i < kInner ? k - static_cast<int>(i) : kInner;
          for (std::ptrdiff_t n = 0; n < used && (r == 0 || k > kInner); ++n) {
            silent.at = at + j + n * kTileRows;
            const int left = count - static_cast<int>(n) * kTileRows;
            keys[n] = tile_of_keys(left < kTileRows ? left : kTileRows, inner, silent, i,
                                   copies + n * kTileRows * kInner);
          }
          score_tiles(used, inner, i > 0, a + r * lda + i * kTileRows, keys, asking, tiles);
        }
        const int left = rows - r < kTileRows ? rows - static_cast<int>(r) : kTileRows;
        for (std::ptrdiff_t n = 0; n < used; ++n) {
          store_transposed(left, tiles + n * kTile, factor, c + r * ldc + j + n * kTileRows, ldc);
        }
      }
    }
  }

  /// 32 rows of B at these columns, as pairs in the order of unpacking: 2 C tiles. Rows from `keys`
  /// on are zero.
  template <int C, bool Part>
  static void pack_values(int keys, int part, ListedBf16& b, Bf16* to) {
    const auto load = [&](const Bf16* row, std::ptrdiff_t v) __attribute__((always_inline)) {
      if constexpr (Part) return load_first(row, part);
      return load_bits(row + v * kPairLanes);
    };
    const auto put = [&](std::ptrdiff_t v, __m512i x, __m512i y) __attribute__((always_inline)) {
      store_bits(to + 2 * v * kPairTile, _mm512_unpacklo_epi16(x, y));
      store_bits(to + (2 * v + 1) * kPairTile, _mm512_unpackhi_epi16(x, y));
    };
    std::ptrdiff_t i = 0;
    for (; i + 2 <= keys && i < kPairLanes; i += 2, to += kPairLanes) {
      const Bf16* row0 = b.row(i);
      const Bf16* row1 = b.row(i + 1);
#pragma GCC unroll 2
      for (std::ptrdiff_t v = 0; v < C; ++v) put(v, load(row0, v), load(row1, v));
      b.ask(2 * kPairLanes * C);
    }
    for (; i < kPairLanes; i += 2, to += kPairLanes) {
      const __m512i none = _mm512_setzero_si512();
      for (std::ptrdiff_t v = 0; v < C; ++v) put(v, i < keys ? load(b.row(i), v) : none, none);
    }
  }

  template <int C>
  static void weigh(const Bf16* a, std::ptrdiff_t lda, const Bf16* pairs) {
    T::template load<4>(a, 2 * lda);
    T::template load<6>(pairs, 2 * kPairLanes);
    T::template dot<0, 4, 6>();
    T::template load<7>(pairs + kPairTile, 2 * kPairLanes);
    T::template dot<1, 4, 7>();
    if constexpr (C == 2) {
      T::template load<6>(pairs + 2 * kPairTile, 2 * kPairLanes);
      T::template dot<2, 4, 6>();
      T::template load<7>(pairs + 3 * kPairTile, 2 * kPairLanes);
      T::template dot<3, 4, 7>();
    }
  }

  /// These columns of all rows.
  template <int C, bool Part>
  static void add_columns(int rows, int k, int part, const Bf16* a, std::ptrdiff_t lda,
                          ListedBf16& b, float* c, std::ptrdiff_t ldc) {
    constexpr int kMost = 128;  // rows of B at a time: in the first-level cache
    alignas(64) Bf16 pairs[kMost * C * kPairLanes];
    alignas(64) float tiles[2 * C * kTile];
    ListedBf16 chunk = b;
    for (std::ptrdiff_t i = 0; i < k; i += kMost) {
      const int count = k - i < kMost ? k - static_cast<int>(i) : kMost;
      for (std::ptrdiff_t r = 0; r < rows; r += kTileRows) {
        T::template zero<0>();
        T::template zero<1>();
        if constexpr (C == 2) T::template zero<2>();
        if constexpr (C == 2) T::template zero<3>();
        for (std::ptrdiff_t n = 0; n < count; n += kPairLanes) {
          Bf16* packed = pairs + n * C * kPairLanes;
          chunk.at = b.at + i + n;
          if (r == 0) pack_values<C, Part>(count - static_cast<int>(n), part, chunk, packed);
          weigh<C>(a + r * lda + i + n, lda, packed);
        }
        T::template store<0>(tiles, 4 * kTileRows);
        T::template store<1>(tiles + kTile, 4 * kTileRows);
        if constexpr (C == 2) T::template store<2>(tiles + 2 * kTile, 4 * kTileRows);
        if constexpr (C == 2) T::template store<3>(tiles + 3 * kTile, 4 * kTileRows);
        const std::ptrdiff_t left = rows - r < kTileRows ? rows - r : kTileRows;
        for (std::ptrdiff_t n = 0; n < left; ++n) {
          const float* sums = tiles + n * kTileRows;
          for (std::ptrdiff_t v = 0; v < C; ++v, sums += 2 * kTile) {
            add_unpacked(_mm512_load_ps(sums), _mm512_load_ps(sums + kTile),
                         c + (r + n) * ldc + v * kPairLanes);
          }
        }
      }
    }
  }

  static void add_listed_rows(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda,
                              const Bf16* b, const std::int64_t* at, float* c, std::ptrdiff_t ldc,
                              Ahead& ahead) {
    ListedBf16 listed{b, at, ahead};
    for_columns(cols, listed, [&]<int C, bool Part>(Columns<C, Part>, int part, std::ptrdiff_t j) {
      add_columns<C, Part>(rows, k, part, a, lda, listed, c + j, ldc);
    });
  }
};

}  // namespace
}  // namespace tilewise::cpu
