/// Dropout: which elements of a score fragment are kept. CONTRACT 13
#pragma once

#include "cuda/tile/dropout_args.h"
#include "cuda/tile/mma.cuh"

namespace tilewise::tile {

/// Where a kernel has the keys of Philox's rounds: in the parameters' memory, as the first round's
/// from which others follow (it has no registers for all), in registers of its lanes. Uniform
/// registers, where the compiler puts them otherwise, are also those of products' descriptors.
enum class RoundKeys : int { parameters, first, held };

/// (F13) Philox 4x32-10, as src/problem/philox.h has it, of the counter (j / 4, i, bh, offset):
/// four words, each of a key. The first two rounds of its 20 products and half of the third
/// multiply what belongs to the keys alone, to the query alone or to the pair of batch entry and
/// head: KeyWords serve every query, QueryWords every key, and 15 products are left of each
/// counter. `kTests`: see shift_in().
template <RoundKeys kKeys, bool kTests = false>
struct PhiloxRounds {
  static constexpr bool kScarce = kKeys == RoundKeys::first;
  /// The rounds of what belongs to one counter alone.
  static constexpr int kOwn = 3;
  const DropoutBits* d;
  u32 first[2];  ///< the first round's, where they are scarce
  u32 held[kKeys == RoundKeys::held ? PhiloxKeys::kRounds - kOwn : 1][2];

  __forceinline__ void enter(const DropoutBits& bits) {
    d = &bits;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      first[i] = kScarce ? static_cast<u32>(opaque(static_cast<int>(d->key.round[0][i]))) : 0;
  }
  __forceinline__ u32 key(int round, int i) const {
    if (kKeys == RoundKeys::held && round >= kOwn) return held[round - kOwn][i];
    if constexpr (!kScarce) return d->key.round[round][i];
    return first[i] + static_cast<u32>(round) * PhiloxKeys::kSteps[i];
  }
  /// `zero`: 0 in every lane, which the compiler does not know.
  __forceinline__ void hold(u32 zero) {
#pragma unroll
    for (int round = kOwn; round < PhiloxKeys::kRounds; ++round) {
#pragma unroll
      for (int i = 0; i < 2; ++i) held[round - kOwn][i] = d->key.round[round][i] + zero;
    }
  }
  static __forceinline__ u64 times(int i, u32 x) {
    return static_cast<u64>(x) * PhiloxKeys::kMultipliers[i];
  }
  static __forceinline__ u32 high(u64 product) { return static_cast<u32>(product >> 32); }

  struct KeyWords {
    u32 second, third, third_high, third_low;
  };
  struct QueryWords {
    u32 second, third;
  };
  __forceinline__ KeyWords of_keys(u32 keys_by_4, u32 bh) const {
    const u64 one = times(0, keys_by_4);
    u32 offset = d->offset;
    if (d->counter != nullptr) offset += __ldg(d->counter);
    const u64 two = times(1, high(one) ^ offset ^ key(0, 1));
    const u64 three = times(0, high(two) ^ static_cast<u32>(times(1, bh)) ^ key(1, 0));
    return {static_cast<u32>(one), static_cast<u32>(two) ^ key(2, 0), high(three),
            static_cast<u32>(three)};
  }
  __forceinline__ QueryWords of_query(u32 query, u32 bh) const {
    const u64 two = times(0, high(times(1, bh)) ^ query ^ key(0, 0));
    return {high(two) ^ key(1, 1), static_cast<u32>(two) ^ key(2, 1)};
  }
  /// Shifts into `kept` a bit for each of the four words, the last one's first: whether it is above
  /// the limit. kTests: sets those from `first` on instead, which must be a constant.
  __forceinline__ void shift_in(u32& kept, const KeyWords& keys, const QueryWords& query,
                                int first = 0) const {
    u64 product = times(1, query.second ^ keys.second);
    u32 c[4] = {high(product) ^ keys.third, static_cast<u32>(product),
                query.third ^ keys.third_high, keys.third_low};
#pragma unroll
    for (int round = kOwn; round < PhiloxKeys::kRounds; ++round) {
      const u64 product0 = times(0, c[0]), product1 = times(1, c[2]);
      c[0] = high(product1) ^ c[1] ^ key(round, 0);
      c[1] = static_cast<u32>(product1);
      c[2] = high(product0) ^ c[3] ^ key(round, 1);
      c[3] = static_cast<u32>(product0);
    }
    if constexpr (kTests) {
      // By the integer pipe alone, where sums of 64 bits take turns at the multiplier.
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        if (c[word] > d->limit) kept |= 1U << (first + word);
      }
      return;
    }
    // A sum of 64 bits: its low half carries where the word is above the limit, its high half
    // doubles what was there. Two instructions a word.
    const u32 above = ~d->limit;
#pragma unroll
    for (int word = 3; word >= 0; --word) {
      // NOTE: opaque, or the compiler multiplies once more for the low half of a product.
      const u32 here = static_cast<u32>(opaque(static_cast<int>(c[word])));
      const u64 old = static_cast<u64>(kept) << 32;
      kept = high((old | here) + (old | above));
    }
  }
};

