/// From scale * Q K^T to the logits that softmax sees, tile by tile, and the way back. The one
/// place where cap, bias, ALiBi, the caller's score function, masks and dropout are applied on the
/// CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cpu/flash/capture_gradients.h"
#include "cpu/flash/expression_tiles.h"
#include "cpu/flash/tile_place.h"
#include "cpu/micro/score_passes.h"
#include "problem/philox.h"
#include "problem/problem.h"

namespace tilewise::cpu {

class ScoreSteps {
 public:
  explicit ScoreSteps(const Problem& problem);

  /// True when logits are more than scale * q.k, of the keys that are seen.
  bool elementwise() const { return elementwise_; }
  bool has_dropout() const { return dropout_.has_value(); }
  /// 1 / (1 - p); 0 for p = 1. Only with dropout.
  float dropout_scale() const { return static_cast<float>(dropout_->scale()); }
  /// True when backward needs the scores before the cap or the score function again.
  bool nonlinear() const { return problem_.softcap != 0.0 || has_function(); }

  /// s: scale * q.k in, logits out, of hidden keys too: hide() comes next. For a nonlinear
  /// backward, `capped` and `premod` (buffers like s, or null) receive cap(s) and the input of the
  /// score function. With expressions rows have room for whole vectors, which is overwritten.
  void apply(const TilePlace& at, float* s, float* capped = nullptr, float* premod = nullptr) const;
  /// Keys that position, length, mask or block list hide become -inf.
  void hide(const TilePlace& at, float* s) const;

  /// ds: gradient of the logits in, gradient of (cap(s) + bias) out. That is dbias's contribution.
  /// p: P before dropout, 0 where a pair is hidden; read with a score expression, as room for whole
  /// vectors is. With `sums`, a part of capture_gradients(), ds also goes into these.
  void back_through_mod(const TilePlace& at, const float* premod, const float* p, float* ds,
                        double* sums = nullptr) const;
  /// ds: gradient of cap(s) + bias in, gradient of s = scale * q.k out.
  void back_through_cap(const TilePlace& at, const float* capped, float* ds) const;

  const CaptureGradients& capture_gradients() const { return captures_; }

  /// x *= keep / (1 - p): probabilities in forward, dP in backward. Nothing when there is no
  /// dropout.
  void drop(const TilePlace& at, float* x) const;

 private:
  bool has_function() const {
    return problem_.score_mod != nullptr || problem_.score_function.defined();
  }
  void back_through_expression(const TilePlace& at, const float* premod, const float* p, float* ds,
                               double* sums) const;
  /// use(n, bias, scores) for pieces of rows that are all of the tile within the length.
  template <class Use>
  void for_bias(const TilePlace& at, float* s, const Use& use) const;
  void add_bias(const TilePlace& at, float* s) const;
  void mask_infinite_bias(const TilePlace& at, float* s) const;
  void add_alibi(const TilePlace& at, float* s) const;
  void hide_masked(const TilePlace& at, float* s) const;
  void hide_unlisted(const TilePlace& at, float* s) const;

  const Problem& problem_;
  const ScorePasses& passes_;
  bool elementwise_;
  std::optional<DropoutMask> dropout_;
  CaptureGradients captures_;
  /// The functions; the derivative; that and the terms of captured tensors, theirs first.
  std::optional<ExpressionTiles> score_, mask_, slope_, terms_;
};

}  // namespace tilewise::cpu
