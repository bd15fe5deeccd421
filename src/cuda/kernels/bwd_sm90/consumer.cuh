/// bwd_sm90: the consumers, two warpgroups of 64 keys each, and what they do of each job.
#pragma once

#include "cuda/kernels/bwd_sm90/scores.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// One warpgroup: its 64 keys against one block of queries after the other. Everything is
/// transposed: rows are keys, columns queries. steps.cuh defines the steps, stores.cuh the way of
/// dK and dV to memory.
template <Config kConfig>
struct Consumer {
  static constexpr int kM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr Element kElement = kConfig.element;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kSlot = Worker<kConfig>::kSlot;
  /// Every block is taken as masked where a second loop costs registers that are not there.
  static constexpr bool kOneLoop = kConfig.shape.block_m == 64 && kConfig.mask == Mask::both;
  using Product = Wgmma<kElement, kM>;
  using Keys = Wgmma<kElement, kD>;
  using Values = Wgmma<kElement, kDv>;

  Scores<kConfig> scores;
  /// Descriptors of the first stages. V: 64 rows as A. dO: as B of dP (K-major); Q, dO: of dK, dV
  /// (MN-major).
  const u64 dV, dO, dQt, dOt;
  Ring<2> buffers;
  float rGradS[kM / 2];  ///< dP^T
  u32 rdS[kM / 4];       ///< dS^T
  u32 rdSlow[kConfig.two_plane ? kM / 4 : 1];
  float rDk[kD / 2], rDv[kDv / 2];
  u32 rV[kConfig.v_registers() ? kDv / 4 : 1];

  __forceinline__ Consumer(const Args& a, u32 shared_base, int group)
      : scores(a, shared_base, group),
        dV(panel_descriptor(scores.worker.shared.v() + group * kSlot, 16)),
        dO(panel_descriptor(scores.worker.shared.d_o(0), 16)),
        dQt(panel_descriptor(scores.worker.shared.q(0), kM * kPanelRowBytes)),
        dOt(panel_descriptor(scores.worker.shared.d_o(0), kM * kPanelRowBytes)) {}

