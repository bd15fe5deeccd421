/// Bias and bool mask: what a score takes from tensors that hold an element for every pair.
///
/// Where the elements of neighbouring keys lie side by side (PairKind::staged), a warp copies those
/// of its fragment to shared memory while it works on the fragment before: 16 bytes a lane, rows
/// from the 16-byte boundary before their first element on, so that rows of any length will do. A
/// mask becomes bits there, one row a lane, which the warp can ask whether it hides all of the
/// fragment or nothing. Elements of other strides are read from memory, one each, several at a
/// time.
#pragma once

#include "cuda/tile/math.cuh"
#include "cuda/tile/mma.cuh"

namespace tilewise::tile {

/// Where a fragment lies: its first pair, and the lengths beyond which nothing is read.
struct PairCorner {
  int batch, head, query, key, seq_q, seq_k;
};

/// (F3) The logit of a pair with its bias, log2 domain. An infinite bias of negative sign replaces,
/// a finite one, however negative, hides nothing: CONTRACT 3, 10.
/// NOTE: the product is rounded before it is added. Of a huge bias, what a fused multiply-add knows
/// beyond a float32 is huge too, and LSE does not have it: differences to LSE would be it.
__forceinline__ float with_bias(float s, float b) {
  const float product = max_nan(__fmul_rn(b, kLog2e), kLowest);
  const float sum = max_nan(product + s, fminf(s, kLowest));
  return b == -infinity() ? b : sum;
}
/// From here on up the bits that a fused multiply-add knows beyond a float32 are worth less than 1,
/// and no finite logit and bias have a sum that rounds to -infinity.
inline constexpr float kShallow = -0x1p23F;

/// A bit for each of four bytes that are not 0.
__forceinline__ u32 set_bytes(u32 x) {
  const u32 high = (((x & 0x7f7f7f7fU) + 0x7f7f7f7fU) | x) & 0x80808080U;
  return (high * 0x00204081U) >> 28;
}

/// The pairs of a fragment of kM x kN accumulator tiles: rows are queries and columns keys, or with
/// kTransposed keys and queries.
template <PairKind kKind, bool kTransposed, int kM, int kN>
struct FragmentPairs {
  static constexpr int kQueries = kTransposed ? 8 * kN : 16 * kM;
  static constexpr int kKeys = kTransposed ? 16 * kM : 8 * kN;
  static constexpr bool kBias = kKind.bias != BiasType::none;
  static constexpr int kSize = bias_bytes(kKind.bias);
  static constexpr PairRoom kRoom{kKind, kTransposed, kQueries, kKeys};
  static constexpr bool kMaskBits = kKind.mask && kKind.staged;
  /// A lane has these rows of the mask, and so many words a row.
  static constexpr int kOwnRows = kQueries > 32 ? kQueries / 32 : 1;
  static constexpr int kWords = (kKeys + 31) / 32;
  static_assert(kQueries <= 32 || kQueries % 32 == 0);

  const PairTensors& tensors;
  const u32 base;  ///< shared memory of the warp: kRoom.bytes, staged only
  const int lane;

  /// What the mask shows, as far as that is known ahead.
  struct Shown {
    u32 bits[kMaskBits ? kOwnRows : 1][kMaskBits ? kWords : 1];
    bool some = true, all = !kKind.mask;
  };

  // ---- load

  /// Starts the copies of a fragment whose corner is `at`; all lanes are done with the one before.
  /// The caller commits.
  __forceinline__ void load_async(const PairCorner& at) const {
    if constexpr (kKind.staged && kBias) {
      copy_rows<kSize, kRoom.bias_pitch>(base, tensors.bias, at);
    }
    if constexpr (kMaskBits) {
      copy_rows<1, kRoom.mask_pitch>(base + kRoom.bias_bytes, tensors.mask, at);
    }
  }

  // ---- mask

