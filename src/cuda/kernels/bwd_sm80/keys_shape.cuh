/// bwd_sm80: what a config makes of a block: fragments of a warp, and what lies where in shared
/// memory.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/listed.cuh"
#include "cuda/tile/pairs.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::bwd_sm80 {

using namespace tile;

template <Config kConfig>
struct KeyShape {
  static constexpr Element kElement = kConfig.form.element;
  static constexpr int kPlanes = kConfig.form.planes;
  static constexpr int kThreads = kConfig.shape.warps * 32;
  static constexpr int kBlockM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr int kColumnWarps = kConfig.shape.column_warps;
  /// Columns of dK and dV.
  static constexpr int kColsK = kConfig.output.columns > 0 ? kConfig.output.columns : kD;
  static constexpr int kColsV = kConfig.output.columns > 0 ? kConfig.output.columns : kDv;
  static constexpr int kKeyWarps = kConfig.shape.warps / kColumnWarps;
  static constexpr int kKeys = kBlockN / kKeyWarps;  ///< of a warp
  static constexpr int kM = kKeys / 16;
  static constexpr int kSub = kConfig.shape.sub_m, kN = kSub / 8;
  static constexpr int kSubs = kBlockM / kColumnWarps / kSub;
  /// dQ: block_m x D over all warps.
  static constexpr int kWantedRowWarps =
      kBlockM >= 64 || kD / kConfig.shape.warps % 16 != 0 ? 2 : 1;
  static constexpr int kRowWarps = kD * kWantedRowWarps >= 16 * kConfig.shape.warps
                                       ? kWantedRowWarps
                                       : kConfig.shape.warps * 16 / kD;
  static constexpr int kQm = kBlockM / kRowWarps / 16;
  static constexpr int kQCols = kD / (kConfig.shape.warps / kRowWarps);
  static constexpr bool kCross = kColumnWarps > 1;  ///< P and dS are read back from shared memory
  static constexpr int kTilesS = kCross ? 2 : kConfig.output.with_dq ? 1 : 0;
  static constexpr bool kWithK = kConfig.output.gradients != Gradients::values;
  static constexpr bool kWithV = kConfig.output.gradients != Gradients::keys;
  /// Planes of P and dS as operands.
  static constexpr int kScorePlanes = kConfig.two_plane ? 2 : kPlanes;
  static_assert(!kConfig.listed() || !kConfig.split);
  static_assert(!kConfig.two_plane || (kPlanes == 1 && !kConfig.form.scaled));
  static_assert(kKeys % 16 == 0 && kSub % 16 == 0 && kSubs >= 1);
  static_assert(!kCross || (kPlanes == 1 && !kConfig.form.scaled && kWithK && kWithV));
  static_assert((kWithK && kWithV) || !kConfig.output.with_dq);
  static_assert(kConfig.output.columns == 0 || (!(kWithK && kWithV) && !kConfig.split));
  static_assert(!kConfig.output.with_dq || kBlockM % (16 * kRowWarps) == 0);
  static_assert(!kConfig.output.with_dq ||
                (kPlanes == 1 && !kConfig.form.scaled && kQCols % 16 == 0));

  using TileK = SharedTile<kBlockN, kD, kPlanes>;
  using TileV = SharedTile<kBlockN, kDv, kPlanes>;
  using TileQ = SharedTile<kBlockM, kD, kPlanes>;
  using TileO = SharedTile<kBlockM, kDv, kPlanes>;
  using TileS = SharedTile<kBlockN, kBlockM, kConfig.two_plane ? 2 : 1>;
  using Kept = KeptPairs<kConfig.dropout, true, kM, kN>;
  using Pairs = FragmentPairs<kConfig.pairs, true, kM, kN>;
  /// Scores become logits less lse2 before they become probabilities.
  static constexpr int kScore = kConfig.expressions.score;
  static constexpr bool kLogits =
      kConfig.modified || kConfig.pairs.any() || kConfig.expressions.any();
  /// Where P is 0 nothing comes through.
  static constexpr bool kHides = kConfig.pairs.any() || kConfig.expressions.any();
  static constexpr int kRowBytes = kBlockM * 4;
  static constexpr bool kLow = kConfig.keeps_low();
  /// One stage: Q, dO, lse2, delta and maybe lse2_low.
  static constexpr int kStageBytes = TileQ::kBytes + TileO::kBytes + (kLow ? 3 : 2) * kRowBytes;
};

}  // namespace tilewise::bwd_sm80
