/// fwd_sm90: how a consumer passes over the tile's blocks, and halves of blocks, that its own rows
/// do not see.
#pragma once

#include "cuda/kernels/fwd_sm90/options.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// Blocks of the tile right of this warpgroup's own: K and V in turn, or the producer could wait
/// for V's place while this waits for K. With kKeysOnly the number of V blocks still to pass over
/// is given back.
template <Config kConfig, bool kKeysOnly, class Consumer>
__forceinline__ int skip_right(Consumer& c) {
  int skipped = 0;
  if constexpr (kConfig.schedule.skip_blocks) {
    for (int block = c.tile_end - 1; block >= c.blocks.end && block >= c.tile_begin; --block) {
      c.wait_k();
      if (block > c.tile_begin) {
        c.await_turn();
        c.pass_turn();
      }
      c.release_k();
      pass_boxes<kConfig>(c);
      if constexpr (kKeysOnly) {
        ++skipped;
      } else {
        c.wait_v();
        c.release_v();
      }
    }
  }
  return skipped;
}
template <Config kConfig, class Consumer>
__forceinline__ void skip_left(Consumer& c) {
  if constexpr (kConfig.schedule.skip_blocks && kConfig.mask == Mask::both) {
    for (int block = c.blocks.begin - 1; block >= c.tile_begin; --block) {
      c.wait_k();
      c.await_turn();
      c.pass_turn();
      c.release_k();
      pass_boxes<kConfig>(c);
      c.wait_v();
      c.release_v();
    }
  }
}

/// The half of `block` that all visible keys of the warpgroup's rows lie in, -1: none.
template <Config kConfig, class Consumer>
__forceinline__ int visible_half(const Consumer& c, int block) {
  if constexpr (!kConfig.schedule.halve_cut) return -1;
  const Diagonals d = diagonals<kConfig>(c.args, c.tile);
  const int first = c.group_query();
  const int last = min(first + 64, queries<kConfig>(c.args, c.tile)) - 1;
  const int middle = block * kConfig.shape.block_n + kConfig.shape.block_n / 2;
  const bool left = min(last + d.high, keys<kConfig>(c.args, c.tile)) <= middle;
  return left ? 0 : first + d.low >= middle ? 1 : -1;
}

}  // namespace tilewise::fwd_sm90
