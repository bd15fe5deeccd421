/// fwd_sm90: the rows of a consumer warpgroup: which they are, and how they leave: LSE, O, or the
/// parts of both.
#pragma once

#include "cuda/kernels/fwd_sm90/scores.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/warpgroup.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Rows : Scores<kConfig> {
  using Base = Scores<kConfig>;
  using Base::alpha, Base::l, Base::m;
  static constexpr int kDv = kConfig.head_dim_v;
  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, thread, warp, lane;  ///< thread, warp: of the warpgroup
  float rO[kDv / 2];

  __forceinline__ Rows(const Args& a, u32 shared_base, int group)
      : args(a),
        shared{shared_base},
        warpgroup(group),
        thread(static_cast<int>(threadIdx.x) & 127),
        warp(thread / 32),
        lane(thread % 32) {}

  // ---- rows: 16 of a warp, two of a thread (r = 0, 1)

  __forceinline__ int local_row(int r) const { return warp * 16 + lane / 4 + 8 * r; }
  __forceinline__ int query(int first, int r) const {
    return first + (kConfig.pack_heads ? local_row(r) >> args.pack_shift : local_row(r));
  }
  __forceinline__ int head(const Tile& t, int r) const {
    if constexpr (!kConfig.pack_heads) return t.head;
    return t.head * args.group + (local_row(r) & ((1 << args.pack_shift) - 1));
  }
  /// Of a row of the warpgroup that may be none: those of a head that the group has not are its
  /// last head's.
  __forceinline__ int row_head(const Tile& t, int row) const {
    if constexpr (!kConfig.pack_heads) return t.head;
    const int of_group = row & ((1 << args.pack_shift) - 1);
    return t.head * args.group + min(of_group, args.group - 1);
  }
  /// False for rows past the last query, and for heads that a group has not.
  __forceinline__ bool exists(const Finished& done, int r) const {
    bool in_group = true;
    if constexpr (kConfig.pack_heads)
      in_group = (local_row(r) & ((1 << args.pack_shift) - 1)) < args.group;
    return in_group && query(done.query, r) < queries<kConfig>(args, done.tile);
  }

  __forceinline__ void sync_warpgroup() const { named_barrier_sync(8 + warpgroup, 128); }

  // ---- epilogue

  /// Row of the parts' workspace, split only.
  __forceinline__ i64 part_row(const Tile& t, int h, int i) const {
    i64 row = t.q_begin + i;
    if constexpr (kConfig.lengths == Lengths::packed) {
      row += static_cast<i64>(h) * args.q_rows;
    } else {
      row += (static_cast<i64>(t.batch) * args.heads_q + h) * args.seq_q;
    }
    return t.split * args.part_rows + row;
  }

  /// Where LSE of the thread's row r goes; of a part m, whose l goes behind those of all parts.
  __forceinline__ float* lse_place(const Finished& done, int r) const {
    const int i = query(done.query, r), h = head(done.tile, r);
    if constexpr (kConfig.split) {
      return args.m_part + part_row(done.tile, h, i);
    } else {
      return args.lse + done.tile.batch * args.lse_b + h * args.lse_h +
             (done.tile.q_begin + i) * args.lse_s;
    }
  }

  /// (F9) A sink adds to the sum l in the first part: a key of its own that has no value.
  /// Gives what the other keys' P are scaled by.
  __forceinline__ float add_sink(int r, float sink) {
    if (sink == -infinity()) return 1.0F;
    const float top = l[r] == 0.0F ? sink : fmaxf(m[r], sink);
    const float factor = l[r] == 0.0F ? 0.0F : exp2_approx(m[r] - top);
    l[r] = l[r] * factor + exp2_approx(sink - top);
    m[r] = top;
    return factor;
  }
  /// Of the thread's row, log2 domain; -inf where there is none.
  __forceinline__ float sink_of(const Tile& t, int r) const {
    bool counts = !kConfig.split || t.split == 0;
    // Rows behind the last sequence see nothing.
    if constexpr (kConfig.lengths == Lengths::packed) counts &= t.batch < args.sequences;
    return counts
               ? kLog2e * this->options->sinks[row_head(t, local_row(r)) * this->options->sinks_h]
               : -infinity();
  }

  /// (F11) alpha = 1 / l, (F11) LSE = m + log l. The two rows beside each other and without
  /// branches: nothing of this warpgroup runs meanwhile but the last product.
  __forceinline__ void finish_rows(const Finished& done) {
    const bool stores = lane % 4 == 0 && (kConfig.split || args.lse != nullptr);
    float* to[2] = {lse_place(done, 0), nullptr};
    float sinks[2] = {};
    if constexpr (kConfig.options.sinks) {
      sinks[0] = sink_of(done.tile, 0);
      sinks[1] = kConfig.pack_heads ? sink_of(done.tile, 1) : sinks[0];
    }
    if constexpr (kConfig.pack_heads) {
      to[1] = lse_place(done, 1);
    } else {
      to[1] = to[0] + 8 * (kConfig.split ? 1 : args.lse_s);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) l[r] = quad_sum(l[r]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float factor = 1.0F;
      if constexpr (kConfig.options.sinks) factor = add_sink(r, sinks[r]);
      // Where a key was seen l is at least 2^-8, so that nothing here is subnormal.
      alpha[r] = l[r] == 0.0F ? 0.0F : reciprocal_approx(l[r]);
      if constexpr (kConfig.options.sinks) alpha[r] *= factor;
      if constexpr (kConfig.options.dropout) alpha[r] *= this->options->dropout.scale;
      if constexpr (kConfig.split) {
        if (!stores || !exists(done, r)) continue;
        *to[r] = l[r] == 0.0F ? -infinity() : m[r];
        to[r][args.splits * args.part_rows] = l[r];
      } else {
        float lse = (m[r] + log2_approx(l[r])) * kLn2;
        if constexpr (kConfig.options.bias())
          lse = m[r] == kLowest ? least_bias(kConfig.options.pairs.bias) : lse;
        if (stores && exists(done, r)) *to[r] = lse;
      }
    }
    if constexpr (!kConfig.split) {
      // O's staging place is free: own, when the tile before has been copied out; in Q's place,
      // when all four warps are done with Q.
      if (kConfig.shape.own_o && thread == 0) bulk_wait_read();
      sync_warpgroup();
    }
  }

  __forceinline__ void store_o(const Finished& done) {
    if constexpr (kConfig.split) {
      store_parts(done);
    } else {
      const u32 sO = shared.o(warpgroup);
      const int row = warp * 16 + lane % 16;
#pragma unroll
      for (int k = 0; k < kDv / 16; ++k) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = pack<kConfig.element>(rO[8 * k + 2 * i] * alpha[i % 2],
                                           rO[8 * k + 2 * i + 1] * alpha[i % 2]);
        }
        const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
        store_matrix_x4(sO + (k / 4) * SharedPlan::kPanel + row * kPanelRowBytes + chunk * 16,
                        words);
      }
      fence_async_shared();
      sync_warpgroup();  // the whole warpgroup has staged its rows
      const bool exists = kConfig.lengths != Lengths::packed || done.query < done.tile.seq_q;
      if (thread == 0 && exists) {
        for (int p = 0; p < SharedPlan::panels(kDv); ++p) {
          const u32 from = sO + p * SharedPlan::kPanel;
          if constexpr (kQueryRank5<kConfig>) {
            int at[4];
            query_coordinates<kConfig>(at, args, done.tile, done.query);
            tma_store_5d(&args.o, from, p * kPanelColumns, at);
          } else {
            tma_store(&args.o, from, p * kPanelColumns, done.tile.head, done.query,
                      done.tile.batch);
          }
        }
        bulk_commit();
        if (!kConfig.shape.own_o) bulk_wait_read();
      }
    }
  }

  __forceinline__ void store_parts(const Finished& done) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists(done, r)) continue;
      const i64 row = part_row(done.tile, head(done.tile, r), query(done.query, r));
      float* to = args.o_part + row * kDv + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kDv / 8; ++j) {
        store_global_8(to + 8 * j, rO[4 * j + 2 * r] * alpha[r], rO[4 * j + 2 * r + 1] * alpha[r]);
      }
    }
  }
};

}  // namespace tilewise::fwd_sm90
