/// A bias in the kernels for Hopper: the elements of a warp's 16 rows and a block of keys, by way
/// of shared memory where those of neighbouring keys lie side by side. tile/pairs.cuh has its
/// words.
#pragma once

#include "cuda/tile/pairs.cuh"

namespace tilewise::tile {

/// Two elements of a bias's type as they lie beside each other.
template <BiasType kType>
struct BiasPair {
  Floats2 x;
  u32 word;  ///< 16 bits each

  __forceinline__ void take(u32 both) {
    word = both;
    if constexpr (kType == BiasType::bf16) {
      x = {widen<Element::bf16>(both & 0xffffU), widen_high<Element::bf16>(both)};
    } else {
      x = {widen<Element::fp16>(both & 0xffffU), widen_high<Element::fp16>(both)};
    }
  }
};

/// NOTE: a staged bias has rows that begin at an even element (host/options.h).
template <PairKind kKind, int kBlockN>
struct BiasBlock {
  static constexpr BiasType kType = kKind.bias;
  static constexpr int kSize = bias_bytes(kType);
  using Staged = FragmentPairs<kKind, false, 1, kBlockN / 8>;
  using Pair = BiasPair<kType>;

  const View4& view;
  const u32 base;  ///< shared memory of the warp
  const int lane;

  __forceinline__ void load_async(const PairCorner& at) const {
    if constexpr (kKind.staged) {
      __syncwarp();  // all lanes are done with the one before
      const bool inside = at.query + kRows <= at.seq_q && at.key + kBlockN <= at.seq_k;
      // A vote, though all lanes agree: see Scores::add_alibi() of fwd_sm90.
      if (__any_sync(~0U, !inside || !aligned())) {
        const PairTensors tensors = {.bias = view, .mask = {}, .type = kType};
        Staged{tensors, base, lane}.load_async(at);
      } else {
        copy_whole(at);
      }
      copy_async_commit();
    }
  }

  /// S = S * factor + log2 e * bias. The product is rounded before it is added: see with_bias().
  /// kLifts: a bias of -infinity replaces the score, and a finite one whose product overflows is
  /// no mask. Without, the former may leave NaN, and both give the probability 0 beside a maximum
  /// that is known.
  template <bool kLifts, int kScores>
  __forceinline__ void add_to(float (&S)[kScores], float factor, const PairCorner& at) const {
    if constexpr (kKind.staged) {
      copy_async_wait<0>();
      __syncwarp();  // the copies of all lanes have landed
    }
    const auto add = [factor](float& s, float b) {
      const float x = s * factor;
      s = kLifts ? with_bias(x, b) : __fmaf_rn(s, factor, __fmul_rn(b, kLog2e));
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Row row(*this, at, r);
#pragma unroll
      for (int j = 0; j < kBlockN / 8; ++j) {
        // A few at a time: read far ahead they would spill.
        if (j % 2 == 0 && j > 0) row.settle(S[4 * (j - 1) + 2 * r]);
        const Pair b = row.pair(j);
        add(S[4 * j + 2 * r], b.x.x);
        add(S[4 * j + 2 * r + 1], b.x.y);
      }
    }
  }

 private:
  static constexpr int kRows = 16, kChunks = kBlockN * kSize / 16;

  /// Whether rows, one for each query, begin at 16 bytes.
  __forceinline__ bool aligned() const {
    const i64 elements = view.stride_b | view.stride_h | view.stride_s;
    const u32 bytes =
        static_cast<u32>(reinterpret_cast<u64>(view.data)) | static_cast<u32>(elements) * kSize;
    return view.stride_s != 0 && bytes % 16 == 0;
  }
  /// Those of a block that has all its queries and keys.
  __forceinline__ void copy_whole(const PairCorner& at) const {
    constexpr int kStep = 32 / kChunks, kPitch = Staged::kRoom.bias_pitch;
    const int row = lane / kChunks, chunk = lane % kChunks;
    const unsigned char* from = static_cast<const unsigned char*>(view.data) + 16 * chunk +
                                kSize * (at.batch * view.stride_b + at.head * view.stride_h +
                                         (at.query + row) * view.stride_s + at.key);
    const u32 to = base + static_cast<u32>(row * kPitch + 16 * chunk);
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      copy_async_16(to + static_cast<u32>(i * kStep * kPitch), from, 16);
      from += kStep * kSize * view.stride_s;
    }
  }

  /// The thread's elements of one of its rows: two of every eight keys.
  struct Row {
    u32 shared = 0;
    const unsigned char* memory = nullptr;
    i64 stride = 0;
    int first = 0, last = 0;

    __forceinline__ Row(const BiasBlock& of, const PairCorner& at, int r) {
      const int i = of.lane / 4 + 8 * r;
      const View4& v = of.view;
      first = 2 * (of.lane % 4);
      if constexpr (kKind.staged) {
        const auto low = [](auto x) { return static_cast<u32>(x); };
        const int pitch = v.stride_s == 0 ? 0 : Staged::kRoom.bias_pitch;
        const u32 elements = low(at.batch) * low(v.stride_b) + low(at.head) * low(v.stride_h) +
                             low(at.query + i) * low(v.stride_s) + low(at.key);
        const u32 off = (low(reinterpret_cast<u64>(v.data)) + kSize * elements) & 15U;
        shared = of.base + static_cast<u32>(i * pitch) + off + static_cast<u32>(kSize * first);
      } else {
        // Those past the last row and key are hidden, or no one's: any element serves.
        const i64 row = at.batch * v.stride_b + at.head * v.stride_h +
                        min(at.query + i, at.seq_q - 1) * v.stride_s + at.key * v.stride_d;
        memory = static_cast<const unsigned char*>(v.data) + kSize * row;
        stride = kSize * v.stride_d;
        last = at.seq_k - 1 - at.key;
      }
    }
    __forceinline__ Pair pair(int j) const {
      Pair b;
      if constexpr (kKind.staged && kSize == 4) {
        b.x = load_shared_8(shared + static_cast<u32>(32 * j));
      } else if constexpr (kKind.staged) {
        b.take(load_shared_4(shared + static_cast<u32>(16 * j)));
      } else if constexpr (kSize == 4) {
        b.x = {*static_cast<const float*>(element(8 * j)),
               *static_cast<const float*>(element(8 * j + 1))};
      } else {
        const u32 low = *static_cast<const unsigned short*>(element(8 * j));
        b.take(low | static_cast<u32>(*static_cast<const unsigned short*>(element(8 * j + 1)))
                         << 16);
      }
      return b;
    }
    __forceinline__ void settle(float& done) {
      if constexpr (kKind.staged) {
        shared = after(shared, done);
      } else {
        const u64 at = after(reinterpret_cast<u64>(memory), done);
        memory = __builtin_bit_cast(const unsigned char*, at);
      }
    }
    __forceinline__ const void* element(int j) const {
      return memory + min(first + j, last) * stride;
    }
  };
};

}  // namespace tilewise::tile
