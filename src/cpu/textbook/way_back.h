/// From the gradient of the logits back through the score function and the cap, where S is in
/// memory.
#pragma once

#include <cstdint>

#include "cpu/flash/score_steps.h"

namespace tilewise::cpu {

class WayBack {
 public:
  /// Floats of scratch that one worker needs.
  static std::int64_t scratch_elems(const Problem& problem);

  WayBack(const Problem& problem, const ScoreSteps& steps, float* scratch);

  struct Through {
    bool mod, cap;
  };

  /// `gradient` and `s` (scale * Q K^T) are buffers of the block. dY to dX (B6), dX to dS (B7), or
  /// both.
  void run(const TilePlace& block, const float* s, float* gradient, Through through) const;

 private:
  const ScoreSteps& steps_;
  float *logits_, *capped_, *premod_;  ///< of a strip
};

}  // namespace tilewise::cpu
