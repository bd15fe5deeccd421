/// fwd_sm90: the rows of a consumer warpgroup: which they are, and how they leave: LSE, O, or the
/// parts of both.
#pragma once

#include "cuda/kernels/fwd_sm90/scores.cuh"
#include "cuda/kernels/fwd_sm90/skip.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/hopper/tma.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

// ---- rows: 16 of a warp, two of a thread (r = 0, 1)

template <Config kConfig, class Consumer>
__forceinline__ int local_row(const Consumer& c, int r) {
  return c.warp * 16 + c.lane / 4 + 8 * r;
}
template <Config kConfig, class Consumer>
__forceinline__ int query(const Consumer& c, int first, int r) {
  return first + (kConfig.pack_heads ? local_row<kConfig>(c, r) >> c.args.pack_shift
                                     : local_row<kConfig>(c, r));
}
template <Config kConfig, class Consumer>
__forceinline__ int head(const Consumer& c, const Tile& t, int r) {
  if constexpr (!kConfig.pack_heads) return t.head;
  return t.head * c.args.group + (local_row<kConfig>(c, r) & ((1 << c.args.pack_shift) - 1));
}
/// The head of a row of the warpgroup that may be none: rows of a head that the group has not are
/// its last head's.
template <Config kConfig, class Consumer>
__forceinline__ int row_head(const Consumer& c, const Tile& t, int row) {
  if constexpr (!kConfig.pack_heads) return t.head;
  const int of_group = row & ((1 << c.args.pack_shift) - 1);
  return t.head * c.args.group + min(of_group, c.args.group - 1);
}
/// False for rows past the last query, and for heads that a group has not.
template <Config kConfig, class Consumer>
__forceinline__ bool exists(const Consumer& c, const Finished& done, int r) {
  bool in_group = true;
  if constexpr (kConfig.pack_heads)
    in_group = (local_row<kConfig>(c, r) & ((1 << c.args.pack_shift) - 1)) < c.args.group;
  return in_group && query<kConfig>(c, done.query, r) < queries<kConfig>(c.args, done.tile);
}

template <Config kConfig, class Consumer>
__forceinline__ void sync_warpgroup(const Consumer& c) {
  named_barrier_sync(8 + c.warpgroup, 128);
}

// ---- epilogue

/// Row of the parts' workspace, split only.
template <Config kConfig, class Consumer>
__forceinline__ i64 part_row(const Consumer& c, const Tile& t, int h, int i) {
  i64 row = t.q_begin + i;
  if constexpr (kConfig.lengths == Lengths::packed) {
    row += static_cast<i64>(h) * c.args.q_rows;
  } else {
    row += (static_cast<i64>(t.batch) * c.args.heads_q + h) * c.args.seq_q;
  }
  return t.split * c.args.part_rows + row;
}

/// Where LSE of the thread's row r goes; of a part m, whose l goes behind those of all parts.
template <Config kConfig, class Consumer>
__forceinline__ float* lse_place(const Consumer& c, const Finished& done, int r) {
  const int i = query<kConfig>(c, done.query, r), h = head<kConfig>(c, done.tile, r);
  if constexpr (kConfig.split) {
    return c.args.m_part + part_row<kConfig>(c, done.tile, h, i);
  } else {
    return c.args.lse + done.tile.batch * c.args.lse_b + h * c.args.lse_h +
           (done.tile.q_begin + i) * c.args.lse_s;
  }
}

/// (F9) A sink adds to the sum l in the first part: a key of its own that has no value.
/// Gives what the other keys' P are scaled by.
template <Config kConfig, class Consumer>
__forceinline__ float add_sink(Consumer& c, int r, float sink) {
  if (sink == -infinity()) return 1.0F;
  const float top = c.scores.l[r] == 0.0F ? sink : fmaxf(c.scores.m[r], sink);
  const float factor = c.scores.l[r] == 0.0F ? 0.0F : exp2_approx(c.scores.m[r] - top);
  c.scores.l[r] = c.scores.l[r] * factor + exp2_approx(sink - top);
  c.scores.m[r] = top;
  return factor;
}
/// The sink of the thread's row, log2 domain; -inf where there is none.
template <Config kConfig, class Consumer>
__forceinline__ float sink_of(const Consumer& c, const Tile& t, int r) {
  bool counts = !kConfig.split || t.split == 0;
  // Rows behind the last sequence see nothing.
  if constexpr (kConfig.lengths == Lengths::packed) counts &= t.batch < c.args.sequences;
  return counts
             ? kLog2e * c.scores.options->sinks[row_head<kConfig>(c, t, local_row<kConfig>(c, r)) *
                                                c.scores.options->sinks_h]
             : -infinity();
}

