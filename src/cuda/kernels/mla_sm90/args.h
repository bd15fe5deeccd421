/// mla_sm90: constants and parameters. See mla_sm90/README.md.
#pragma once

#include "cuda/kernels/decode_sm90/args.h"

namespace tilewise::mla_sm90 {

inline constexpr int kHeadDim = 576, kHeadDimV = 512;
/// Rows of a tile and keys of a block.
inline constexpr int kRows = 64, kBlockN = decode_sm90::kBlockN;
/// Warpgroups that compute: each has half of O's columns, and the scores of every second block.
inline constexpr int kWarpgroups = 2;
inline constexpr int kStages = 2;
/// Keys of the copy engine's boxes, all in one page, and pieces of the columns that they have.
inline constexpr int kBoxRows = 8, kPieces = 3;

struct Config {
  tile::Element element = tile::Element::bf16;
  bool paged = false;  ///< through a page table
  /// At most 16 rows: keys are the rows of products, queries their columns, and the two warpgroups
  /// take whole blocks in turn.
  bool few = false;
  bool operator==(const Config&) const = default;
};

/// Sizes in shared memory, in bytes but the last two.
struct Sizes {
  static constexpr int kBox = kBoxRows * kHeadDim * 2;      ///< panels of 8 rows x 64 columns
  static constexpr int kStage = kBlockN / kBoxRows * kBox;  ///< a block of keys
  static constexpr int kMaxima = 64, kSums = 64;            ///< of a warp's 16 rows
  static constexpr int kItem = decode_sm90::SharedPlan::kItem;
  static constexpr int kItems = decode_sm90::SharedPlan::kItems;
  static constexpr int kBarriers = (1 + kPieces) * kStages + 4 * kWarpgroups + 2 + 2 * kItems;
};

/// What lies where in shared memory, in bytes from its 1024-byte aligned start.
struct SharedPlan : Sizes {
  static constexpr int kPanel = kRows * 128;    ///< of Q: 64 rows x 64 columns
  static constexpr int kPassed = 32 * kBlockN;  ///< a warp's P as its lanes hold it

  int q = 0;
  int k = q + kHeadDim / 64 * kPanel;
  int passed = k + kStages * kStage;
  int maxima = passed + 4 * kPassed;
  int sums = maxima + 4 * kMaxima;  ///< of this item and the one before
  int barriers = sums + 2 * kWarpgroups * 4 * kSums;
  int items = (barriers + 8 * kBarriers + 15) / 16 * 16;
  int bytes = items + kItems * kItem;
};

/// The same where there are at most 16 rows.
struct FewPlan : Sizes {
  static constexpr int kFewRows = 16;
  static constexpr int kPanel = kFewRows * 128;  ///< of Q
  static constexpr int kPassed = kBlockN * 128;  ///< P of a block, rows of 64 columns
  static constexpr int kMergedRow = 4 * (kHeadDimV + 4);

  int q = 0;
  int k = q + kHeadDim / 64 * kPanel;
  int passed = k + kStages * kStage;
  int merged = passed + kWarpgroups * kPassed;  ///< O of a warpgroup's blocks
  int maxima = merged + kFewRows * kMergedRow;
  int sums = maxima + kWarpgroups * 4 * kMaxima;
  int merged_maxima = sums + kWarpgroups * 4 * kSums;
  int barriers = merged_maxima + kMaxima;
  int items = (barriers + 8 * kBarriers + 15) / 16 * 16;
  int bytes = items + kItems * kItem;
};

using Args = decode_sm90::Args;

}  // namespace tilewise::mla_sm90