  /// The bits of the mask, once the copies have landed, for all lanes.
  __forceinline__ Shown shown(const PairCorner& at) const {
    Shown result;
    if constexpr (kMaskBits) {
      u32 any = 0, every = ~0U;
#pragma unroll
      for (int own = 0; own < kOwnRows; ++own) {
        const int row = 32 * own + lane % (kQueries < 32 ? kQueries : 32);
        const u32 off = offset<1>(tensors.mask, at, row);
        const u32 from =
            base + kRoom.bias_bytes + static_cast<u32>(row * pitch<kRoom.mask_pitch>(tensors.mask));
        u32 low = half_word(from);
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
          const u32 high = half_word(from + 32 * word + 16);
          const u32 last = kKeys % 32 == 0 ? half_word(from + 32 * word + 32) : 0;
          const u64 both = static_cast<u64>(last) << 32 | high << 16 | low;
          u32 bits = static_cast<u32>(both >> off);
          if constexpr (kKeys % 32 != 0) bits &= 0xffffU;
          result.bits[own][word] = bits;
          any |= bits;
          every &= kKeys % 32 == 0 ? bits : bits | 0xffff0000U;
          low = last;
        }
      }
      result.some = __any_sync(~0U, any != 0);
      result.all = !__any_sync(~0U, every != ~0U);
    }
    return result;
  }

  // ---- apply

  /// On logits in the log2 domain: (F3) the bias is added, (F4) hidden scores are replaced.
  __forceinline__ void apply(Acc (&S)[kM][kN], const PairCorner& at, const Shown& shown) const {
    add_to(S, at);
    hide_from(S, at, shown);
  }
  __forceinline__ void add_to(Acc (&S)[kM][kN], const PairCorner& at) const {
    if constexpr (kBias) {
      // Two neighbours at once where all rows start at an even element.
      const u32 odd = offset<kSize>(tensors.bias, at, 0) / (kSize + !kBias) |
                      static_cast<u32>(tensors.bias.stride_s);
      if (kKind.staged && !kTransposed && (odd & 1U) == 0) {
        add_bias<true>(S, at);
      } else {
        add_bias<false>(S, at);
      }
      if (at.query + kQueries > at.seq_q) hide_beyond(S, at);
    }
  }
  __forceinline__ void hide_from(Acc (&S)[kM][kN], const PairCorner& at, const Shown& shown) const {
    if constexpr (kMaskBits) {
      if (!shown.all) hide(S, shown);
    } else if constexpr (kKind.mask) {
      hide_by_memory(S, at);
    }
  }

 private:
  // ---- memory

  /// Distance of two rows in shared memory.
  template <int kPitch>
  static __forceinline__ int pitch(const View4& view) {
    return view.stride_s == 0 ? 0 : kPitch;
  }
  template <int kBytes>
  static __forceinline__ const unsigned char* element(const View4& view, const PairCorner& at) {
    return static_cast<const unsigned char*>(view.data) +
           kBytes * (at.batch * view.stride_b + at.head * view.stride_h + at.query * view.stride_s +
                     at.key * view.stride_d);
  }
  /// Bytes from the 16-byte boundary before the fragment's row `row` to its first key.
  template <int kBytes>
  static __forceinline__ u32 offset(const View4& view, const PairCorner& at, int row) {
    const auto low = [](auto x) { return static_cast<u32>(x); };
    const u32 elements = low(at.batch) * low(view.stride_b) + low(at.head) * low(view.stride_h) +
                         low(at.query + row) * low(view.stride_s) + low(at.key);
    return (low(reinterpret_cast<u64>(view.data)) + kBytes * elements) & 15U;
  }