/// (F11) alpha = 1 / l, (F11) LSE = m + log l. The two rows beside each other and without
/// branches: nothing of this warpgroup runs meanwhile but the last product.
template <Config kConfig, class Consumer>
__forceinline__ void finish_rows(Consumer& c, const Finished& done) {
  const bool stores = c.lane % 4 == 0 && (kConfig.split || c.args.lse != nullptr);
  float* to[2] = {lse_place<kConfig>(c, done, 0), nullptr};
  float sinks[2] = {};
  if constexpr (kConfig.options.sinks) {
    sinks[0] = sink_of<kConfig>(c, done.tile, 0);
    sinks[1] = kConfig.pack_heads ? sink_of<kConfig>(c, done.tile, 1) : sinks[0];
  }
  if constexpr (kConfig.pack_heads) {
    to[1] = lse_place<kConfig>(c, done, 1);
  } else {
    to[1] = to[0] + 8 * (kConfig.split ? 1 : c.args.lse_s);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) c.scores.l[r] = quad_sum(c.scores.l[r]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float factor = 1.0F;
    if constexpr (kConfig.options.sinks) factor = add_sink<kConfig>(c, r, sinks[r]);
    // Where a key was seen l is at least 2^-8, so that nothing here is subnormal.
    c.scores.alpha[r] = c.scores.l[r] == 0.0F ? 0.0F : reciprocal_approx(c.scores.l[r]);
    if constexpr (kConfig.options.sinks) c.scores.alpha[r] *= factor;
    if constexpr (kConfig.options.dropout) c.scores.alpha[r] *= c.scores.options->dropout.scale;
    if constexpr (kConfig.split) {
      if (!stores || !exists<kConfig>(c, done, r)) continue;
      *to[r] = c.scores.l[r] == 0.0F ? -infinity() : c.scores.m[r];
      to[r][c.args.splits * c.args.part_rows] = c.scores.l[r];
    } else {
      float lse = (c.scores.m[r] + log2_approx(c.scores.l[r])) * kLn2;
      if constexpr (kConfig.options.bias())
        lse = c.scores.m[r] == kLowest ? least_bias(kConfig.options.pairs.bias) : lse;
      if (stores && exists<kConfig>(c, done, r)) *to[r] = lse;
    }
  }
  if constexpr (!kConfig.split && !kConfig.o_in_v()) {
    // O's staging place is free: own, when the tile before has been copied out; in Q's place,
    // when all four warps are done with Q.
    if (kConfig.shape.own_o && c.thread == 0) bulk_wait_read();
    sync_warpgroup<kConfig>(c);
  }
}

/// O leaves by way of `sO` in shared memory.
template <Config kConfig, class Consumer>
__forceinline__ void store_o(Consumer& c, const Finished& done, u32 sO) {
  if constexpr (kConfig.split) {
    store_parts<kConfig>(c, done);
  } else {
    const int row = c.warp * 16 + c.lane % 16;
#pragma unroll
    for (int k = 0; k < kConfig.head_dim_v / 16; ++k) {
      u32 words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = pack<kConfig.element>(c.rO[8 * k + 2 * i] * c.scores.alpha[i % 2],
                                         c.rO[8 * k + 2 * i + 1] * c.scores.alpha[i % 2]);
      }
      const int chunk = (k % 4 * 2 + c.lane / 16) ^ (row % 8);
      store_matrix_x4(sO + (k / 4) * SharedPlan::kPanel + row * kPanelRowBytes + chunk * 16, words);
    }
    fence_async_shared();
    sync_warpgroup<kConfig>(c);  // the whole warpgroup has staged its rows
    const bool exists = kConfig.lengths != Lengths::packed || done.query < done.tile.seq_q;
    if (c.thread == 0 && exists) {
      for (int p = 0; p < SharedPlan::panels(kConfig.head_dim_v); ++p) {
        const u32 from = sO + p * SharedPlan::kPanel;
        if constexpr (kQueryRank5<kConfig>) {
          int at[4];
          query_coordinates<kConfig>(at, c.args, done.tile, done.query);
          tma_store_5d(&c.args.o, from, p * kPanelColumns, at);
        } else {
          tma_store(&c.args.o, from, p * kPanelColumns, done.tile.head, done.query,
                    done.tile.batch);
        }
      }
      bulk_commit();
      if (!kConfig.shape.own_o) bulk_wait_read();
    }
  }
}

template <Config kConfig, class Consumer>
__forceinline__ void store_parts(const Consumer& c, const Finished& done) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!exists<kConfig>(c, done, r)) continue;
    const i64 row = part_row<kConfig>(c, done.tile, head<kConfig>(c, done.tile, r),
                                      query<kConfig>(c, done.query, r));
    float* to = c.args.o_part + row * kConfig.head_dim_v + 2 * (c.lane % 4);
#pragma unroll
    for (int j = 0; j < kConfig.head_dim_v / 8; ++j) {
      store_global_8(to + 8 * j, c.rO[4 * j + 2 * r] * c.scores.alpha[r],
                     c.rO[4 * j + 2 * r + 1] * c.scores.alpha[r]);
    }
  }
}

/// Behind the last product: O leaves, and what it is staged in place of is free.
template <Config kConfig, class Consumer>
__forceinline__ void finish_tile(Consumer& c, const Finished& done) {
  if constexpr (kConfig.o_in_v()) {
    c.wait_values();
    sync_warpgroup<kConfig>(c);  // all four warps are done with V
    store_o<kConfig>(c, done, c.shared.v(static_cast<int>(c.rV.slot)));
    c.release_v();
  } else {
    c.finish_values();
    skip_left<kConfig>(c);
    store_o<kConfig>(c, done, c.shared.o(c.warpgroup));
    if constexpr (kConfig.o_in_q()) c.release_q();
  }
}

}  // namespace tilewise::fwd_sm90
