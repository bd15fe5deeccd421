/// bwd_sm90: constants and parameters. See bwd_sm90/README.md.
#pragma once

#include "cuda/tile/expression_args.h"
#include "cuda/tile/hopper/offsets_args.h"
#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/hopper/tile_counter_args.h"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/mask_args.h"
#include "cuda/tile/options_args.h"
#include "cuda/tile/order_args.h"
#include "cuda/tile/types.h"

namespace tilewise::bwd_sm90 {

using tile::Lengths;
using tile::Lists;
using tile::Mask;
using tile::Offsets;
using tile::SectionOrder;

/// What shared memory and registers hold: literals of the head dims.
struct Shape {
  int block_m = 64;      ///< queries of a step: 64 or 128
  int block_n = 128;     ///< keys of a tile: 128, large_dim(): 64
  int chunk_rows = 128;  ///< query rows that are prepared or converted together: at most 512
  int q_stages = 2;      ///< of Q in shared memory
  int do_stages = 2;     ///< of dO
  int k_stages = 1;      ///< of K: 2, and the next tile's comes while this one is computed
  /// Rows of dQ that the copy engine stores at once.
  constexpr int chunk_box() const { return chunk_rows < 256 ? chunk_rows : 256; }
  bool operator==(const Shape&) const = default;
};

/// What happens to a score between the product and the mask.
struct Logits {
  bool modified = false;  ///< logits are worked out before the mask: scale not positive, or
  bool softcap = false;   ///< (implies modified)
  bool alibi = false;     ///< where not modified also a score function like tile::Slant
  bool gated = false;     ///< the slope of the score function is not 1
  bool operator==(const Logits&) const = default;
};

/// How gradients are summed in memory.
struct Sums {
  bool deterministic = false;  ///< dQ in the order of the key blocks
  bool split = false;          ///< tiles are cut: dK, dV of the parts
  bool diagonals = false;      ///< dS by i - j too
  bool bias = false;           ///< dS is the gradient of the bias and added to its sums
  bool narrow = false;         ///< dQ has the head dim's columns, not those of whole panels
  bool operator==(const Sums&) const = default;
};

struct Config {
  tile::Element element = tile::Element::bf16;
  int head_dim = 128;    ///< padded D: 64, 80, 96, 128, 192, 256
  int head_dim_v = 128;  ///< padded Dv
  Shape shape;
  Mask mask = Mask::none;
  bool hides = false;  ///< dense: position leaves some rows no key
  Logits logits;
  bool two_plane = false;  ///< small problems: P and dS in two planes
  Sums sums;
  Lengths lengths = Lengths::dense;  ///< that the device must look up: then Args are RaggedArgs
  bool spans = false;  ///< packed: a section is a head's sequences of one span (sequences.cuh)
  Lists lists = Lists::none;  ///< of tiles of queries: then Args are ListArgs
  /// A list's blocks have 64 keys and at least block_m queries: a consumer passes over the blocks
  /// of queries that do not list its keys.
  bool passes = false;
  /// With any, Args are Expressed; beside a score function modified.
  tile::Expressions expressions;
  tile::OptionKinds options;  ///< with any, Args are Optioned
  bool operator==(const Config&) const = default;

  /// A bias or a score function may shift rows so far that LSE lacks all of log l: what it lacks
  /// comes beside it.
  constexpr bool shifts() const { return expressions.shifts || options.bias(); }
  /// Head dims above 128: the warpgroups share 64 keys and divide the products instead; dQ is left
  /// to bwd_dq_sm90.
  constexpr bool large_dim() const { return shape.block_n == 64; }
  /// The scores are summed from -LSE on.
  constexpr bool fold_lse() const { return !logits.modified; }
  /// V is held in registers as the A operand of dP.
  constexpr bool v_registers() const { return shape.block_m == 128; }
  /// Half of K's and V's columns is held in registers.
  constexpr bool half_registers() const {
    return large_dim() && head_dim == 256 && head_dim_v == 256 && !logits.softcap && !two_plane;
  }
  /// The slope of scores is kept until dS is made.
  constexpr bool gates() const { return logits.softcap || logits.gated; }
  /// Bytes of a slope in shared memory.
  constexpr int gate_bytes() const { return logits.gated && two_plane ? 4 : 2; }
  /// Columns of the sums of dQ: a multiple of 32, or whole panels.
  constexpr int columns_dq() const {
    const int unit = sums.narrow ? 32 : 64;
    return (head_dim + unit - 1) / unit * unit;
  }
  constexpr bool ragged() const { return lengths != Lengths::dense; }
  constexpr bool listed() const { return lists != Lists::none; }
  /// A mask function's map tells which tiles position and lengths alone cut, where position does.
  constexpr bool tells_placed() const {
    return lists == Lists::whole && expressions.mask != 0 && mask != Mask::none;
  }
  /// Whether position may leave a row no key.
  constexpr bool hides_rows() const { return hides || (ragged() && mask != Mask::none); }
  /// Whether a list, a function or a bool mask may.
  constexpr bool picks_rows() const {
    return listed() || expressions.any() || options.mask || options.bias();
  }
  constexpr int threads() const { return large_dim() ? 384 : 512; }
  static constexpr int dq_warps() { return 4; }  ///< that add to dQ
};

/// What lies where in shared memory, in bytes from its 1024-byte aligned start.
struct SharedPlan {
  static constexpr int kRoom = 227 * 1024;  ///< bytes that a block may have
  static constexpr int kPanelRow = 128;     ///< bytes: 64 columns
  static constexpr int kPanelAlign = 1024;  ///< of a panel's first byte
  static constexpr int kMostKept = 16 * 1024;
  static constexpr int kMostSpans = 16;
  static constexpr int kSpanTable = 8 * (kMostSpans + 2);       ///< where each begins; how many
  int k_stage, q_stage, do_stage, v_bytes, ds_buffer, dq_warp;  ///< sizes; a stage of Q takes O too
  int bias_panel;  ///< of 64 keys, two of which are a stage
  int k, v, q, d_o, p, ds, dq, bias, gate, offset, delta, low, barriers, slots, listed, spans,
      places, bytes;
  int kept;  ///< packed: bytes for the offsets of sequences

