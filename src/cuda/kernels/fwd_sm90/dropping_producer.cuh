/// fwd_sm90: the producer of a problem with dropout. It is a warpgroup that makes dropout's bits
/// for the consumers, a block of keys ahead of them, while their products and exponentials run:
/// Philox takes another pipe. One thread of it copies Q, K and V between two of its rows.
#pragma once

#include "cuda/kernels/fwd_sm90/producer.cuh"
#include "cuda/tile/dropout.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct DroppingProducer {
  using Base = Producer<kConfig>;
  static constexpr int kBlockN = Base::kBlockN;
  using Rounds = PhiloxRounds<false>;
  static_assert(kBlockN == 128 && !kConfig.schedule.q_by_need && !kConfig.pack_heads);
  /// Rows of a warp, of which four lanes share each.
  static constexpr int kRows = 16 * kConfig.shape.warpgroups;

  Base base;
  const DropoutBits& bits;
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Ring<2> rBits;
  /// Of the thread that copies: the blocks whose keys and values are next, and the last ones.
  int next_k = 0, next_v = 0, first = 0;

  // ---- copies

  __forceinline__ bool leads() const { return threadIdx.x == 0; }
  /// What of the tile has a free place.
  __forceinline__ void copy_what_fits() {
    if (!leads()) return;
    while (next_k >= first &&
           mbarrier_test(base.shared.k_empty(static_cast<int>(base.rK.slot)), base.rK.parity ^ 1))
      base.load_k(next_k--);
    while (next_v >= first &&
           mbarrier_test(base.shared.v_empty(static_cast<int>(base.rV.slot)), base.rV.parity ^ 1))
      base.load_v(next_v--);
  }
  /// The rest of the tile: values of a block behind the keys of the next.
  __forceinline__ void copy_rest() {
    while (next_k >= first || next_v >= first) {
      if (next_k >= first && next_k >= next_v - 1) {
        base.load_k(next_k--);
      } else {
        base.load_v(next_v--);
      }
    }
  }

  // ---- bits

  __forceinline__ u32 key_words() const {
    return base.shared.base + Shared<kConfig>::kPlan.dropout +
           warp * SharedPlan::dropout_warp(kConfig);
  }
  /// What a lane finds of 32 keys: bit 16 h + 4 g + w is that of key 8 g + 4 h + w.
  __forceinline__ u32 kept_of(const Rounds& rounds, const Rounds::QueryWords& query,
                              u32 words) const {
    u32 kept[2] = {};
#pragma unroll
    for (int g = 3; g >= 0; --g) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Bytes16 w = load_shared_16(words + (2 * g + half) * 16);
        rounds.shift_in(kept[half], {w.x, w.y, w.z, w.w}, query);
      }
    }
    return kept[0] | kept[1] << 16;
  }
  /// Byte t then has those of keys 8 g + 2 t + e at bits 2 g + e.
  static __forceinline__ u32 by_lane(u32 x) {
    u32 moved = (x ^ x >> 2) & 0x0c0c0c0cU;
    x ^= moved ^ moved << 2;
    moved = (x ^ x >> 4) & 0x00f000f0U;
    return x ^ moved ^ moved << 4;
  }
  __forceinline__ void make_bits(int nth) {
    const Rounds rounds(bits);
    const auto of = static_cast<u32>(base.tile.batch * base.args.heads_q + base.tile.head);
    const int key = key_block<kConfig>(base.args, base.tile, nth) * kBlockN;
    const int slot = static_cast<int>(rBits.slot);
    if (lane == 0) mbarrier_wait(base.shared.bits_empty(slot), rBits.parity ^ 1);
    __syncwarp();  // and all lanes have read the words of the keys before
    const Rounds::KeyWords own = rounds.of_keys(static_cast<u32>(key / 4 + lane), of);
    store_shared_16(key_words() + lane * 16, __uint_as_float(own.second),
                    __uint_as_float(own.third), __uint_as_float(own.third_high),
                    __uint_as_float(own.third_low));
    __syncwarp();
    const u32 words = key_words() + lane % 4 * 128;
    const int row = warp * kRows + lane / 4;
    u32 to = base.shared.bits(slot) + row * 16 + lane % 4 * 4;
    int query = first_query<kConfig>(base.args, base.tile) + row;
#pragma unroll 1
    for (int i = 0; i < kRows / 8; ++i, query += 8, to += 128) {
      if (warp == 0) copy_what_fits();
      const u32 found = kept_of(rounds, rounds.of_query(static_cast<u32>(query), of), words);
      store_shared_4(to, by_lane(found));
    }
    __syncwarp();  // all rows have been stored
    if (lane == 0) mbarrier_arrive(base.shared.bits_full(slot));
    rBits.advance();
  }

  // ---- tiles

  __forceinline__ void make_tile(int index) {
    const BlockRange range = tile_range<kConfig>(base.args, base.tile);
    if (leads()) {
      base.head_k = base.tile.head / base.args.group;
      first = range.begin;
      next_k = next_v = range.end - 1;
      const bool any = range.begin < range.end;
      if (kConfig.shape.q_buffers == 1 && any) base.load_k(next_k--);
      for (int w = 0; w < kConfig.shape.warpgroups; ++w) base.load_q(w);
      base.rQ.advance();
    }
    for (int block = range.end - 1; block >= range.begin; --block) make_bits(block);
    if (leads()) {
      base.asked = base.ask(index);
      copy_rest();
    }
  }
  __forceinline__ int next_index() const {
    return __shfl_sync(~0U, leads() ? base.answer(base.asked) : 0, 0);
  }
  /// The first warp.
  __forceinline__ void lead() {
    if (leads()) {
      base.begin();
    }
    Ring<2> slots;
    int index = static_cast<int>(blockIdx.x);
    while (index < base.args.tiles) {
      base.tile = base.tile_at(index);
      base.look_up_lengths();
      const int query = first_query<kConfig>(base.args, base.tile);
      if (kConfig.lengths == Lengths::packed && (query < 0 || query >= base.tile.seq_q)) {
        if (leads()) base.asked = base.ask(index);
      } else {
        announce(slots);
        make_tile(index);
      }
      index = next_index();
    }
    base.tile.block = -1;
    announce(slots);
  }
  __forceinline__ void announce(Ring<2>& slots) const {
    Ring<2> at = slots;
    if (lane == 0) base.announce(at);
    slots.advance();
  }
  /// The others make their share of what it has announced.
  __forceinline__ void follow() {
    Ring<2> slots;
    for (;;) {
      const int s = static_cast<int>(slots.slot);
      mbarrier_wait(base.shared.tile_full(s), slots.parity);
      load_tile(base.tile, base.shared, s);
      __syncwarp();  // all lanes have read the slot
      if (lane == 0) mbarrier_arrive(base.shared.tile_empty(s));
      slots.advance();
      if (base.tile.block < 0) return;
      make_tile(0);
    }
  }
  __forceinline__ void run() {
    if (warp == 0) {
      lead();
    } else {
      follow();
    }
  }
};

}  // namespace tilewise::fwd_sm90