  /// Rows beyond the last query become zero.
  template <int kBytes, int kPitch>
  __forceinline__ void copy_rows(u32 to, const View4& view, const PairCorner& at) const {
    constexpr int kChunks = kKeys * kBytes / 16, kStep = 32 / kChunks;
    static_assert(32 % kChunks == 0);
    const bool broadcasts = view.stride_s == 0;
    const int rows = broadcasts ? 1 : kQueries, left = broadcasts ? 1 : at.seq_q - at.query;
    const int bytes = kBytes * (at.seq_k - at.key);
    const i64 stride = kBytes * view.stride_s;
    const unsigned char* const first = element<kBytes>(view, at);
    const auto copy = [&](const unsigned char* from, int row, int chunk) {
      const int off = static_cast<int>(reinterpret_cast<u64>(from) & 15U);
      const int wanted = row < left ? min(max(bytes + off - 16 * chunk, 0), 16) : 0;
      copy_async_16(to + static_cast<u32>(row * kPitch + 16 * chunk), from - off + 16 * chunk,
                    wanted);
    };
    const unsigned char* from = first + lane / kChunks * stride;
#pragma unroll 2
    for (int row = lane / kChunks; row < rows; row += kStep) {
      copy(from, row, lane % kChunks);
      from += kStep * stride;
    }
    if (((static_cast<u32>(reinterpret_cast<u64>(first)) | static_cast<u32>(stride)) & 15U) == 0) {
      return;
    }
    for (int row = lane; row < rows; row += 32) copy(first + row * stride, row, kChunks);
  }

  // ---- mask