  static constexpr int panels(int columns) { return (columns + 63) / 64; }
  constexpr explicit SharedPlan(const Config& c)
      : k_stage(panels(c.head_dim) * c.shape.block_n * kPanelRow / (c.half_registers() ? 2 : 1)),
        q_stage(panels(c.head_dim > c.head_dim_v ? c.head_dim : c.head_dim_v) * c.shape.block_m *
                kPanelRow),
        do_stage(panels(c.head_dim_v) * c.shape.block_m * kPanelRow),
        v_bytes(panels(c.head_dim_v) * c.shape.block_n * kPanelRow / (c.half_registers() ? 2 : 1)),
        ds_buffer(c.shape.block_m / 64 * c.shape.block_n * kPanelRow),
        dq_warp(c.large_dim() ? 0 : 2 * 16 * 64 * 4),
        bias_panel(!c.options.bias()        ? 0
                   : c.options.pairs.staged ? c.shape.block_m * kPanelRow
                                            : kPanelAlign),
        k(0),
        v(k + k_stage * c.shape.k_stages),
        q(v + v_bytes),
        d_o(q + q_stage * c.shape.q_stages),
        p(d_o + do_stage * c.shape.do_stages),
        ds(p + (c.large_dim() ? 2 * ds_buffer : 0)),
        dq(ds + (!c.large_dim()       ? 2 * ds_buffer
                 : c.half_registers() ? k_stage
                                      : 0)),
        bias(dq + c.dq_warps() * dq_warp),
        gate(bias + 2 * bias_panel * c.shape.q_stages),
        offset(gate + (c.gates() && !c.large_dim() ? 128 * c.gate_bytes() * c.shape.block_m : 0)),
        delta(offset + c.shape.q_stages * c.shape.block_m * 4),
        low(delta + c.shape.do_stages * c.shape.block_m * 4),
        barriers(low + (c.shifts() ? c.shape.q_stages * c.shape.block_m * 4 : 0)),
        slots(barriers +
              (8 * (2 * c.shape.q_stages + 2 * c.shape.do_stages + 2 * c.shape.k_stages + 2 + 13) +
               15) /
                  16 * 16),
        listed(slots + 2 * slot_bytes(c)),
        spans(listed + (c.listed() ? (c.shape.q_stages + 2) * 16 : 0)),
        places(spans + (c.spans ? kSpanTable : 0)),
        bytes(places),
        kept(0) {
    if (c.lengths != Lengths::packed || c.large_dim()) return;
    const int fit = kRoom - places;
    kept = fit > kMostKept ? kMostKept : fit > 0 ? fit / 16 * 16 : 0;
    bytes += kept;
  }
  static constexpr int slot_bytes(const Config& c) {
    return (c.ragged() ? 32 : 16) + (c.listed() ? 16 : 0);
  }
};

/// Head dims above 128: as many stages as there is room for. A third of Q bridges what passes
/// between its last use and the next copy's landing; at dim 256 half of K and V makes room for it.
constexpr Config with_stages(Config c) {
  c.shape.q_stages = 3;
  if (SharedPlan(c).bytes > SharedPlan::kRoom) c.shape.q_stages = 2;
  c.shape.do_stages = 3;
  if (SharedPlan(c).bytes > SharedPlan::kRoom) c.shape.do_stages = 2;
  return c;
}

struct Args {
  tile::TensorMapBytes q, k, v, o, d_o, dq, dk, dv;
  /// split: of heads_k and group a key head counts as `sharers`, which divide its query heads.
  int heads_q = 1, heads_k = 1, group = 1, seq_q = 0, seq_k = 0;
  int rows_q = 0;  ///< seq_q rounded up to chunks: rows of a head in offset, delta, dq_sum
  int jobs = 0;
  float scale = 0.0F, scale_log2 = 0.0F;  ///< scale, scale * log2 e
  float offset_factor = 0.0F;             ///< of LSE to offset
  float scale_cap = 0.0F;                 ///< scale / softcap
  float cap_log2 = 0.0F;                  ///< softcap * log2 e, 0 = off
  const float* alibi = nullptr;           ///< (B, Hq), may be null
  long long alibi_b = 0, alibi_h = 0;
  int low = 0, high = 0;  ///< row i sees the keys j with i + low <= j < min(i + high, seq_k)
  SectionOrder order;     ///< of key blocks and key heads
  int lead = 1, lag = 1;  ///< sections that preparation runs ahead of tiles, and conversion behind
  bool last_first = false;  ///< key blocks from the last to the first
  int parts = 1;            ///< split: that a tile's queries are cut into; spans: blocks of one
  int sharers = 1;          ///< split: parts of a key head's query heads; 1 with parts above 1
  const float* lse_in = nullptr;
  long long lse_b = 0, lse_h = 0, lse_s = 0;
  const float* d_lse = nullptr;  ///< may be null
  long long d_lse_b = 0, d_lse_h = 0, d_lse_s = 0;
  const float* sinks = nullptr;  ///< (Hq), null where every row sees a key
  long long sinks_h = 0;
  const float* delta_in = nullptr;  ///< (B, Hq, delta_rows), less d_lse; null: rowsum(dO O)
  int delta_rows = 0;
  /// (B, Hq, rows_q): -LSE * log2 e; with fold_lse -LSE / scale, what the raw scores start from.
  float* offset = nullptr;
  float* delta = nullptr;   ///< (B, Hq, rows_q)
  float* dq_sum = nullptr;  ///< (B, Hq, rows_q, columns_dq), in fragment order
  /// split: (B, key heads, blocks, block_n, head_dim or head_dim_v) in fragment order, all zero at
  /// the start.
  float* dk_sum = nullptr;
  float* dv_sum = nullptr;
  // Counters, all zero at the start.
  unsigned* next_job = nullptr;
  unsigned* prepared = nullptr;  ///< (B, Hk) warps of chunks
  unsigned* finished = nullptr;  ///< (B, Hk) warps of tiles
  unsigned* added = nullptr;     ///< split: (B, key heads, blocks) warps of parts
  unsigned* turns = nullptr;     ///< deterministic: (B, Hq, rows_q / block_m, dq_warps)
  /// diagonals: (B, Hq, diagonal_count), at i - j + last_key, which is the last of the padded keys;
  /// float32, or tile::ExactSum where deterministic.
  float* diagonals = nullptr;
  int diagonal_count = 0, last_key = 0;
  /// Under a bias, (B, Hq, delta_rows): LSE in the log2 domain, +inf where nothing was seen, and
  /// what rounding took from it. `offset_low`: the latter, in rows as those of `offset`.
  const float *lse2_in = nullptr, *low_in = nullptr;
  float* offset_low = nullptr;
};

/// With lengths that only the device knows. Packed sequences are one entry of a batch for whatever
/// is counted above; sequence b, whose rows begin at r, has the chunks (blocks of keys) from
/// r / chunk_rows + b on, at most one more than it needs. The rows behind the last one count as one
/// more sequence, whose gradients are 0. Maps of rows that end where a sequence does have their row
/// axis twice: see tile::Offsets. `low` and `high` are without Sk - Sq, which the device adds.
struct DeviceLengths {
  int top = 0;                       ///< high is at most this
  const int* key_lengths = nullptr;  ///< (B)
  long long key_lengths_b = 0;
  Offsets cu_q, cu_k;  ///< packed
  int sequences = 0;
  int q_rows = 0, k_rows = 0;  ///< N of the maps (packed: all rows)
};
struct RaggedArgs : Args {
  // NOTE: aligned, or it might begin where Args has its last padding.
  alignas(64) DeviceLengths of;
};

/// With a block list: of each tile of keys the blocks of queries that see it, and of each block of
/// queries the tiles of keys.
struct ListArgs : RaggedArgs {
  alignas(64) tile::TileLists of_keys;
  tile::TileLists of_queries;  ///< deterministic only
};

}  // namespace tilewise::bwd_sm90
