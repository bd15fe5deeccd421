#include "cpu/flash/score_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/micro/elements.h"
#include "cpu/textbook/row_passes.h"
#include "problem/listed_blocks.h"

namespace tilewise::cpu {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

}  // namespace

ScoreSteps::ScoreSteps(const Problem& p)
    : problem_(p),
      elementwise_(p.softcap != 0.0 || p.bias.defined() || p.alibi_slopes.defined() ||
                   p.score_mod != nullptr) {
  if (p.dropout.p > 0.0) dropout_.emplace(p.dropout);
}

void ScoreSteps::apply(const TilePlace& at, float* s, float* capped, float* premod) const {
  const Problem& p = problem_;
  if (p.softcap != 0.0) {  // (F2) cap(x) = c tanh(x / c)
    const auto c = static_cast<float>(p.softcap);
    for (int r = 0; r < at.rows; ++r) {
      for (int j = 0; j < at.cols; ++j) s[r * at.ld + j] = c * std::tanh(s[r * at.ld + j] / c);
      if (capped != nullptr) std::copy_n(s + r * at.ld, at.cols, capped + r * at.ld);
    }
  }
  if (p.bias.defined()) add_bias(at, s);
  if (p.alibi_slopes.defined()) add_alibi(at, s);
  if (p.score_mod != nullptr) {
    if (premod != nullptr) {
      for (int r = 0; r < at.rows; ++r) std::copy_n(s + r * at.ld, at.cols, premod + r * at.ld);
    }
    p.score_mod->apply({s, at.ld, at.rows, at.cols, at.b, at.h, at.i0, at.j0});
    if (p.bias.defined()) mask_infinite_bias(at, s);  // whatever the function made of -inf
  }
}

template <class Use>
void ScoreSteps::for_bias(const TilePlace& at, float* s, const Use& use) const {
  const Tensor& bias = problem_.bias;
  constexpr int kChunk = 64;
  float values[kChunk];
  for (int r = 0; r < at.rows; ++r) {
    const std::int64_t row = offset_of(bias, at.b, at.h, at.sequence.q_begin + at.i0 + r);
    for (int c = 0; c < at.cols; c += kChunk) {
      const int count =
          std::min({kChunk, at.cols - c, static_cast<int>(at.sequence.k_length - at.j0) - c});
      if (count <= 0) break;  // beyond the length nothing is read
      load_row(bias, row + (at.j0 + c) * bias.strides[3], bias.strides[3], count, values);
      for (int j = 0; j < count; ++j) use(values[j], s[r * at.ld + c + j]);
    }
  }
}

void ScoreSteps::add_bias(const TilePlace& at, float* s) const {
  for_bias(at, s, [](float bias, float& score) { score += bias; });
}

void ScoreSteps::mask_infinite_bias(const TilePlace& at, float* s) const {
  for_bias(at, s, [](float bias, float& score) { score = bias == kHidden ? kHidden : score; });
}

void ScoreSteps::add_alibi(const TilePlace& at, float* s) const {
  const Tensor& slopes = problem_.alibi_slopes;
  const float slope =
      static_cast<const float*>(slopes.data)[at.b * slopes.strides[0] + at.h * slopes.strides[1]];
  for (int r = 0; r < at.rows; ++r) {
    const std::int64_t diagonal = at.i0 + r + at.sequence.shift();
    for (int c = 0; c < at.cols; ++c) {
      const std::int64_t distance = std::abs(diagonal - (at.j0 + c));
      s[r * at.ld + c] -= slope * static_cast<float>(distance);
    }
  }
}

void ScoreSteps::hide_masked(const TilePlace& at, float* s) const {
  const Tensor& mask = problem_.mask;
  const auto* visible = static_cast<const std::uint8_t*>(mask.data);
  const int cols = std::min(at.cols, static_cast<int>(at.sequence.k_length - at.j0));
  for (int r = 0; r < at.rows; ++r) {
    const std::int64_t row = offset_of(mask, at.b, at.h, at.sequence.q_begin + at.i0 + r);
    for (int c = 0; c < cols; ++c) {
      if (visible[row + (at.j0 + c) * mask.strides[3]] == 0) s[r * at.ld + c] = kHidden;
    }
  }
}

