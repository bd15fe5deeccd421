/// decode_sm90: constants and parameters. See decode_sm90/README.md.
#pragma once

#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/hopper/tile_counter_args.h"
#include "cuda/tile/key_parts_args.h"
#include "cuda/tile/options_args.h"
#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::decode_sm90 {

/// Keys of a block, the unit of the ring.
inline constexpr int kBlockN = 64;
/// Warps that compute, and those before them, which copy.
inline constexpr int kWarps = 4, kProducerWarps = 4;

/// Panels of 64 columns that one box brings, those of a row next to each other: memory is read 256
/// bytes or more at a place.
constexpr int panels_beside(int panels) { return panels == 4 ? 2 : panels; }

struct Config {
  tile::Element element = tile::Element::bf16;
  int head_dim = 128;    ///< padded D, a multiple of 64
  int head_dim_v = 128;  ///< padded Dv, a multiple of 64
  int row_warps = 1;     ///< 16 rows each; the other warps share rows and divide a block's keys
  int stages = 3;        ///< blocks of K and V in shared memory
  int blocks = 2;        ///< on a multiprocessor
  /// Rows of the copy engine's boxes: 16, 32 or 64, all in one page. 0: K and V come row by row, by
  /// cp.async.
  int box_rows = kBlockN;
  bool whole_rows = true;  ///< a box has panels_beside() panels of a row, not one
  bool paged = false;      ///< through a page table
  bool modified = false;   ///< softcap, ALiBi, a scale that is not positive
  bool tree = false;       ///< words say which of the last keys, the queries' own, a query sees
  constexpr int tile_rows() const { return 16 * row_warps; }
  bool operator==(const Config&) const = default;
};

/// What lies where in shared memory, in bytes from its 1024-byte aligned start.
struct SharedPlan {
  static constexpr int kItem = 32, kItems = 4;  ///< announced items
  int k_stage, v_stage, merged;                 ///< sizes; merged: m, l and O of a warp's rows
  int k, v, merge, barriers, items, bytes;

  constexpr explicit SharedPlan(const Config& c)
      : k_stage(kBlockN * c.head_dim * 2),
        v_stage(kBlockN * c.head_dim_v * 2),
        merged(16 * c.head_dim_v * 4 + 128),
        k(0),
        v(k + k_stage * c.stages),
        merge(v + v_stage * c.stages),
        barriers(merge + (c.row_warps < kWarps ? kWarps / 2 * merged : 0)),
        items(barriers + 8 * (2 * c.stages + 2 * kItems)),
        bytes(items + kItems * kItem) {}
};

struct Args {
  tile::TensorMapBytes k_map, v_map;  ///< boxes
  tile::View q;                       ///< 16-bit elements, rows 4-byte aligned
  tile::View k, v;                    ///< rows: 16-byte aligned; stride_b is a page's when paged
  tile::View4 o;
  bool o_pairs = false;  ///< columns of O can be stored two at a time
  float* lse = nullptr;  ///< may be null
  long long lse_b = 0, lse_h = 0, lse_s = 0;
  int batch = 0, heads_q = 1, heads_k = 1, group = 1;
  int head_dim_v = 0;                      ///< columns of O
  int cols_q = 0, cols_k = 0, cols_v = 0;  ///< columns that rows hold: multiples of 8
  int row_tiles = 1;                       ///< of 16 * row_warps rows
  unsigned long long policy = 0;           ///< of the L2 cache for K and V
  float scale = 0.0F, scale_log2 = 0.0F;   ///< scale, scale * log2 e
  float softcap = 0.0F;
  const float* alibi = nullptr;  ///< (B, Hq), may be null
  long long alibi_b = 0, alibi_h = 0;
  const float* sinks = nullptr;  ///< (Hq), may be null
  long long sinks_h = 0;
  tile::Pages pages;    ///< paged
  tile::KeyParts keys;  ///< lengths, positions and parts; kBlockN divides keys.keys
  tile::TileCounter counter;
  // Entries with more than one part.
  int most_parts = 1;
  long long part_rows = 0;  ///< rows of all entries and heads
  int part_columns = 0;     ///< of o_part
  float* o_part = nullptr;  ///< (part, row, column)
  float* m_part = nullptr;  ///< (part, row), and l behind it
  tile::TreeBits tree;
};

}  // namespace tilewise::decode_sm90
