#include "cpu/flash/score_steps.h"

#include <algorithm>
#include <limits>

#include "cpu/micro/elements.h"
#include "cpu/textbook/row_passes.h"
#include "problem/listed_blocks.h"

namespace tilewise::cpu {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

/// Keys of the tile's sequence from its first column on.
std::int64_t length_left(const TilePlace& at) {
  return std::max<std::int64_t>(0, at.sequence.k_length - at.j0);
}

}  // namespace

ScoreSteps::ScoreSteps(const Problem& p)
    : problem_(p),
      passes_(score_passes(best_isa())),
      elementwise_(p.softcap != 0.0 || p.bias.defined() || p.alibi_slopes.defined() ||
                   has_function()),
      captures_(p) {
  if (p.dropout.p > 0.0) dropout_.emplace(p.dropout);
  const ExpressionOps& ops = expression_ops(best_isa());
  const auto result = [&](const expression::Function& f) -> ExpressionTiles {
    return {*f.program, f.captures, {{{f.program->result}, 1}}, ops};
  };
  if (p.score_function.defined()) score_.emplace(result(p.score_function));
  if (p.mask_function.defined()) mask_.emplace(result(p.mask_function));
  if (p.score_gradient == nullptr) return;
  const expression::Gradient& gradient = *p.score_gradient;
  std::vector<ExpressionRoots> groups{{{gradient.of_score}, 1}};
  slope_.emplace(gradient.program, p.score_function.captures, groups, ops);
  if (!captures_.wanted()) return;
  std::vector<ExpressionRoots> all = captures_.groups();
  all.push_back(groups[0]);
  terms_.emplace(gradient.program, p.score_function.captures, std::move(all), ops);
}

void ScoreSteps::apply(const TilePlace& at, float* s, float* capped, float* premod) const {
  const Problem& p = problem_;
  if (p.softcap != 0.0) {
    for (int r = 0; r < at.rows; ++r) {
      passes_.cap(at.cols, static_cast<float>(p.softcap), s + r * at.ld);
      if (capped != nullptr) std::copy_n(s + r * at.ld, at.cols, capped + r * at.ld);
    }
  }
  if (p.bias.defined()) add_bias(at, s);
  if (p.alibi_slopes.defined()) add_alibi(at, s);
  if (has_function()) {
    if (premod != nullptr) {
      for (int r = 0; r < at.rows; ++r) std::copy_n(s + r * at.ld, at.cols, premod + r * at.ld);
    }
    if (score_) {
      score_->replace(at, s);
    } else {
      p.score_mod->apply({s, at.ld, at.rows, at.cols, at.b, at.h, at.i0, at.j0});
    }
    if (p.bias.defined()) mask_infinite_bias(at, s);  // whatever the function made of -inf
  }
}

template <class Use>
void ScoreSteps::for_bias(const TilePlace& at, float* s, const Use& use) const {
  const Tensor& bias = problem_.bias;
  const std::int64_t stride = bias.strides[3];
  const bool in_place = bias.dtype == DType::float32 && stride == 1;
  constexpr int kChunk = 256;
  float values[kChunk];
  // beyond the length nothing is read
  const int cols = static_cast<int>(std::min<std::int64_t>(at.cols, length_left(at)));
  for (int r = 0; r < at.rows; ++r) {
    const std::int64_t row =
        offset_of(bias, at.b, at.h, at.sequence.q_begin + at.i0 + r) + at.j0 * stride;
    if (in_place) {
      use(cols, static_cast<const float*>(bias.data) + row, s + r * at.ld);
      continue;
    }
    for (int c = 0; c < cols; c += kChunk) {
      const int count = std::min(kChunk, cols - c);
      load_row(bias, row + c * stride, stride, count, values);
      use(count, values, s + r * at.ld + c);
    }
  }
}

void ScoreSteps::add_bias(const TilePlace& at, float* s) const {
  for_bias(at, s, [&](int n, const float* bias, float* scores) { passes_.add(n, bias, scores); });
}

void ScoreSteps::mask_infinite_bias(const TilePlace& at, float* s) const {
  for_bias(at, s, [&](int n, const float* bias, float* scores) {
    passes_.replace_hidden(n, bias, kHidden, scores);
  });
}

void ScoreSteps::add_alibi(const TilePlace& at, float* s) const {
  const Tensor& slopes = problem_.alibi_slopes;
  const float slope =
      static_cast<const float*>(slopes.data)[at.b * slopes.strides[0] + at.h * slopes.strides[1]];
  const std::int64_t diagonal = at.i0 + at.sequence.shift() - at.j0;
  for (int r = 0; r < at.rows; ++r) {
    passes_.alibi(at.cols, slope, diagonal + r, s + r * at.ld);
  }
}

void ScoreSteps::hide_masked(const TilePlace& at, float* s) const {
  const Tensor& mask = problem_.mask;
  const std::int64_t stride = mask.strides[3];
  const std::int64_t cols = std::min<std::int64_t>(at.cols, length_left(at));
  for (int r = 0; r < at.rows; ++r, s += at.ld) {
    const std::uint8_t* visible = static_cast<const std::uint8_t*>(mask.data) +
                                  offset_of(mask, at.b, at.h, at.sequence.q_begin + at.i0 + r) +
                                  at.j0 * stride;
    if (stride == 1) {
      passes_.hide(cols, visible, s);
      continue;
    }
    for (std::int64_t c = 0; c < cols; ++c) {
      if (visible[c * stride] == 0) s[c] = kHidden;
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
  if (mask_) mask_->hide(at, s);
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

void ScoreSteps::back_through_mod(const TilePlace& at, const float* premod, const float* p,
                                  float* ds, double* sums) const {
  if (!has_function()) return;
  if (slope_) {
    back_through_expression(at, premod, p, ds, sums);
  } else {
    // NOTE: the caller's function sees the scores through a non-const tile; it must not change
    // them.
    problem_.score_mod->derivative(
        {const_cast<float*>(premod), at.ld, at.rows, at.cols, at.b, at.h, at.i0, at.j0}, ds);
  }
  for (int r = 0; r < at.rows; ++r) {  // hidden by the bias: no gradient, be the derivative NaN
    passes_.replace_hidden(at.cols, premod + r * at.ld, 0.0F, ds + r * at.ld);
  }
}

void ScoreSteps::back_through_expression(const TilePlace& at, const float* premod, const float* p,
                                         float* ds, double* sums) const {
  const ExpressionTiles& tiles = sums != nullptr ? *terms_ : *slope_;
  const std::size_t slope = sums != nullptr ? tiles.groups() - 1 : 0;
  tiles.run(at, premod, [&](const ExpressionTiles::Strips& strips) {
    if (strips.group != slope) return captures_.add(tiles, strips, at, p, ds, sums);
    const std::int64_t first = strips.row * at.ld;
    const StripIn gradient{ds + first, at.ld, tiles.ops().lanes};
    const StripIn seen{p + first, at.ld, tiles.ops().lanes};
    tiles.ops().multiply_seen({.rows = strips.rows,
                               .vectors = strips.vectors,
                               .in = {gradient, strips.values[0], seen},
                               .out = {ds + first, at.ld}});
  });
}

void ScoreSteps::back_through_cap(const TilePlace& at, const float* capped, float* ds) const {
  if (problem_.softcap == 0.0) return;
  const auto inverse = static_cast<float>(1.0 / problem_.softcap);
  for (int r = 0; r < at.rows; ++r) {
    passes_.cap_gradient(at.cols, inverse, capped + r * at.ld, ds + r * at.ld);
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