void ScoreSteps::hide_unlisted(const TilePlace& at, float* s) const {
  const BlockList& list = problem_.block_list;
  const std::int64_t end = at.j0 + at.cols;
  const auto hide_rows = [&](int r, int rows, std::int64_t from, std::int64_t to) {
    for (; from < to && rows > 0; --rows, ++r) {
      std::fill(s + r * at.ld + (from - at.j0), s + r * at.ld + (to - at.j0), kHidden);
    }
  };
  for (int r = 0, rows = 0; r < at.rows; r += rows) {
    const std::int64_t block = (at.i0 + r) / list.block_q;
    rows = static_cast<int>(
        std::min<std::int64_t>(at.rows - r, (block + 1) * list.block_q - at.i0 - r));
    const ListedBlocks listed(list, at.b, at.h, block);
    std::int64_t seen = at.j0;  // keys below it are done
    for (std::int64_t n = listed.first_from(at.j0 / list.block_k); n < listed.count(); ++n) {
      const std::int64_t begin = listed.block(n) * list.block_k;
      if (begin >= end) break;
      hide_rows(r, rows, seen, begin);
      seen = std::min(end, begin + list.block_k);
    }
    hide_rows(r, rows, seen, end);
  }
}

void ScoreSteps::hide(const TilePlace& at, float* s) const {
  if (problem_.mask.defined()) hide_masked(at, s);
  if (problem_.block_list.defined()) hide_unlisted(at, s);
  for (int r = 0; r < at.rows; ++r) {
    const KeyRange keys = problem_.visible_keys(at.sequence, at.i0 + r);
    const auto cols = static_cast<std::int64_t>(at.cols);
    const auto begin = std::clamp<std::int64_t>(keys.begin - at.j0, 0, cols);
    const auto end = std::clamp<std::int64_t>(keys.end - at.j0, begin, cols);
    std::fill(s + r * at.ld, s + r * at.ld + begin, kHidden);
    std::fill(s + r * at.ld + end, s + r * at.ld + cols, kHidden);
  }
}

void ScoreSteps::back_through_mod(const TilePlace& at, const float* premod, float* ds) const {
  if (problem_.score_mod == nullptr) return;
  // NOTE: the caller's function sees the scores through a non-const tile; it must not change them.
  problem_.score_mod->derivative(
      {const_cast<float*>(premod), at.ld, at.rows, at.cols, at.b, at.h, at.i0, at.j0}, ds);
  for (int r = 0; r < at.rows; ++r) {
    for (int c = 0; c < at.cols; ++c) {  // hidden by the bias: no gradient, be the derivative NaN
      if (premod[r * at.ld + c] == kHidden) ds[r * at.ld + c] = 0.0F;
    }
  }
}

void ScoreSteps::back_through_cap(const TilePlace& at, const float* capped, float* ds) const {
  if (problem_.softcap == 0.0) return;
  const auto inverse = static_cast<float>(1.0 / problem_.softcap);
  for (int r = 0; r < at.rows; ++r) {  // (B7) d cap / dx = 1 - tanh^2(x / c)
    for (int c = 0; c < at.cols; ++c) {
      const float t = capped[r * at.ld + c] * inverse;
      ds[r * at.ld + c] *= 1.0F - t * t;
    }
  }
}

void ScoreSteps::drop(const TilePlace& at, float* x) const {
  if (!dropout_) return;
  const RowPasses& passes = row_passes(best_isa());
  const PhiloxKey key = dropout_->key();
  const std::int64_t bh = at.b * problem_.heads_q + at.h;
  for (int r = 0; r < at.rows; ++r) {
    const DropoutRow row{.key0 = key[0],
                         .key1 = key[1],
                         .offset = dropout_->offset(),
                         .head = static_cast<std::uint32_t>(bh),
                         .query = static_cast<std::uint32_t>(at.i0 + r),
                         .first_key = at.j0,
                         .threshold = dropout_->threshold(),
                         .scale = static_cast<float>(dropout_->scale())};
    passes.drop(at.cols, row, x + r * at.ld);
  }
}

}  // namespace tilewise::cpu
