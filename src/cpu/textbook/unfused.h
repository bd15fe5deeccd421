/// What `eager` and `fused` share: BLAS products over whole S x S matrices in memory, float32
/// copies of operands that BLAS cannot read as they lie, the parallel phases, and everything that
/// happens once a head. They differ in their passes over the scores: UnfusedPasses.
///
/// Forward, one task per (sequence, query head, block of query rows):
///   S = Q K^T; passes: S -> P; Z * P; O = (Z * P) V
/// Backward, phases with a barrier in between, so that no gradient is summed by two tasks:
///   rows:  P anew where forward did not keep it; Z * P into dP's buffer
///   keys:  dV = (Z * P)^T dO
///   rows:  dP = dO V^T; passes: dP -> dS in place; dQ = dS K
///   keys:  dK = dS^T Q
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "cpu/flash/score_steps.h"
#include "cpu/textbook/row_passes.h"
#include "plan/kernel_row.h"
#include "plan/time_model.h"

namespace tilewise::cpu {

/// The buffers of a pass besides the scores.
struct PassTools {
  const Problem& problem;
  const ScoreSteps& steps;
  const RowPasses& rows;
  float sink;  ///< of the head; -inf without sinks
};

/// The passes over the scores of one implementation, and what they cost.
struct UnfusedPasses {
  /// Rows of a strip hold about so many scores; 0 = passes get a task's whole block.
  std::int64_t strip_scores;
  /// S (Q K^T in, scale * Q K^T out unless p is the same buffer) to P; m and l of each row. (F1) to
  /// (F6)
  void (*probabilities)(const PassTools& tools, const TilePlace& at, float* s, float* p, float* m,
                        float* l);
  /// dp: dO V^T in, factor * P * (dP - delta) out. delta: dLSE in, rowsum(P * dP) - dLSE out. (B2),
  /// (B4), (B5)
  void (*score_gradient)(const PassTools& tools, const TilePlace& at, const float* p, float factor,
                         float* dp, float* delta);
  /// How often a pass reads or writes S x S floats of memory, for the predicted time.
  double walks_forward, walks_backward;
};

/// body(strip, its first row within the block) for strips of whole rows that hold about `scores`
/// scores; 0 = the block is one strip.
template <class Body>
void for_strips(const TilePlace& block, std::int64_t scores, const Body& body) {
  const std::int64_t fit = scores / std::max(block.cols, 1);
  const int most =
      scores == 0 ? block.rows : static_cast<int>(std::clamp<std::int64_t>(fit, 1, block.rows));
  for (int r = 0; r < block.rows; r += most) {
    TilePlace strip = block;
    strip.i0 += r;
    strip.rows = std::min(most, block.rows - r);
    body(strip, r);
  }
}

/// m as softmax subtracts it: the highest logit, the sink counted in; 0 for a row that sees
/// nothing, because -inf - -inf would be NaN.
float softmax_shift(float highest, float sink);

/// The work of a pass, for the time model.
CpuForm unfused_form(const Problem& problem);
CpuWork unfused_work(const Problem& problem, double bytes_moved, int threads);

// The entries of the rows; their config is an UnfusedPasses.
Preparation unfused_prepare(const KernelRow& row, const Problem& problem, const Hardware& machine);
void unfused_run(const KernelRow& row, const Problem& problem, const Context& context);

}  // namespace tilewise::cpu
