/// bwd_dbias_sm80: constants and parameters. See bwd_sm80/bias.md.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"

namespace tilewise::bwd_dbias_sm80 {

using bwd_sm80::Config;  ///< as bwd_dq_sm80 takes it

/// Blocks of an axis of the bias; one where the bias broadcasts along it.
struct Axes {
  int batch = 1, heads = 1, rows = 1, keys = 1;
};

struct Args {
  bwd_sm80::Args pass;
  tile::View4 dbias;  ///< of pass.pairs.type; a stride of 0 sums over the axis
  Axes axes;
  int batch = 0;  ///< of the problem
  /// Blocks that share the work of a tile, each every parts-th of what is summed: then sums are
  /// float32 (parts, batch, heads, padded_rows, padded_keys of the bias) in fragment order, for
  /// bwd_convert.
  int parts = 1;
  float* sums = nullptr;
  int padded_rows = 0, padded_keys = 0;
};

}  // namespace tilewise::bwd_dbias_sm80
