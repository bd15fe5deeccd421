/// bwd_sm90: what a consumer holds of options and maps, and blocks of a list that a bool mask cuts.
#pragma once

#include "cuda/kernels/bwd_sm90/worker.cuh"
#include "cuda/tile/options.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// What a consumer holds of the options: nothing where there is none.
template <bool kAny>
struct HeldOptions {};
template <>
struct HeldOptions<true> {
  const Options* options;
  u32 shown[2];  ///< of the thread's keys what the bool mask shows, a bit a score
  u32 kept[2];   ///< dropout: of the thread's scores, a bit each
};

/// Of a map: the mask function hides nothing of the block.
template <bool kTells>
struct HeldPlaced {};
template <>
struct HeldPlaced<true> {
  u32 placed = 0;
};

/// How many of a key's scores in a thread (columns 0, 1, 8, 9, 16, ...) are left of `column`.
template <int kColumns>
__forceinline__ int scores_before(int column) {
  const int c = min(max(column, 0), kColumns);
  return c / 8 * 2 + min(c % 8, 2);
}

/// Hidden scores become -inf (CONTRACT 4, 5, 10): by position, by the list, and by the bool mask. A
/// bit a score, of which eight are tested at once.
template <Config kConfig, class Scores>
__forceinline__ void mask_by_bits(Scores& s, u32 listed_columns) {
  constexpr int kM = kConfig.shape.block_m;
  const Args& args = s.worker.args;
  const Job& job = s.worker.job;
  const int column = s.block * kM + 2 * (s.worker.lane % 4);
  const Diagonals d = diagonals<kConfig>(args, job);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = s.key_row() + 8 * r;
    u32 visible = key < keys_of<kConfig>(args, job) ? s.shown[r] : 0;
    if constexpr (kConfig.mask != Mask::none) {
      const int from = scores_before<kM>(key - d.high + 1 - column);
      int to = kM / 4;
      if constexpr (kConfig.mask == Mask::both) to = scores_before<kM>(key - d.low + 1 - column);
      visible &= bit_mask(static_cast<u32>(from), static_cast<u32>(max(to - from, 0)));
    }
    if constexpr (kConfig.lists == Lists::parts) {
#pragma unroll
      for (int c = 0; c < kM / 16; ++c)
        visible &= (listed_columns >> c & 1) != 0 ? ~0U : ~(0xfU << (4 * c));
    }
#pragma unroll
    for (int i = 0; i < kM / 4; ++i) {
      if ((visible >> i & 1) == 0) s.rS[4 * (i / 2) + 2 * r + i % 2] = -infinity();
    }
  }
}

}  // namespace tilewise::bwd_sm90
