/// bwd_sm80 and bwd_dq_sm80: constants and parameters. See bwd_sm80/README.md.
#pragma once

#include "cuda/tile/dropout_args.h"
#include "cuda/tile/expression_args.h"
#include "cuda/tile/form_args.h"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::bwd_sm80 {

/// Which of a block's gradients are computed. One at a time halves the accumulators: large head
/// dims need it.
enum class Gradients : int { both, keys, values };

/// What shared memory and registers hold: literals of the tile.
struct Shape {
  int block_m = 64;   ///< query rows of a step (bwd_dq_sm80: of a block)
  int block_n = 128;  ///< keys of a block (bwd_dq_sm80: of a step)
  int warps = 4;
  int column_warps = 1;  ///< warps that share the same keys and halve queries and columns; 1: P, dS
                         ///< stay in registers
  int sub_m = 32;        ///< queries that a warp takes at a time
  int stages = 2;        ///< of Q and dO in shared memory (bwd_dq_sm80: of K and V)

  bool operator==(const Shape&) const = default;
};

/// Which gradients a launch writes.
struct Output {
  bool with_dq = true;  ///< one pass: dQ is accumulated in memory by atomic additions
  Gradients gradients = Gradients::both;  ///< both, unless with_dq is off and column_warps is 1
  /// Columns of the gradient, from `column` on, where it is not all: above 256, one gradient a
  /// launch. Gradients in Args begin there.
  int columns = 0, column = 0;

  bool operator==(const Output&) const = default;
};

struct Config {
  tile::Form form;
  int head_dim = 64;    ///< padded D
  int head_dim_v = 64;  ///< padded Dv
  Shape shape;
  bool modified = false;  ///< softcap, ALiBi, a scale that is not positive
  tile::PairKind pairs;   ///< a bias or a bool mask
  Output output;
  /// bwd_sm80: queries in parts; with dQ dK and dV are accumulated in memory too, without each part
  /// has its own. bwd_dq_sm80: keys in parts, each with its own dQ.
  bool split = false;
  bool two_plane = false;  ///< P and dS in two planes, where operands have one: small problems
  bool dropout = false;
  bool packed = false;                    ///< sequences beside each other: Args are RaggedArgs
  tile::Lists lists = tile::Lists::none;  ///< not beside `split`
  tile::Expressions expressions;          ///< with any, Args are Expressed

  /// A bias or a score function may shift rows so far that LSE lacks all of log l.
  [[nodiscard]] constexpr bool shifts() const {
    return expressions.shifts || pairs.bias != tile::BiasType::none;
  }
  /// Rows have a low part of lse2: there, and where operands have two planes' accuracy.
  [[nodiscard]] constexpr bool keeps_low() const { return form.scaled || shifts(); }

  [[nodiscard]] constexpr bool listed() const { return lists != tile::Lists::none; }

  bool operator==(const Config&) const = default;
};

/// One plane: up to this |lse2|, P of 16 bits does not show what LSE lacks of log l.
inline constexpr float kCoarseUnderBias = 512.0F;

struct Args {
  tile::View q, k, v, d_o;         ///< 16-bit elements, rows 16-byte aligned
  const float* q_scale = nullptr;  ///< (B, H, blocks of kScaleRows rows), scaled only
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  const float* do_scale = nullptr;
  int q_scale_blocks = 0, k_scale_blocks = 0;
  /// (B, Hq, rows_q): LSE * log2 e, +inf where nothing was seen: bwd_delta. Under a bias refine
  /// moves it where it is far from all logits.
  float* lse2 = nullptr;
  /// Likewise: what rounding took from lse2. With Config::keeps_low(), and for bwd_sinks.
  float* lse2_low = nullptr;
  float coarse = -1.0F;    ///< one plane: up to this |lse2| refine leaves blocks of rows alone
  float* delta = nullptr;  ///< (B, Hq, rows_q): rowsum(dO O) - dLSE; refine corrects it
  const float* d_lse = nullptr;  ///< (B, Hq, Sq), may be null; read by refine
  long long d_lse_b = 0, d_lse_h = 0, d_lse_s = 0;
  int rows_q = 0;          ///< seq_q rounded up to kScaleRows
  tile::View4 dq, dk, dv;  ///< gradients
  bool dq_vectors = false, dk_vectors = false,
       dv_vectors = false;  ///< rows 16-byte aligned, unit stride
  /// float32 sums in fragment order. One pass: zeroed, dk_sum and dv_sum with split. Two passes,
  /// with split: (parts, B, H, rows, D).
  float* dq_sum = nullptr;
  float* dk_sum = nullptr;
  float* dv_sum = nullptr;
  int rows_k = 0;   ///< rows of a head in dk_sum, dv_sum: a multiple of 16
  int rows_dq = 0;  ///< likewise in dq_sum, two passes
  int heads_q = 1, group = 1, seq_q = 0, seq_k = 0, head_dim = 0, head_dim_v = 0;
  int cols_q = 0, cols_k = 0, cols_v = 0, cols_o = 0;  ///< columns that rows hold: multiples of 8
  const int* key_lengths = nullptr;                    ///< (B), may be null
  long long key_lengths_b = 0;
  float scale = 0.0F, scale_log2 = 0.0F;  ///< scale, scale * log2 e
  float softcap = 0.0F;
  const float* alibi = nullptr;  ///< (B, Hq), may be null
  long long alibi_b = 0, alibi_h = 0;
  const float* sinks = nullptr;  ///< (Hq), may be null
  long long sinks_h = 0;
  tile::PairTensors pairs;  ///< as Config::pairs says
  tile::Positions positions;
  tile::TileOrder order;
  int queries_per_split = 0;  ///< multiple of block_m
  int keys_per_split = 0;     ///< multiple of bwd_dq_sm80's block_n
  tile::DropoutBits dropout;  ///< dropout only
  /// listed only: tiles of block_m queries for each block of keys (bwd_dq_sm80: of block_n keys for
  /// each block of queries).
  tile::TileLists lists;
};

/// Packed sequences, which are one entry of a batch for Args. Row statistics and the sums of dQ lie
/// in blocks of kScaleRows rows as tile/sequences.cuh counts them.
struct RaggedArgs {
  Args args;
  tile::Sequences queries, keys;
  /// As pack_rows lays rows out.
  bool chunked_q = false, chunked_k = false, chunked_v = false, chunked_o = false;
};

}  // namespace tilewise::bwd_sm80