/// One counter's: bit w says whether word w is above the limit.
__forceinline__ u32 kept_words(const DropoutBits& d, u32 keys_by_4, u32 query, u32 bh) {
  PhiloxRounds<RoundKeys::parameters> rounds;
  rounds.enter(d);
  u32 kept = 0;
  rounds.shift_in(kept, rounds.of_keys(keys_by_4, bh), rounds.of_query(query, bh));
  return kept;
}

/// Tiles of a group: as many as share a word and divide them all.
constexpr int group_of(int tiles) {
  int group = tiles < 8 ? tiles : 8;
  while (tiles % group != 0) --group;
  return group;
}

/// Nothing between products.
struct NoCall {
  __forceinline__ void operator()(int /*product*/) const {}
};

/// Counters that a lane works out beside one another, at most `most`.
constexpr int abreast_of(int group, int most) {
  while (group % most != 0) --most;
  return most;
}

/// Makes the bits of a fragment of kM x kN accumulator tiles. Rows are queries and columns keys, or
/// with kTransposed keys and queries. Done by all lanes of a warp together. `kMost`: counters of a
/// lane at a time. `kShared`: the words of keys are worked out once for all rows, by way of
/// kKeyBytes of shared memory of the warp's own. `kTests`: of PhiloxRounds. `kHolds`: it outlives a
/// fragment, with the keys of the rounds and the words of one row of tiles in registers.
///
/// The words of a counter belong to four neighbouring keys. In every tile four lanes need words of
/// the same four counters: each works out one, and they exchange what they found, a bit a word,
/// eight tiles at a time.
template <bool kTransposed, int kM, int kN, int kMost, bool kShared, bool kTests = false,
          bool kHolds = false>
struct KeptMaker {
  static constexpr int kTiles = kM * kN, kGroup = group_of(kTiles), kGroups = kTiles / kGroup;
  static constexpr int kAbreast = abreast_of(kGroup, kMost), kEach = kGroup / kAbreast;
  static constexpr int kKeyBytes = 32 * kN;
  static constexpr bool kOneRow = kN % kGroup == 0;  ///< a group has one row of tiles
  static_assert(kTiles % kGroup == 0);
  static_assert(!kShared || (!kTransposed && kN % kGroup == 0));
  static_assert(!kHolds || (!kTransposed && kM == 1));
  static constexpr RoundKeys kKeys = kHolds        ? RoundKeys::held
                                     : kTransposed ? RoundKeys::first
                                                   : RoundKeys::parameters;
  using Rounds = PhiloxRounds<kKeys, kTests>;
  using KeyWords = typename Rounds::KeyWords;
  using QueryWords = typename Rounds::QueryWords;

  Rounds rounds;
  u32 bh;
  int row0, col0, lane;
  u32 place;  ///< of the words of keys
  KeyWords keys;
  QueryWords query;
  u32 mine[kAbreast];

