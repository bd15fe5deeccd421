/// bwd_short_sm90: constants and parameters. See bwd_short_sm90/README.md.
#pragma once

#include "cuda/tile/hopper/offsets_args.h"
#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/hopper/tile_counter_args.h"
#include "cuda/tile/mask_args.h"
#include "cuda/tile/types.h"

namespace tilewise::bwd_short_sm90 {

using tile::Lengths;
using tile::Mask;
using tile::Offsets;
using tile::TileCounter;

inline constexpr int kRows = 64;          ///< of a warpgroup in a pass; that pass by in a step
inline constexpr int kBlock = 2 * kRows;  ///< rows of a pass
inline constexpr int kThreads = 384;
/// Query rows of a job's heads at most: their statistics lie in shared memory. Beside halves there
/// is room for fewer.
inline constexpr int kMostRows = 2048, kMostRowsOfHalves = 1024;
/// Packed sequences at most that come in the order of their sizes.
inline constexpr int kMostSorted = 512;

struct Config {
  tile::Element element = tile::Element::bf16;
  int head_dim = 128;    ///< padded D: 64, 96, 128
  int head_dim_v = 128;  ///< padded Dv
  int kept = 1;          ///< buffers of the rows that a pass keeps: 1 or 2
  int stages = 2;        ///< of the rows that pass by
  int stages_v = 0;      ///< of dO or V where they have stages of their own ("halves"), or 0
  Mask mask = Mask::none;
  Lengths lengths = Lengths::dense;  ///< or packed
  bool cut = false;                  ///< a job is one pass, not all of a key head
  bool helped = false;               ///< who computes helps with the statistics
  bool two_plane = false;            ///< small problems: P and dS in two planes
  bool refined = false;              ///< delta comes from P; not with cut
  bool shares = false;  ///< a job is all of a query head: the last of a group sums dK and dV
  bool operator==(const Config&) const = default;

  /// Whether position may leave a row no key.
  constexpr bool hides_rows() const { return lengths == Lengths::packed && mask != Mask::none; }
  constexpr bool halves() const { return stages_v > 0; }
  constexpr int most_rows() const { return halves() ? kMostRowsOfHalves : kMostRows; }
  /// Statistics find their rows in the L2 cache, where few copies are under way at a time.
  constexpr bool fetches() const { return ragged() || shares; }
  /// Registers of a thread that computes, and of others: 3 x 168 for the three warpgroups.
  constexpr int registers() const {
    return head_dim + head_dim_v <= 128 ? 208 : fetches() ? 224 : 232;
  }
  constexpr int other_registers() const { return 504 - 2 * registers(); }
  /// The name that bwd_sm90's lookups ask for.
  constexpr bool ragged() const { return lengths != Lengths::dense; }
};

/// What lies where in shared memory, in bytes from its 1024-byte aligned start.
struct SharedPlan {
  static constexpr int kRoom = 227 * 1024;    ///< bytes that a block may have
  static constexpr int kPanel = kRows * 128;  ///< 64 rows x 64 columns
  static constexpr int kSlot = 32;            ///< an announced job
  int columns, columns_v;                     ///< bytes of 64 rows of Q, K; of dO, V
  int kept, stage;                            ///< sizes of a buffer and of a stage
  int known;                                  ///< bytes of one of the statistics
  int stages, stages_v, statistics, barriers, slots, order, bytes;

  static constexpr int panels(int columns) { return (columns + 63) / 64; }
  constexpr explicit SharedPlan(const Config& c)
      : columns(panels(c.head_dim) * kPanel),
        columns_v(panels(c.head_dim_v) * kPanel),
        kept(2 * (columns + columns_v)),
        stage(c.halves() ? columns : columns + columns_v),
        known(4 * c.most_rows()),
        stages(c.kept * kept),
        stages_v(stages + c.stages * stage),
        statistics(stages_v + c.stages_v * columns_v),
        barriers(statistics + 4 * known),
        slots(barriers + (8 * (2 * (c.stages + c.stages_v) + 12) + 15) / 16 * 16),
        order(slots + 2 * kSlot),
        bytes(order + (c.ragged() ? 4 * kMostSorted
                       : c.shares ? 16
                                  : 0)) {}
};

/// Four stages, so that the warpgroups may drift apart; two buffers where there is room for both.
constexpr Config with_stages(Config c) {
  c.stages = 4;
  c.kept = 2;
  if (SharedPlan(c).bytes > SharedPlan::kRoom) c.kept = 1;
  return c;
}

/// Two buffers at dim 128 too, so that the next pass's rows come while this one computes: K, or Q,
/// lies in three stages and V, or dO, which a step lets go of earlier, in two.
constexpr Config with_halves(Config c) {
  c.kept = 2;
  c.stages = 3;
  c.stages_v = 2;
  return c;
}

/// Rows of 16-bit elements, in elements.
struct Rows {
  const void* data = nullptr;
  long long b = 0, h = 0, s = 0;
};

/// NOTE: maps of packed sequences have their row axis twice: see tile::Offsets.
struct Args {
  tile::TensorMapBytes q, k, v, d_o, dq, dk, dv;  ///< boxes of 64 rows
  Rows o_rows, d_o_rows;
  int head_dim_v = 0;  ///< multiple of 8
  int heads_q = 1, heads_k = 1, group = 1, seq_q = 0, seq_k = 0;
  int batch = 1;  ///< packed: sequences
  int jobs = 0;
  float scale = 0.0F, scale_log2 = 0.0F;  ///< scale, scale * log2 e
  /// Row i sees the keys j with i + low <= j < min(i + high, seq_k). Packed: without Sk - Sq, which
  /// the device adds; then high is at most `top`.
  int low = 0, high = 0, top = 0;
  const float* lse = nullptr;
  long long lse_b = 0, lse_h = 0, lse_s = 0;
  const float* d_lse = nullptr;  ///< may be null
  long long d_lse_b = 0, d_lse_h = 0, d_lse_s = 0;
  TileCounter counter;  ///< where there are more jobs than blocks
  /// shares: heads_k counts the `sharers` of each key head, group is 1. For (entry, key head, pass
  /// over keys, warpgroup): who comes last, and the sharers' dV and dK in fragment order.
  TileCounter sharers_done;
  float* parts = nullptr;
  int sharers = 1;
  Offsets cu_q, cu_k;          ///< packed
  int q_rows = 0, k_rows = 0;  ///< packed: all rows, N of the maps
};

}  // namespace tilewise::bwd_short_sm90
