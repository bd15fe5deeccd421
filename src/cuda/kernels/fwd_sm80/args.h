/// fwd_sm80: constants and parameters. See fwd_sm80/README.md.
#pragma once

#include "cuda/tile/dropout_args.h"
#include "cuda/tile/expression_args.h"
#include "cuda/tile/form_args.h"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::fwd_sm80 {

/// Where the keys of a row block lie: in a batch entry, in a packed sequence, in pages of a batch
/// entry.
enum class Keys : int { entry, packed, pages };

/// What shared memory and registers hold: literals of the tile.
struct Shape {
  int block_m = 128;  ///< B_r
  int block_n = 64;   ///< B_c
  int warps = 4;
  int key_warps = 1;  ///< warps that share rows, each with its part of a block's keys
  int stages = 2;     ///< of K and V in shared memory
  bool q_in_registers = false;

  bool operator==(const Shape&) const = default;
};

struct Config {
  tile::Form form;
  int head_dim = 64;    ///< padded D
  int head_dim_v = 64;  ///< padded Dv, or a slice of it
  int slices = 1;       ///< of padded Dv, one a launch
  Shape shape;
  bool positional = false;  ///< causal or window
  bool modified = false;    ///< softcap, ALiBi, a scale that is not positive
  tile::PairKind pairs;     ///< a bias or a bool mask
  bool split = false;       ///< keys in parts: O and LSE of each part to float32 workspace
  bool dropout = false;
  bool packed = false;  ///< queries of sequences beside each other
  Keys keys = Keys::entry;
  tile::Lists lists = tile::Lists::none;  ///< of tiles of keys, not beside `split`
  tile::Expressions expressions;          ///< with any, Args are Expressed

  constexpr bool paged() const { return keys == Keys::pages; }
  constexpr bool ragged() const { return packed || paged(); }  ///< Args are RaggedArgs
  constexpr bool listed() const { return lists != tile::Lists::none; }
  bool operator==(const Config&) const = default;
};

struct Args {
  tile::View q, k, v;              ///< 16-bit elements, rows 16-byte aligned
  const float* q_scale = nullptr;  ///< (B, H, blocks of kScaleRows rows), scaled only
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  int q_scale_blocks = 0, k_scale_blocks = 0;
  tile::View4 o;           ///< split: float32 workspace, stride_b per part
  bool o_vectors = false;  ///< rows of O are 16-byte aligned with unit stride
  float* lse = nullptr;    ///< may be null; split: m of all parts, then l of all parts
  long long lse_b = 0, lse_h = 0, lse_s = 0;
  long long o_split = 0, lse_split = 0;  ///< elements from one part to the next, split only
  int heads_q = 1, group = 1, seq_q = 0, seq_k = 0, head_dim_v = 0;
  int cols_q = 0, cols_k = 0, cols_v = 0;  ///< columns that rows hold: multiples of 8
  const int* key_lengths = nullptr;        ///< (B), may be null
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
  int keys_per_split = 0;     ///< multiple of block_n
  tile::DropoutBits dropout;  ///< dropout only
  tile::TileLists lists;      ///< listed only: tiles of block_n keys for each row block
};

/// With what only the device knows. Packed sequences are one entry of a batch for Args, the first
/// strides of `pages` are those of pages.
struct RaggedArgs {
  Args args;
  tile::Sequences queries, keys;                                 ///< packed; Keys::packed
  bool chunked_q = false, chunked_k = false, chunked_v = false;  ///< as pack_rows lays rows out
  tile::Pages pages;                                             ///< paged
};

}  // namespace tilewise::fwd_sm80