  /// A bit for each of 16 bytes.
  static __forceinline__ u32 half_word(u32 shared) {
    const Bytes16 x = load_shared_16(shared);
    return set_bytes(x.x) | set_bytes(x.y) << 4 | set_bytes(x.z) << 8 | set_bytes(x.w) << 12;
  }
  /// The word of a row that lane `owner` has.
  static __forceinline__ u32 word_of(u32 mine, int owner) {
    return static_cast<u32>(__shfl_sync(~0U, static_cast<int>(mine), owner));
  }
  __forceinline__ void hide(Acc (&S)[kM][kN], const Shown& shown) const {
    if constexpr (kTransposed) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int query = 8 * n + e, owner = query % 32 + 2 * (lane % 4);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            const u32 word = word_of(shown.bits[query / 32][m / 2], owner) >> (lane / 4);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const bool visible = (word >> (16 * (m % 2) + 8 * half) & 1U) != 0;
              S[m][n][2 * half + e] = visible ? S[m][n][2 * half + e] : -infinity();
            }
          }
        }
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2 * kM; ++r) {
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
          const u32 bits = word_of(shown.bits[0][word], 8 * r + lane / 4) >> (2 * (lane % 4));
#pragma unroll
          for (int n = 4 * word; n < kN && n < 4 * word + 4; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& s = S[r / 2][n][2 * (r % 2) + e];
              s = (bits >> (8 * (n % 4) + e) & 1U) != 0 ? s : -infinity();
            }
          }
        }
      }
    }
  }
  __forceinline__ void hide_by_memory(Acc (&S)[kM][kN], const PairCorner& at) const {
    const unsigned char* const first = element<1>(tensors.mask, at);
#pragma unroll
    for (int piece = 0; piece < kElements; piece += kPiece) {
      bool shows[kPiece];
#pragma unroll
      for (int x = 0; x < kPiece; ++x) {
        const Place p(piece + x);
        const int i = query_of(p), j = key_of(p);
        shows[x] = at.query + i < at.seq_q && at.key + j < at.seq_k &&
                   first[i * tensors.mask.stride_s + j * tensors.mask.stride_d] != 0;
      }
#pragma unroll
      for (int x = 0; x < kPiece; ++x) {
        float& s = S[Place(piece + x).m][Place(piece + x).n][Place(piece + x).e];
        s = shows[x] ? s : -infinity();
      }
    }
  }

  // ---- bias

  /// A lane's elements of a fragment, so that those of a query follow each other.
  static constexpr int kElements = 4 * kM * kN, kMost = kKind.staged || kTransposed ? 8 : 16;
  static constexpr int kPiece = kElements < kMost ? kElements : kMost;
  static_assert(kElements % kPiece == 0);
  struct Place {
    int m, n, e;
    constexpr explicit Place(int index)
        : m(kTransposed ? index / 2 % kM : index / (4 * kN)),
          n(kTransposed ? index / (4 * kM) : index / 2 % kN),
          e(kTransposed ? index % 2 * 2 + index / (2 * kM) % 2
                        : index / (2 * kN) % 2 * 2 + index % 2) {}
  };
  __forceinline__ int row_of(const Place& p) const { return 16 * p.m + 8 * (p.e / 2) + lane / 4; }
  __forceinline__ int col_of(const Place& p) const { return 8 * p.n + 2 * (lane % 4) + p.e % 2; }
  __forceinline__ int query_of(const Place& p) const { return kTransposed ? col_of(p) : row_of(p); }
  __forceinline__ int key_of(const Place& p) const { return kTransposed ? row_of(p) : col_of(p); }

  static __forceinline__ float widened(u32 bits) {
    if constexpr (kKind.bias == BiasType::bf16) return widen<Element::bf16>(bits);
    return widen<Element::fp16>(bits);
  }
  /// An element and its neighbour, staged, both in one word or two.
  __forceinline__ void read_two(float& a, float& b, const PairCorner& at, const Place& p) const {
    const int query = query_of(p);
    const u32 from = base + static_cast<u32>(query * pitch<kRoom.bias_pitch>(tensors.bias)) +
                     offset<kSize>(tensors.bias, at, query) + static_cast<u32>(kSize * key_of(p));
    if constexpr (kSize == 4) {
      const Floats2 both = load_shared_8(from);
      a = both.x, b = both.y;
    } else {
      const u32 both = load_shared_4(from);
      a = widened(both & 0xffffU), b = widened(both >> 16);
    }
  }
  __forceinline__ float read_one(const PairCorner& at, const Place& p) const {
    const int query = query_of(p), key = key_of(p);
    if constexpr (kKind.staged) {
      const u32 from = base + static_cast<u32>(query * pitch<kRoom.bias_pitch>(tensors.bias)) +
                       offset<kSize>(tensors.bias, at, query) + static_cast<u32>(kSize * key);
      if constexpr (kSize == 4) return load_shared_f32(from);
      return widened(load_shared_2(from));
    } else {
      if (at.query + query >= at.seq_q || at.key + key >= at.seq_k) return 0.0F;
      const unsigned char* const from =
          element<kSize>(tensors.bias, at) +
          kSize * (query * tensors.bias.stride_s + key * tensors.bias.stride_d);
      if constexpr (kSize == 4) return *reinterpret_cast<const float*>(from);
      return widened(*reinterpret_cast<const unsigned short*>(from));
    }
  }
  /// Queries beyond the last: a bias that broadcasts along queries may be NaN where none sees it.
  __forceinline__ void hide_beyond(Acc (&S)[kM][kN], const PairCorner& at) const {
#pragma unroll
    for (int x = 0; x < kElements; ++x) {
      const Place p(x);
      if (at.query + query_of(p) >= at.seq_q) S[p.m][p.n][p.e] = -infinity();
    }
  }
  template <bool kByTwo>
  __forceinline__ void add_bias(Acc (&S)[kM][kN], const PairCorner& at) const {
#pragma unroll
    for (int piece = 0; piece < kElements; piece += kPiece) {
      float b[kPiece], least = 0.0F;
#pragma unroll
      for (int x = 0; x < kPiece; x += 2) {
        if constexpr (kByTwo) {
          read_two(b[x], b[x + 1], at, Place(piece + x));
        } else {
          b[x] = read_one(at, Place(piece + x));
          b[x + 1] = read_one(at, Place(piece + x + 1));
        }
        least = fminf(least, fminf(-fabsf(b[x]), -fabsf(b[x + 1])));
      }
      const bool deep = __any_sync(~0U, least < kShallow);
#pragma unroll
      for (int x = 0; x < kPiece; ++x) {
        float& s = S[Place(piece + x).m][Place(piece + x).n][Place(piece + x).e];
        s = deep ? with_bias(s, b[x]) : __fmaf_rn(b[x], kLog2e, s);
      }
    }
  }
};

}  // namespace tilewise::tile
