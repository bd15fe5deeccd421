/// bwd_dq_sm90: constants and parameters. See bwd_sm90/dq/README.md.
#pragma once

#include "cuda/kernels/bwd_sm90/args.h"
#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/types.h"

namespace tilewise::bwd_dq_sm90 {

using bwd_sm90::DeviceLengths;
using bwd_sm90::Lengths;
using bwd_sm90::Mask;
using bwd_sm90::SectionOrder;

inline constexpr int kWarpgroups = 2;  ///< that compute, 64 queries each
inline constexpr int kBlockM = 64 * kWarpgroups;
inline constexpr int kBlockN = 64;  ///< keys of a step
inline constexpr int kThreads = 128 * (1 + kWarpgroups);

struct Config {
  tile::Element element = tile::Element::bf16;
  int head_dim = 256;    ///< padded D: 64, 96, 128, 192, 256
  int head_dim_v = 256;  ///< padded Dv
  int k_stages = 2;      ///< of K in shared memory
  int v_stages = 1;
  Mask mask = Mask::none;
  bwd_sm90::Logits logits;           ///< modified where there is ALiBi
  bool two_plane = false;            ///< small problems: dS in two planes
  bool ping_pong = false;            ///< the warpgroups take turns at issuing products
  Lengths lengths = Lengths::dense;  ///< that the device must look up: then Args are RaggedArgs
  bool operator==(const Config&) const = default;
  constexpr bool ragged() const { return lengths != Lengths::dense; }
};

/// What lies where in shared memory, in bytes from its 1024-byte aligned start.
struct SharedPlan {
  static constexpr int kPanel = 64 * 128;  ///< 64 rows x 64 columns
  int columns, columns_v;                  ///< bytes of 64 rows of Q, K; of dO, V
  int q, d_o, k, v, barriers, slots, bytes;

  static constexpr int panels(int columns) { return (columns + 63) / 64; }
  constexpr explicit SharedPlan(const Config& c)
      : columns(panels(c.head_dim) * kPanel),
        columns_v(panels(c.head_dim_v) * kPanel),
        q(0),
        d_o(q + columns * kWarpgroups),
        k(d_o + columns_v * kWarpgroups),
        v(k + columns * c.k_stages),
        barriers(v + columns_v * c.v_stages),
        slots(barriers + 8 * (2 * c.k_stages + 2 * c.v_stages + 4 * kWarpgroups + 4)),
        bytes(slots + 2 * (c.ragged() ? 32 : 16)) {}
};

/// The config that goes with one of bwd_sm90 that leaves dQ out: as many stages as there is room
/// for.
constexpr Config config_beside(const bwd_sm90::Config& of) {
  constexpr int kRoom = 227 * 1024;
  Config c;
  c.element = of.element;
  c.head_dim = of.head_dim;
  c.head_dim_v = of.head_dim_v;
  c.mask = of.mask;
  c.logits = of.logits;
  c.two_plane = of.two_plane;
  c.lengths = of.lengths;
  c.k_stages = 3;
  if (SharedPlan(c).bytes > kRoom) c.k_stages = 2;
  c.v_stages = 2;
  if (SharedPlan(c).bytes > kRoom) c.v_stages = 1;
  // Measured: with two stages whoever waits for keys holds the other up.
  c.ping_pong = c.k_stages > 2;
  return c;
}

struct Args {
  tile::TensorMapBytes q, k, v, d_o, dq;  ///< boxes of 64 rows
  int heads_q = 1, heads_k = 1, group = 1, seq_q = 0, seq_k = 0;
  int rows_q = 0;  ///< of a head in offset and delta
  int tiles = 0;
  SectionOrder order;                     ///< of blocks of queries and query heads
  float scale = 0.0F, scale_log2 = 0.0F;  ///< scale, scale * log2 e
  float offset_factor = 1.0F;             ///< of `offset` to -LSE * log2 e
  float scale_cap = 0.0F;                 ///< scale / softcap
  float cap_log2 = 0.0F;                  ///< softcap * log2 e, 0 = off
  const float* alibi = nullptr;           ///< (B, Hq), may be null
  long long alibi_b = 0, alibi_h = 0;
  int low = 0, high = 0;  ///< row i sees the keys j with i + low <= j < min(i + high, seq_k)
  // What bwd_sm90 prepares: (B, Hq, rows_q), -LSE in some domain and rowsum(dO O) - dLSE.
  const float* offset = nullptr;
  const float* delta = nullptr;
  // Counters of bwd_sm90: (B, Hk), warps that have prepared rows, and how many there are.
  const unsigned* prepared = nullptr;
  unsigned warps = 0;
  unsigned* next_tile = nullptr;  ///< zero at the start
};

/// With lengths that only the device knows: blocks of queries as bwd_sm90 has chunks of them.
struct RaggedArgs : Args {
  // NOTE: aligned, or it might begin where Args has its last padding.
  alignas(64) DeviceLengths of;
};

/// What bwd_sm90 was given; without the order of the tiles and their counter.
inline Args args_beside(const bwd_sm90::Config& config, const bwd_sm90::Args& of) {
  Args args;
  args.q = of.q, args.k = of.k, args.v = of.v, args.d_o = of.d_o, args.dq = of.dq;
  args.heads_q = of.heads_q, args.heads_k = of.heads_k, args.group = of.group;
  args.seq_q = of.seq_q, args.seq_k = of.seq_k, args.rows_q = of.rows_q;
  args.scale = of.scale, args.scale_log2 = of.scale_log2;
  args.offset_factor = config.fold_lse() ? of.scale_log2 : 1.0F;
  args.scale_cap = of.scale_cap, args.cap_log2 = of.cap_log2;
  args.alibi = of.alibi, args.alibi_b = of.alibi_b, args.alibi_h = of.alibi_h;
  args.low = of.low, args.high = of.high;
  args.offset = of.offset, args.delta = of.delta;
  args.prepared = of.prepared;
  args.warps = static_cast<unsigned>(of.rows_q / config.shape.chunk_rows * of.group * 8);
  return args;
}

}  // namespace tilewise::bwd_dq_sm90