  __forceinline__ void run_tile() {
    Worker<kConfig>& worker = scores.worker;
    const BlockRange range = worker.tile_range();
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) rDk[i] = 0.0F;
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) rDv[i] = 0.0F;
    if (kConfig.passes && range.begin < range.end) {
      run_passing(range.end);
    } else if (range.begin < range.end) {
      const int head = worker.job.head * worker.args.group;
      scores.bh = entry_of<kConfig>(worker.job) * worker.args.heads_q + head;
      scores.load_slope(head);
      first_step(range);
      worker.signal_done();
      // What was staged of the job before has been read: its place is dS's again.
      if (worker.lane == 0) bulk_wait_read();
      if (worker.converted == 0) {
        worker.sync_warpgroup();
      } else {
        worker.sync_consumers();
      }
      int next = range.begin + 1;
      // A list goes over all heads.
#pragma unroll 1
      for (int g = 0; g < (kConfig.listed() ? 1 : worker.args.group); ++g) {
        if (g > 0) {
          scores.load_slope(head + g);
          next = range.begin;
        }
        const int of = entry_of<kConfig>(worker.job) * worker.args.heads_q + head + g;
        // A block that follows another head's is taken as masked, whatever it is: one loop less.
        int masked_end = kOneLoop ? range.end : max(range.full_begin, range.begin + 1);
#pragma unroll 1
        while (true) {
#pragma unroll 1
          for (; next < masked_end; ++next) step<true, false>(of, next);
          if constexpr (!kOneLoop) {
#pragma unroll 1
            for (; next < range.full_end; ++next) step<false, false>(of, next);
          }
          if (next >= range.end) break;
          masked_end = range.end;
        }
      }
      step<false, true>(0, 0);
    } else {
      worker.signal_done();
      // As above: the copy engine may still read what a conversion staged where zeros go now.
      if (worker.converted != 0) {
        if (worker.lane == 0) bulk_wait_read();
        worker.sync_consumers();
      }
    }
    if constexpr (kConfig.sums.split) {
      add_part(range.begin < range.end);
    } else {
      store_tile();
    }
  }

  __forceinline__ void run() {
    Worker<kConfig>& worker = scores.worker;
    worker.fetch_job();
    while (worker.job.kind != JobKind::end) {
      if (worker.job.kind == JobKind::tile) {
        run_tile();
        worker.converted = 0;
      } else if (worker.job.kind == JobKind::prepare) {
        worker.run_prepare();
      } else if (kConfig.sums.split && worker.job.kind == JobKind::keys) {
        run_keys();
        worker.converted = 0;
      } else {
        worker.run_convert();
      }
      worker.fetch_job();
    }
    worker.signal_done();
    if (worker.lane == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
  }

  // ---- products, issued: steps.cuh
  void issue_dp();
  template <int kColumns, int kWords>
  void load_operand(u32 (&to)[kWords], u32 from) const;
  template <int kWords>
  void issue_dv(const u32 (&words)[kWords]);
  template <int kWords>
  void issue_dk(u32 stage, const u32 (&words)[kWords]);

  // ---- scores and their gradients: steps.cuh
  void score_gradients();
  template <int kWords>
  void store_ds(const u32 (&of)[kWords]);

  // ---- rows that see no key: steps.cuh
  bool may_hide_rows() const;
  void hide_rows();
  void sync_hiding() const;
  void hide_slopes(u32 offsets);

  // ---- steps: steps.cuh
  void next_k();
  template <bool kMasked, bool kLast>
  void step(int next_bh, int next_block);
  template <bool kMasked, bool kLast>
  void exact_step(int next_bh, int next_block);
  template <bool kMasked, bool kLast>
  void keys_step(int next_bh, int next_block);
  template <bool kMasked, bool kLast>
  void dropout_step(int next_bh, int next_block);
  template <bool kMasked, bool kLast>
  void finish_step(u32 stage_q, int next_bh, int next_block);
  void take_next(int next_bh, int next_block);
  template <bool kBehind>
  void take_next_mask(int next_bh, int next_block);
  void await_buffer() const;
  void await_buffers() const;
  void first_step(const BlockRange& range);

  // ---- blocks of queries that list half of the tile's keys: passing.cuh
  bool is_mine() const;
  void pass_over();
  void announce_ds();
  void await_staged();
  void run_passing(int steps);

  // ---- tiles that are cut: stores.cuh

  // Where 32 columns at a time are staged on their way: a warp's own rows of V, of dS and of K,
  // whose products are done. There is room for most of a tile at once; rows of dS are taken again.
  static constexpr int kOfV = kConfig.v_registers() ? 0 : SharedPlan::panels(kDv);
  static constexpr int kOfS = 2 * (kM / 64);
  static constexpr int kOfK = kConfig.shape.k_stages == 2 ? SharedPlan::panels(kD) : 0;
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
  template <int kColumns>
  float* sums_at(float* sums, int tile) const;
  u32 place(int index) const;
  template <int kTurn>
  void add_sums(float* dv_sum, float* dk_sum);
  void add_part(bool any);
  void run_keys();

  // ---- dK and dV to memory: stores.cuh
  u32 staging(int index) const;
  void stage_words(const u32 (&words)[4], int k, int first) const;
  template <int kColumns>
  void stage(const float (&r)[kColumns / 2], float factor, int first) const;
  template <int kColumns>
  void stage_sums(float* sums, float factor, int first) const;
  static float number(u32 bits);
  template <int kColumns>
  void store_staged(const TensorMapBytes& map, int first) const;
  float values_factor() const;
  void stage_dv() const;
  void stage_dk(int first) const;
  void store_tile();
};

}  // namespace tilewise::bwd_sm90
