/// bwd_captures_sm80, gradients of gates of blocks: parameters. See bwd_sm80/captures.md.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"

namespace tilewise::bwd_captures_sm80 {

/// What an axis of a captured tensor is indexed by: a constant, the batch entry, the query head, a
/// block of queries (i / per) or of keys (j / per).
enum class GateAxis : int { fixed, batch, head, queries, keys };

/// One block owns one element of the tensor.
struct BlockArgs {
  bwd_sm80::Args pass;
  int capture = 0;  ///< which of Captures
  int batch = 1;    ///< entries of the problem
  GateAxis axes[4] = {};
  int sizes[4] = {1, 1, 1, 1};
  int per[4] = {1, 1, 1, 1};  ///< of a constant: the index
};

}  // namespace tilewise::bwd_captures_sm80
