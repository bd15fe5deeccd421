/// FlashAttention-2's backward on the CPU but for the products of a tile: what the float32 and the
/// bfloat16 rows share. Schedule: flash_bwd.md.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/flash/score_tile.h"
#include "cpu/flash/tiles.h"
#include "cpu/flash/visible.h"

namespace tilewise::cpu {

/// Padded sizes and the layout of the workspace.
struct BackwardGeometry {
  std::int64_t ld_q, ld_v;  ///< padded head dims
  Cuts keys;                ///< blocks of the longest key sequence
  std::int64_t pairs;       ///< (sequence, key head)
  std::int64_t dq_elems;    ///< one partial of dQ
  int splits, workers;
  int capture_parts;  ///< of the gradients of captured tensors; 0 where none is wanted

  /// `least_keys`: of a block of a list that has tiles of its own. `parts`: of each pair's keys; 0:
  /// as many as the threads ask for.
  BackwardGeometry(const Problem& p, const Micro& micro, int least_keys, int threads,
                   int parts = 0);
};

/// Threads and parts, by the model or as tuning wants them.
Form backward_form(const Problem& p, const Micro& micro, int least_keys, const Hardware& machine);

/// A block of keys of one (sequence, key head), and whose partial of dQ its share is added to.
struct KeyBlock {
  const Sequence& sequence;
  std::int64_t b, h_k, j0;
  int keys;
  int split;
};

class Backward {
 public:
  virtual ~Backward() = default;
  void run();

  /// The workspace as the constructor cuts it.
  static std::vector<MemoryPart> workspace_items(const Problem& p, const Micro& micro,
                                                 const BackwardGeometry& g);

 protected:
  /// Takes its parts from the front of the workspace.
  Backward(const Problem& p, const Micro& micro, const Context& context, WorkspaceCutter& cut);

  /// Query rows of a block, before any block of keys.
  virtual void pack_rows(const RowBlock& /*block*/) const {}
  /// Adds the block's share to its rows of dK (kTileKeys x ld_q) and dV (kTileKeys x ld_v), which
  /// are 0, and to dQ.
  virtual void key_block(const KeyBlock& block, int slot, float* dk, float* dv) const = 0;

  /// What is known of query row `row` (counted along the S axis) of (b, h), and of those after it.
  ScoreTileStep::Rows known(std::int64_t b, std::int64_t h, std::int64_t row) const;
  float* dq_rows(int split, std::int64_t b, std::int64_t h, std::int64_t row) const;
  /// body(place) for the tiles of a query head that see the block, of at most kTileRows rows, and
  /// of boundary_rows where position cuts them: columns end at the last key that a row sees. With
  /// `aligned`, tiles lie on the grid of kTileRows and begin at a multiple of boundary_rows.
  template <class Body>
  void for_tiles(const KeyBlock& block, std::int64_t head, int boundary_rows, bool aligned,
                 const Body& body) const {
    const std::int64_t h = block.h_k * p_.group() + head;
    const std::int64_t step = aligned ? boundary_rows : 1;
    KeyRange seeing = rows_that_see(block);
    seeing.begin = seeing.begin / step * step;
    for (const KeyRange& run : columns_.runs(block.b, h, block.j0, block.keys, seeing, step)) {
      for_tiles_of(block, h, run, boundary_rows, aligned, body);
    }
  }
  template <class Body>
  void for_tiles_of(const KeyBlock& block, std::int64_t h, KeyRange run, int boundary_rows,
                    bool aligned, const Body& body) const {
    std::int64_t rows = 0;
    for (std::int64_t i0 = run.begin; i0 < run.end; i0 += rows) {
      const std::int64_t most = aligned ? kTileRows - i0 % kTileRows : kTileRows;
      rows = std::min(most, run.end - i0);
      TilePlace tile{block.sequence,         block.b,    h,        i0, block.j0,
                     static_cast<int>(rows), block.keys, kTileKeys};
      if (tile_visibility(p_, tile) != Visibility::all) {
        rows = std::min<std::int64_t>(rows, boundary_rows);
      }
      const std::int64_t end = p_.visible_keys(block.sequence, i0 + rows - 1).end;
      tile.rows = static_cast<int>(rows);
      tile.cols = static_cast<int>(std::min<std::int64_t>(block.keys, end - block.j0));
      if (tile.cols <= 0) continue;  // a sequence without keys for these rows
      body(tile);
    }
  }
  ScoreTileStep::Scratch tile_scratch(int slot) const {
    ScoreTileStep::Scratch scratch = tile_.scratch(scratch_, slot);
    if (geometry_.capture_parts > 0) {
      scratch.capture_sums = capture_sums(part_of_[static_cast<std::size_t>(slot)]);
    }
    return scratch;
  }

  const Problem& p_;
  BackwardGeometry geometry_;
  ScoreTileStep tile_;
  ListedColumns columns_;

 private:
  template <class Body>
  void query_block(std::int64_t b, std::int64_t h, std::int64_t index, const Body& body) const;
  template <class Body>
  void for_query_blocks(const Body& body) const;
  void begin_rows(const RowBlock& block, int slot) const;
  void prepare_rows(const RowBlock& block) const;
  bool sees_nothing(std::int64_t b, std::int64_t h, std::int64_t row, bool finite) const;
  void key_block_task(std::int64_t pair, std::int64_t block, int split, int slot) const;
  KeyRange rows_that_see(const KeyBlock& block) const;
  void finish_rows(const RowBlock& block) const;
  void clear_bias_gradient(const RowBlock& block) const;
  void sink_gradient() const;

  double* capture_sums(int part) const {
    return capture_sums_ + part * tile_.capture_gradients().elems();
  }
  void run_key_blocks();
  void run_pairs();

  Executor& executor_;
  double* capture_sums_;
  std::vector<int> part_of_;  ///< by slot: the part of capture_sums_ that it is at
  float *delta_, *lse_low_, *dq_, *gradients_, *scratch_;
};

}  // namespace tilewise::cpu