  /// `first_row`: of the fragment, as first_col of enter_columns() a multiple of 8; `of`: b * Hq +
  /// h.
  __forceinline__ void enter_rows(const DropoutBits& d, int of, int first_row, int thread_lane,
                                  u32 key_place) {
    rounds.enter(d);
    bh = static_cast<u32>(of);
    row0 = first_row;
    lane = opaque(thread_lane);
    place = key_place;
  }
  /// kHolds, behind enter_rows(): what is kept of a row of tiles. `zero`: of PhiloxRounds::hold().
  __forceinline__ void hold(u32 zero) {
    rounds.hold(zero);
    take_row(0);
  }
  __forceinline__ void enter_columns(int first_col) {
    col0 = first_col;
    if constexpr (kShared) place_keys();
  }
  __forceinline__ void begin(int group) {
    if constexpr (kOneRow && !kHolds) take_row(group * kGroup);
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) mine[i] = 0;
  }
  /// The x-th of the kEach counters of each that is worked out at a time.
  __forceinline__ void make(int group, int x) {
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) {
      const int tile = group * kGroup + i * kEach + x, col = col0 + tile % kN * 8;
      if constexpr (!kOneRow) take_row(tile);
      if constexpr (kTransposed) {
        query = rounds.of_query(query_of(0, col, lane), bh);
      } else if constexpr (kShared) {
        keys = placed_keys(place + (tile % kN * 2 + lane % 4 / 2) * 16);
      } else {
        keys = rounds.of_keys(key_of(0, col, lane) / 4, bh);
      }
      rounds.shift_in(mine[i], keys, query, 4 * x);
    }
  }
  /// The bits of a group whose counters have been made: element e of its tile x has bit 4 x + e.
  __forceinline__ u32 end() const {
    u32 all = mine[0];
#pragma unroll
    for (int i = 1; i < kAbreast; ++i) all |= mine[i] << (4 * kEach * i);
    return exchange(all, lane);
  }
  /// All of it. `kStraight`: without a branch.
  template <bool kStraight>
  __forceinline__ u32 group_bits(int group) {
    static_assert(!kTests || kStraight);
    begin(group);
    // NOTE: a loop for the machine too: unrolled it is most of the kernel.
    constexpr int kUnrolled = kStraight ? kEach : 1;
#pragma unroll kUnrolled
    for (int x = kEach - 1; x >= 0; --x) make(group, x);
    return end();
  }

 private:
  // One of the elements e whose words this lane makes in the tile whose corner is (row, col): its
  // query and its first key. A query and a key each need but the coordinate that it runs along.
  static __forceinline__ u32 query_of(int row, int col, int lane) {
    const int g = lane / 4, t = lane % 4;
    return static_cast<u32>(kTransposed ? col + 2 * t + g % 2 : row + g + 8 * (t % 2));
  }
  static __forceinline__ u32 key_of(int row, int col, int lane) {
    const int g = lane / 4, t = lane % 4;
    return static_cast<u32>(kTransposed ? row + 8 * (g / 2 % 2) + g / 4 * 4 : col + t / 2 * 4);
  }
  /// What belongs to the lane's row.
  __forceinline__ void take_row(int tile) {
    const int row = row0 + tile / kN * 16;
    if constexpr (kTransposed) {
      keys = rounds.of_keys(key_of(row, 0, lane) / 4, bh);
    } else {
      query = rounds.of_query(query_of(row, 0, lane), bh);
    }
  }
  /// Those of all columns, a lane each, once all lanes have read what lay there.
  __forceinline__ void place_keys() const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * kN; i += 32) {
      if (2 * kN % 32 != 0 && i + lane >= 2 * kN) break;
      const KeyWords w = rounds.of_keys(static_cast<u32>(col0 / 4 + i + lane), bh);
      store_shared_16(place + (i + lane) * 16, __uint_as_float(w.second), __uint_as_float(w.third),
                      __uint_as_float(w.third_high), __uint_as_float(w.third_low));
    }
    __syncwarp();
  }
  static __forceinline__ KeyWords placed_keys(u32 at) {
    const Bytes16 w = load_shared_16(at);
    return {w.x, w.y, w.z, w.w};
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

/// Which elements of a fragment are kept: all of them unless kOn. `kStraight`: made without a
/// branch. The others: of KeptMaker.
template <bool kOn, bool kTransposed, int kM, int kN, int kMost = 2, bool kShared = false,
          bool kStraight = false>
struct KeptPairs {
  using Maker = KeptMaker<kTransposed, kM, kN, kMost, kShared, kStraight>;
  static constexpr int kGroup = Maker::kGroup;

  u32 bits[Maker::kGroups];  ///< of each group: see KeptMaker::end()

  /// `row0`, `col0`: of the fragment's corner, multiples of 8; `bh`: b * Hq + h; `place`: of the
  /// words of keys.
  __forceinline__ KeptPairs(const DropoutBits& d, int bh, int row0, int col0, int lane,
                            u32 place = 0) {
    if constexpr (kOn) {
      Maker maker;
      maker.enter_rows(d, bh, row0, lane, place);
      maker.enter_columns(col0);
#pragma unroll
      for (int group = 0; group < Maker::kGroups; ++group)
        bits[group] = maker.template group_bits<kStraight>(group);
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
};

}  // namespace tilewise::tile
