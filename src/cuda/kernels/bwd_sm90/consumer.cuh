/// bwd_sm90: the consumers, two warpgroups of 64 keys each, and what they do of each job.
#pragma once

#include "cuda/kernels/bwd_sm90/steps.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer : Steps<kConfig> {
  using Base = Steps<kConfig>;
  using Base::args;
  using Base::Base;
  /// Every block is taken as masked where a second loop costs registers that are not there.
  static constexpr bool kOneLoop = kConfig.block_m == 64 && kConfig.mask == Mask::both;
  using Base::block;
  using Base::buffers;
  using Base::fetch_job;
  using Base::first_step;
  using Base::job;
  using Base::kBlockN;
  using Base::kD;
  using Base::kDv;
  using Base::kElement;
  using Base::kM;
  using Base::kPlan;
  using Base::kSlot;
  using Base::lane;
  using Base::pair;
  using Base::rDk;
  using Base::rDv;
  using Base::release;
  using Base::rK;
  using Base::shared;
  using Base::signal_done;
  using Base::sync_consumers;
  using Base::sync_warpgroup;
  using Base::thread;
  using Base::warp;
  using Base::warpgroup;

  __forceinline__ void run_tile() {
    const BlockRange range = tile_range<kConfig>(args, job);
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) rDk[i] = 0.0F;
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) rDv[i] = 0.0F;
    if (range.begin < range.end) {
      const int head = job.head * args.group;
      pair = entry_of<kConfig>(job) * args.heads_q + head;
      this->load_slope(head);
      first_step(range);
      signal_done();
      // What was staged of the job before has been read: its place is dS's again.
      if (lane == 0) bulk_wait_read();
      if (this->converted == 0) {
        sync_warpgroup();
      } else {
        sync_consumers();
      }
      int next = range.begin + 1;
      // A list goes over all heads.
#pragma unroll 1
      for (int g = 0; g < (kConfig.listed() ? 1 : args.group); ++g) {
        if (g > 0) {
          this->load_slope(head + g);
          next = range.begin;
        }
        const int of = entry_of<kConfig>(job) * args.heads_q + head + g;
        // A block that follows another head's is taken as masked, whatever it is: one loop less.
        int masked_end = kOneLoop ? range.end : max(range.full_begin, range.begin + 1);
#pragma unroll 1
        while (true) {
#pragma unroll 1
          for (; next < masked_end; ++next) this->template step<true, false>(of, next);
          if constexpr (!kOneLoop) {
#pragma unroll 1
            for (; next < range.full_end; ++next) this->template step<false, false>(of, next);
          }
          if (next >= range.end) break;
          masked_end = range.end;
        }
      }
      this->template step<false, true>(0, 0);
    } else {
      signal_done();
      // As above: the copy engine may still read what a conversion staged where zeros go now.
      if (this->converted != 0) {
        if (lane == 0) bulk_wait_read();
        sync_consumers();
      }
    }
    if constexpr (kConfig.split) {
      add_part(range.begin < range.end);
    } else {
      store_tile();
    }
  }

  // ---- tiles that are cut

  /// Where this warp's fragments of a tile lie in the sums of dK or dV.
  template <int kColumns>
  __forceinline__ float* sums_at(float* sums, int tile) const {
    return sums + (static_cast<i64>(tile) * kBlockN + (warpgroup * 4 + warp) * 16) * kColumns;
  }
  // Where 32 columns at a time are staged on their way: a warp's own rows of V, of dS and of K,
  // whose products are done. There is room for most of a tile at once; rows of dS are taken again.
  static constexpr int kOfV = kConfig.v_registers ? 0 : SharedPlan::panels(kDv);
  static constexpr int kOfS = 2 * (kM / 64);
  static constexpr int kOfK = kConfig.k_stages == 2 ? SharedPlan::panels(kD) : 0;
  static constexpr int kPlaces = kOfV + kOfS + kOfK, kTurns = (kD + kDv) / 32;
  static constexpr int place_of(int turn) {
    return turn < kPlaces ? turn : kOfV + (turn - kPlaces) % kOfS;
  }
  /// Turns since a place was last taken.
  static constexpr int turns_since(int turn) {
    int since = 1;
    while (place_of(turn - since) != place_of(turn)) ++since;
    return since;
  }
  __forceinline__ u32 place(int index) const {
    constexpr int kPanel = kBlockN * kPanelRowBytes;
    const u32 own = warpgroup * kSlot + warp * (kSlot / 4);
    if (index < kOfV) return shared.v() + index * kPanel + own;
    if (index < kOfV + kOfS) return staging(index - kOfV) + warp * (kSlot / 4);
    return shared.k(rK.slot ^ 1) + (index - kOfV - kOfS) * kPanel + own;  // of the tile
  }
  /// dV, then dK, from a turn on.
  template <int kTurn>
  __forceinline__ void add_sums(float* dv_sum, float* dk_sum) {
    // V is free for the next tile when what was staged there has been read.
    constexpr bool kLetsGo = kOfV > 0 && kTurn == (kTurns < kPlaces ? kTurns : kPlaces);
    if constexpr (kTurn >= kPlaces && kTurn < kTurns) {
      if (lane == 0) bulk_wait_read<turns_since(kTurn) - 1>();
      __syncwarp();
    } else if constexpr (kLetsGo) {
      if (lane == 0) bulk_wait_read<kTurn - kOfV>();
    }
    if constexpr (kLetsGo) release(shared.v_empty());
    if constexpr (kTurn < kTurns) {
      if constexpr (kTurn == kOfV) this->await_buffer();
      if constexpr (kTurn == kOfV + kM / 64) this->await_buffers();
      constexpr bool kIsDv = kTurn < kDv / 32;
      constexpr int kFirst = 16 * (kIsDv ? kTurn : kTurn - kDv / 32);
      const u32 stage = place(place_of(kTurn));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = kFirst + 4 * j;
        const u32 to = stage + (j * 32 + lane) * 16;
        if constexpr (kIsDv) {
          store_shared_16(to, rDv[i], rDv[i + 1], rDv[i + 2], rDv[i + 3]);
        } else {
          store_shared_16(to, rDk[i], rDk[i + 1], rDk[i + 2], rDk[i + 3]);
        }
      }
      fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        bulk_add((kIsDv ? dv_sum : dk_sum) + kFirst * 32, stage, 2048);
        bulk_commit();
      }
      add_sums<kTurn + 1>(dv_sum, dk_sum);
    }
  }
  /// Adds dK and dV of a part to the tile's sums.
  __forceinline__ void add_part(bool any) {
    const int tile = kept_tile<kConfig>(args, job, key_head<kConfig>(args, job));
    if constexpr (kConfig.deterministic) {
      // In the order of the parts, which is that of the queue.
      const int before = args.parts > 1 ? job.part : job.head % args.sharers;
      if (lane == 0) {
        signal_wait(args.added + tile, static_cast<u32>(before * kConsumerWarps));
        fence_async();
      }
      __syncwarp();
    }
    if (any) {
      sync_warpgroup();  // no warp's product reads V any more
      add_sums<0>(sums_at<kDv>(args.dv_sum, tile), sums_at<kD>(args.dk_sum, tile));
      if constexpr (kOfK > 0) this->held_k = shared.k_empty(rK.slot ^ 1);
    }
    this->unsignalled = args.added + tile;
  }
  /// The sums of a tile to dK and dV.
  __forceinline__ void run_keys() {
    signal_done();
    // What was staged of the job before has been read.
    if (lane == 0) bulk_wait_read();
    sync_consumers();
    store_tile();
  }
  // ---- dK and dV to memory

  /// Where panel `index` of what a warpgroup stores is staged: where it writes dS itself, first in
  /// the buffer that was used longer ago.
  __forceinline__ u32 staging(int index) const {
    constexpr int kPanels = kM / 64;  // of a buffer
    const int panel = (index + buffers.slot * kPanels) % (2 * kPanels);
    return shared.ds(0) + panel * (kBlockN * kPanelRowBytes) + warpgroup * kSlot;
  }
  /// Words of a row of a warp's fragments, 16 columns from 16 k on, to their panel.
  __forceinline__ void stage_words(const u32 (&words)[4], int k, int first) const {
    const int row = warp * 16 + lane % 16;
    const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
    store_matrix_x4(staging(first + k / 4) + row * kPanelRowBytes + chunk * 16, words);
  }
  template <int kColumns>
  __forceinline__ void stage(const float (&r)[kColumns / 2], float factor, int first) const {
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      u32 words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = pack<kElement>(r[8 * k + 2 * i] * factor, r[8 * k + 2 * i + 1] * factor);
      }
      stage_words(words, k, first);
    }
  }
  /// The same from the sums.
  template <int kColumns>
  __forceinline__ void stage_sums(float* sums, float factor, int first) const {
    const float* from = sums_at<kColumns>(sums, kept_tile<kConfig>(args, job, job.head)) + lane * 4;
    Bytes16 fours[kColumns / 8];
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) fours[i] = load_global_16(from + i * 128);
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      u32 words[4];
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        const Bytes16& v = fours[2 * k + f];
        words[2 * f] = pack<kElement>(number(v.x) * factor, number(v.y) * factor);
        words[2 * f + 1] = pack<kElement>(number(v.z) * factor, number(v.w) * factor);
      }
      stage_words(words, k, first);
    }
  }
  static __forceinline__ float number(u32 bits) { return __int_as_float(static_cast<int>(bits)); }

  /// What was staged goes to memory.
  template <int kColumns>
  __forceinline__ void store_staged(const TensorMapBytes& map, int first) const {
    const int row = job.block * kBlockN + warpgroup * 64;
    for (int p = 0; p < SharedPlan::panels(kColumns); ++p) {
      store_keys<kConfig>(args, map, staging(first + p), p * kPanelColumns, job, row);
    }
    bulk_commit();
  }
  /// What dropout leaves of P is scaled with dV.
  __forceinline__ float values_factor() const {
    if constexpr (kConfig.options.dropout) return this->options->dropout.scale;
    return 1.0F;
  }
  __forceinline__ void stage_dv() const {
    if constexpr (kConfig.split) {
      stage_sums<kDv>(args.dv_sum, values_factor(), 0);
    } else {
      stage<kDv>(rDv, values_factor(), 0);
    }
  }
  __forceinline__ void stage_dk(int first) const {
    if constexpr (kConfig.split) {
      stage_sums<kD>(args.dk_sum, args.scale, first);
    } else {
      stage<kD>(rDk, args.scale, first);
    }
  }
  /// dK and dV of the tile, beside a warpgroup that may still be at work on the last dQ: by way of
  /// this warpgroup's rows of dS, as soon as dQ lets go of them.
  __forceinline__ void store_tile() {
    constexpr int kPanels = SharedPlan::panels(kD), kPanelsV = SharedPlan::panels(kDv);
    constexpr bool kAtOnce = kPanels + kPanelsV <= kM / 64;
    constexpr int kMost = kPanels > kPanelsV ? kPanels : kPanelsV;
    static_assert(kMost <= 2 * (kM / 64));
    if (thread == 0) bulk_wait_read();
    if constexpr (kMost > kM / 64) {
      this->await_buffers();
    } else {
      this->await_buffer();
    }
    sync_warpgroup();
    stage_dv();
    if constexpr (kAtOnce) stage_dk(kPanelsV);
    fence_async_shared();
    sync_warpgroup();
    if (thread == 0) {
      store_staged<kDv>(args.dv, 0);
      if constexpr (kAtOnce) {
        store_staged<kD>(args.dk, kPanelsV);
      } else {
        bulk_wait_read();
      }
    }
    if constexpr (!kAtOnce) {
      sync_warpgroup();
      stage_dk(0);
      fence_async_shared();
      sync_warpgroup();
      if (thread == 0) store_staged<kD>(args.dk, 0);
    }
  }

  __forceinline__ void run() {
    fetch_job();
    while (job.kind != JobKind::end) {
      if (job.kind == JobKind::tile) {
        run_tile();
        this->converted = 0;
      } else if (job.kind == JobKind::prepare) {
        this->run_prepare();
      } else if (kConfig.split && job.kind == JobKind::keys) {
        run_keys();
        this->converted = 0;
      } else {
        this->run_convert();
      }
      fetch_job();
    }
    signal_done();
    if (lane == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
  }
};

}  // namespace tilewise::bwd_sm90
