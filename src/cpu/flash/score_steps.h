/// From scale * Q K^T to the logits that softmax sees, tile by tile, and the way back. The one
/// place where cap, bias, ALiBi, the caller's score function, masks and dropout are applied on the
/// CPU.
#pragma once

#include <cstdint>
#include <optional>

#include "cpu/micro/score_passes.h"
#include "problem/philox.h"
#include "problem/problem.h"

namespace tilewise::cpu {

/// Where a tile of scores lies: rows i0 .. i0 + rows - 1 and keys j0 .. j0 + cols - 1 of query head
/// h of sequence b. Element (r, c) of a buffer of the tile is at r * ld + c.
struct TilePlace {
  const Sequence& sequence;
  std::int64_t b = 0, h = 0;
  std::int64_t i0 = 0, j0 = 0;
  int rows = 0, cols = 0;
  std::int64_t ld = 0;
};

class ScoreSteps {
 public:
  explicit ScoreSteps(const Problem& problem);

  /// True when more than scale, position and length decides the logits.
  bool elementwise() const { return elementwise_; }
  bool has_dropout() const { return dropout_.has_value(); }
  /// 1 / (1 - p); 0 for p = 1. Only with dropout.
  float dropout_scale() const { return static_cast<float>(dropout_->scale()); }
  /// True when backward needs the scores before the cap or the score function again.
  bool nonlinear() const { return problem_.softcap != 0.0 || problem_.score_mod != nullptr; }

  /// s: scale * q.k in, final logits out (hidden keys: -inf). For a nonlinear backward, `capped`
  /// and `premod` (buffers like s, or null) receive cap(s) and the input of the score function.
  void apply(const TilePlace& at, float* s, float* capped = nullptr, float* premod = nullptr) const;
  /// Only the part of apply() that position and length decide: hidden keys become -inf.
  void mask_position(const TilePlace& at, float* s) const;

  /// ds: gradient of the logits in, gradient of (cap(s) + bias) out. That is dbias's contribution.
  void back_through_mod(const TilePlace& at, const float* premod, float* ds) const;
  /// ds: gradient of cap(s) + bias in, gradient of s = scale * q.k out.
  void back_through_cap(const TilePlace& at, const float* capped, float* ds) const;

  /// x *= keep / (1 - p): probabilities in forward, dP in backward. Nothing when there is no
  /// dropout.
  void drop(const TilePlace& at, float* x) const;

 private:
  /// use(n, bias, scores) for pieces of rows that are all of the tile within the length.
  template <class Use>
  void for_bias(const TilePlace& at, float* s, const Use& use) const;
  void add_bias(const TilePlace& at, float* s) const;
  void mask_infinite_bias(const TilePlace& at, float* s) const;
  void add_alibi(const TilePlace& at, float* s) const;
  void mask_elements(const TilePlace& at, float* s) const;

  const Problem& problem_;
  const ScorePasses& passes_;
  bool elementwise_;
  std::optional<DropoutMask> dropout_;
};

}  // namespace tilewise::cpu
