/// Dropout: which elements of a score fragment are kept. CONTRACT 13
#pragma once

#include "cuda/tile/dropout_args.h"
#include "cuda/tile/mma.cuh"

namespace tilewise::tile {

/// (F13) Philox 4x32-10, as src/problem/philox.h has it: four words for a counter, of which bit w
/// of the result says whether word w is above the limit.
/// `kScarce`: the kernel has no registers for the keys of all rounds.
template <bool kScarce>
__forceinline__ u32 kept_words(const DropoutBits& d, u32 keys_by_4, u32 query, u32 pair) {
  u32 c[4] = {keys_by_4, query, pair, d.offset};
  if (d.counter != nullptr) c[3] += __ldg(d.counter);
  const auto key = [](u32 x) { return static_cast<u32>(opaque(static_cast<int>(x))); };
  u32 key0 = kScarce ? key(d.key.round[0][0]) : 0, key1 = kScarce ? key(d.key.round[0][1]) : 0;
#pragma unroll
  for (int round = 0; round < PhiloxKeys::kRounds; ++round) {
    if constexpr (!kScarce) key0 = d.key.round[round][0], key1 = d.key.round[round][1];
    const u64 product0 = static_cast<u64>(c[0]) * 0xD2511F53U;
    const u64 product1 = static_cast<u64>(c[2]) * 0xCD9E8D57U;
    c[0] = static_cast<u32>(product1 >> 32) ^ c[1] ^ key0;
    c[1] = static_cast<u32>(product1);
    c[2] = static_cast<u32>(product0 >> 32) ^ c[3] ^ key1;
    c[3] = static_cast<u32>(product0);
    key0 += PhiloxKeys::kSteps[0], key1 += PhiloxKeys::kSteps[1];
  }
  u32 kept = 0;
#pragma unroll
  for (int word = 0; word < 4; ++word) kept |= (c[word] > d.limit ? 1U : 0U) << word;
  return kept;
}

/// Tiles of a group: as many as share a word and divide them all.
constexpr int group_of(int tiles) {
  int group = tiles < 8 ? tiles : 8;
  while (tiles % group != 0) --group;
  return group;
}

/// Which elements of a fragment of kM x kN accumulator tiles are kept: all of them unless kOn. Rows
/// are queries and columns keys, or with kTransposed keys and queries. Made by all lanes of a warp
/// together.
///
/// The words of a counter belong to four neighbouring keys. In every tile four lanes need words of
/// the same four counters: each works out one, and they exchange what they found, a bit a word,
/// eight tiles at a time.
template <bool kOn, bool kTransposed, int kM, int kN>
struct KeptPairs {
  static constexpr int kTiles = kM * kN, kGroup = group_of(kTiles);
  static_assert(kTiles % kGroup == 0);

  u32 bits[kTiles / kGroup];  ///< element e of tile x of a group: bit 4 x + e

  /// `row0`, `col0`: of the fragment's corner, multiples of 8; `pair`: b * Hq + h.
  __forceinline__ KeptPairs(const DropoutBits& d, int pair, int row0, int col0, int thread_lane) {
    if constexpr (kOn) {
      const int lane = opaque(thread_lane);
#pragma unroll
      for (int group = 0; group < kTiles / kGroup; ++group) {
        u32 mine = 0;
        // NOTE: a loop for the machine too, two tiles at a time: unrolled it is most of the kernel.
#pragma unroll 2
        for (int x = 0; x < kGroup; ++x) {
          const int tile = group * kGroup + x;
          mine |= words(d, pair, row0 + tile / kN * 16, col0 + tile % kN * 8, lane) << (4 * x);
        }
        bits[group] = exchange(mine, lane);
      }
    }
  }

  __forceinline__ bool operator()(int m, int n, int e) const {
    const int tile = m * kN + n;
    return (bits[tile / kGroup] >> (4 * (tile % kGroup) + e) & 1U) != 0;
  }
  /// What is kept is multiplied by `scale`, the rest becomes 0.
  __forceinline__ void drop(Acc (&S)[kM][kN], float scale) const {
    if constexpr (kOn) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            S[m][n][e] = (*this)(m, n, e) ? S[m][n][e] * scale : 0.0F;
          }
        }
      }
    }
  }

 private:
  /// This lane's counter of the tile whose corner is (row, col).
  static __forceinline__ u32 words(const DropoutBits& d, int pair, int row, int col, int lane) {
    const int g = lane / 4, t = lane % 4;
    // Of the elements e whose words it makes, one: query and first key.
    const int query = kTransposed ? col + 2 * t + g % 2 : row + g + 8 * (t % 2);
    const int key = kTransposed ? row + 8 * (g / 2 % 2) + g / 4 * 4 : col + t / 2 * 4;
    return kept_words<kTransposed>(d, static_cast<u32>(key) / 4, static_cast<u32>(query),
                                   static_cast<u32>(pair));
  }
  /// From the words of this lane's counters to the elements of this lane.
  static __forceinline__ u32 exchange(u32 mine, int lane) {
    u32 result = 0;
    if constexpr (kTransposed) {
      // Element e: word g % 4 of the lane with e in the place of g % 4.
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const u32 words = shuffle(mine, (lane & ~12) | e << 2);
        result |= (words >> (lane / 4 % 4) & 0x11111111U) << e;
      }
    } else {
      // Elements 2 half and 2 half + 1: words 2 (t % 2) and the next of the lane with half in the
      // place of t % 2.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 words = shuffle(mine, (lane & ~1) | half);
        result |= (words >> (2 * (lane % 2)) & 0x33333333U) << (2 * half);
      }
    }
    return result;
  }
  static __forceinline__ u32 shuffle(u32 x, int lane) {
    return static_cast<u32>(__shfl_sync(~0U, static_cast<int>(x), lane));
  }
};

}  // namespace tilewise::tile
