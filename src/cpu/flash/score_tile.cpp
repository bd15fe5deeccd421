#include "cpu/flash/score_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "cpu/flash/tiles.h"
#include "cpu/micro/elements.h"
#include "plan/batch_invariance.h"

namespace tilewise::cpu {
namespace {

constexpr std::int64_t kTileElems = std::int64_t{kTileRows} * kTileKeys;
constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int kScoreTiles = 5;  // p, dropped, ds, capped, premod

/// The columns that fill up the last vector are no keys.
void hide_padding(const TilePlace& at, std::int64_t padded, float* p) {
  for (std::int64_t r = 0; padded > at.cols && r < at.rows; ++r) {
    std::fill(p + r * at.ld + at.cols, p + r * at.ld + padded, kNothing);
  }
}

/// True where dbias sums over nothing.
bool has_bias_of_pairs(const Problem& p) {
  if (!p.dbias.defined()) return false;
  const auto along = [&](std::size_t axis, std::int64_t count) {
    return count == 1 || p.dbias.strides[axis] != 0;
  };
  // Packed: the row axis tells sequences apart.
  return (p.packed || along(0, p.batch)) && along(1, p.heads_q) && along(2, p.total_q) &&
         along(3, p.seq_k);
}

}  // namespace

ScoreTileStep::ScoreTileStep(const Problem& p, const Micro& micro)
    : p_(p),
      micro_(micro),
      steps_(p),
      log2_(!steps_.elementwise() && std::isfinite(p.scale * std::numbers::log2e_v<float>)),
      stores_bias_(has_bias_of_pairs(p)),
      ld_q_(round_up(p.head_dim, micro.lanes)),
      ld_v_(round_up(p.head_dim_v, micro.lanes)) {}

std::int64_t ScoreTileStep::scratch_elems() const {
  const std::int64_t rows = kTileRows * (ld_q_ + ld_v_);
  const std::int64_t keys = kTileKeys * (ld_q_ + ld_v_ + p_.head_dim + p_.head_dim_v);
  return round_up(rows + keys + kScoreTiles * kTileElems + std::int64_t{2} * kTileRows, 16);
}

ScoreTileStep::Scratch ScoreTileStep::scratch(float* base, int slot) const {
  float* at = base + slot * scratch_elems();
  const auto take = [&](std::int64_t elems) {
    float* part = at;
    at += elems;
    return part;
  };
  Scratch s{};
  s.p = take(kTileElems);
  s.dropped = steps_.has_dropout() ? take(kTileElems) : s.p;
  s.ds = take(kTileElems);
  s.capped = take(kTileElems);
  s.premod = take(kTileElems);
  s.q_rows = take(kTileRows * ld_q_);
  s.d_o_rows = take(kTileRows * ld_v_);
  s.k_rows = take(kTileKeys * ld_q_);
  s.v_rows = take(kTileKeys * ld_v_);
  s.k_panels = take(kTileKeys * p_.head_dim);
  s.v_panels = take(kTileKeys * p_.head_dim_v);
  s.lse = take(kTileRows);
  s.lse_low = take(kTileRows);
  return s;
}

void ScoreTileStep::load_keys_of(std::int64_t b, const Sequence& sequence, std::int64_t h_k,
                                 std::int64_t j0, int keys, Scratch& s) const {
  const int d = static_cast<int>(p_.head_dim);
  const int dv = static_cast<int>(p_.head_dim_v);
  const auto rows = [&](const Tensor& t, float* copy, std::int64_t ld) {
    const std::int64_t first = sequence.k_begin + j0;
    const float* there = p_.paged ? nullptr : dense_rows(t, micro_.lanes, b, h_k, first);
    if (there != nullptr) return there;
    load_keys(p_, t, b, sequence, h_k, j0, keys, static_cast<int>(t.sizes[3]), copy, ld);
    return static_cast<const float*>(copy);
  };
  s.k = rows(p_.k, s.k_rows, ld_q_);
  const float factor = log2_ ? p_.scale * std::numbers::log2e_v<float> : p_.scale;
  pack_transposed(micro_, keys, d, s.k, ld_q_, s.k_panels, factor);
  pack_transposed(micro_, keys, dv, rows(p_.v, s.v_rows, ld_v_), ld_v_, s.v_panels);
}

/// use(product) for S = Q (factor K)^T into p, one panel of keys after the other.
template <class Use>
void ScoreTileStep::for_scores(const TilePlace& at, const Scratch& s, const Use& use) const {
  const int d = static_cast<int>(p_.head_dim);
  for_panels(at, {at.rows, 0, d, s.q, ld_q_, s.k_panels, s.p, kTileKeys}, use);
}

/// The same for dP = dO V^T into ds.
template <class Use>
void ScoreTileStep::for_output_gradients(const TilePlace& at, const Scratch& s,
                                         const Use& use) const {
  const int dv = static_cast<int>(p_.head_dim_v);
  for_panels(at, {at.rows, 0, dv, s.d_o, ld_v_, s.v_panels, s.ds, kTileKeys}, use);
}

template <class Use>
void ScoreTileStep::for_panels(const TilePlace& at, PanelProduct product, const Use& use) const {
  const int wide = micro_.panel_cols;
  for (int n = 0; n < at.cols; n += wide) {
    product.cols = std::min(wide, static_cast<int>(round_up(at.cols - n, micro_.lanes)));
    use(product);
    product.panel += std::int64_t{product.k} * wide;
    product.c += wide;
  }
}

void ScoreTileStep::load_queries_of(const TilePlace& at, const Rows& known, Scratch& s) const {
  const std::int64_t row = at.sequence.q_begin + at.i0;
  const float* low = known.lse_low;
  const bool all_see = std::find(low, low + at.rows, kSeesNothing) == low + at.rows;
  const auto rows = [&](const Tensor& t, float* copy, std::int64_t ld) {
    const float* there = all_see ? dense_rows(t, micro_.lanes, at.b, at.h, row) : nullptr;
    if (there != nullptr) return there;
    load_rows(t, at.b, at.h, row, at.rows, static_cast<int>(t.sizes[3]), copy, ld);
    for (int r = 0; r < at.rows; ++r) {  // 0 times NaN would be NaN
      if (known.sees_nothing(r)) std::fill_n(copy + r * ld, ld, 0.0F);
    }
    return static_cast<const float*>(copy);
  };
  s.q = rows(p_.q, s.q_rows, ld_q_);
  s.d_o = rows(p_.d_o, s.d_o_rows, ld_v_);
}

void ScoreTileStep::logits(const TilePlace& at, Visibility seen, const Scratch& s) const {
  for_scores(at, s, [&](const PanelProduct& product) { micro_.scores(product); });
  for_output_gradients(at, s, [&](const PanelProduct& product) { micro_.scores(product); });
  logits_of_scores(at, seen, s);
}

void ScoreTileStep::logits_of_scores(const TilePlace& at, Visibility seen, const Scratch& s) const {
  if (steps_.elementwise()) steps_.apply(at, s.p, s.capped, s.premod);
  if (seen == Visibility::some) steps_.hide(at, s.p);
  const auto padded = round_up(at.cols, micro_.lanes);
  hide_padding(at, padded, s.p);
  steps_.drop(at, s.ds);  // (B4) dP through dropout
}

KeyRange ScoreTileStep::rows_to_refine(std::int64_t b, std::int64_t h, const Sequence& sequence,
                                       std::int64_t i0, int rows) const {
  // P = exp(S - LSE) is off by |LSE| * 2^-24; that must stay below what the storage type loses.
  constexpr float kCoarseFloat32 = 12.0F;
  constexpr float kCoarseHalf = 512.0F;
  constexpr std::int64_t kFewKeys = 64;
  constexpr std::int64_t kFewElems = 8192;
  const bool float32 = p_.dtype == DType::float32;
  const KeyRange all{i0, i0 + rows};
  // Sums of many dS: the errors of a delta from a rounded O would add up.
  const bool sums = p_.dsinks.defined() || p_.dbias.defined() || capture_gradients().wanted();
  if ((sums || p_.precision == Precision::refined) && !float32) return all;
  // The largest error of few results is not near its average; a pass over them costs microseconds.
  if (!float32 && planned_batch(p_) * p_.heads_q * p_.seq_q * p_.head_dim_v <= kFewElems)
    return all;
  const std::int64_t few = float32 ? 1 : kFewKeys;
  const float coarse = float32 ? kCoarseFloat32 : kCoarseHalf;
  const auto* lse = static_cast<const float*>(p_.lse.data);
  const TilePlace tile{sequence, b, h, i0, 0, rows, 0, 0};
  const auto needs_it = [&](std::int64_t row) {
    const float value = lse[offset_of(p_.lse, b, h, sequence.q_begin + row)];
    if (std::isfinite(value) && std::abs(value) > coarse) return true;
    // dS of few keys is a small difference of dP and delta: of one key it is 0.
    const std::int64_t keys = keys_seen(p_, tile, row, few + 1);
    return keys > 0 && keys <= few;
  };
  KeyRange found = all;
  while (!found.empty() && !needs_it(found.begin)) ++found.begin;
  while (!found.empty() && !needs_it(found.end - 1)) --found.end;
  return found;
}

void ScoreTileStep::refine(std::int64_t b, std::int64_t h, const Sequence& sequence,
                           std::int64_t i0, int rows, Scratch& s, const Rows& out) const {
  float m[kTileRows];
  float l[kTileRows];
  float dots[kTileRows];
  float alpha[kTileRows];
  std::fill_n(m, rows, kNothing);
  std::fill_n(l, rows, 0.0F);
  std::fill_n(dots, rows, 0.0F);
  // Both ends of the visible range move to the right with i.
  const std::int64_t begin = p_.visible_keys(sequence, i0).begin / kTileKeys * kTileKeys;
  const std::int64_t end =
      std::min(sequence.k_length, p_.visible_keys(sequence, i0 + rows - 1).end);
  for (std::int64_t j0 = begin; j0 < end; j0 += kTileKeys) {
    const int keys = static_cast<int>(std::min<std::int64_t>(kTileKeys, end - j0));
    const TilePlace place{sequence, b, h, i0, j0, rows, keys, kTileKeys};
    const Visibility seen = tile_visibility(p_, place);
    if (seen == Visibility::none) continue;
    load_keys_of(b, sequence, h / p_.group(), j0, keys, s);
    load_queries_of(place, out, s);
    logits(place, seen, s);
    const int padded = static_cast<int>(round_up(keys, micro_.lanes));
    const auto softmax_step = log2_ ? micro_.softmax_step_log2 : micro_.softmax_step;
    softmax_step(rows, padded, s.p, kTileKeys, m, l, alpha);
    micro_.add_row_dots(rows, padded, s.p, s.ds, kTileKeys, alpha, dots);
  }
  for (int r = 0; r < rows; ++r) {
    if (l[r] == 0.0F || out.sees_nothing(r)) continue;  // P is 0 whatever delta is
    const std::int64_t row = sequence.q_begin + i0 + r;
    const double largest = log2_ ? double{m[r]} * std::numbers::ln2 : double{m[r]};
    double high = largest;
    float total = l[r];
    float share = 1.0F;  // of the keys' sum, once a sink's maximum counts
    if (p_.sinks.defined()) {
      const float sink = static_cast<const float*>(p_.sinks.data)[h * p_.sinks.strides[0]];
      high = std::max(largest, double{sink});
      share = static_cast<float>(std::exp(largest - high));
      total = l[r] * share + static_cast<float>(std::exp(double{sink} - high));
    }
    const float lse = static_cast<const float*>(p_.lse.data)[offset_of(p_.lse, b, h, row)];
    out.lse_low[r] = static_cast<float>(high - lse) + std::log(total);
    out.delta[r] = dots[r] * share / total;
    if (p_.d_lse.defined()) {
      out.delta[r] -= static_cast<const float*>(p_.d_lse.data)[offset_of(p_.d_lse, b, h, row)];
    }
  }
}

bool ScoreTileStep::gradient(const TilePlace& at, const Rows& known, Scratch& s,
                             bool bias_only) const {
  const Visibility seen = tile_visibility(p_, at);
  if (seen == Visibility::none) return false;
  load_queries_of(at, known, s);
  if (log2_) {
    gradient_of_position(at, seen, known, s);
    return true;
  }
  logits(at, seen, s);
  gradient_of_logits(at, known, s, bias_only);
  return true;
}

void ScoreTileStep::gradient_of_position(const TilePlace& at, Visibility seen, const Rows& known,
                                         const Scratch& s) const {
  const std::int64_t row = at.sequence.q_begin + at.i0;
  const auto* lse = static_cast<const float*>(p_.lse.data);
  for (int r = 0; r < at.rows; ++r) {  // in units of ln 2
    const float value = lse[offset_of(p_.lse, at.b, at.h, row + r)];
    const double exact = (double{value} + known.lse_low[r]) * std::numbers::log2e;
    s.lse[r] = value == kNothing ? -kNothing : static_cast<float>(exact);
    s.lse_low[r] = std::isfinite(s.lse[r]) ? static_cast<float>(exact - double{s.lse[r]}) : 0.0F;
  }
  const auto padded = static_cast<int>(round_up(at.cols, micro_.lanes));
  if (seen == Visibility::all && padded == at.cols) {
    for_scores(at, s, [&](const PanelProduct& product) {
      micro_.score_probabilities(product, s.lse, s.lse_low);
    });
  } else {
    for_scores(at, s, [&](const PanelProduct& product) { micro_.scores(product); });
    hide(at, padded, s.p);
    micro_.probabilities_log2(at.rows, padded, s.p, kTileKeys, s.lse, s.lse_low);
  }
  if (steps_.has_dropout()) {  // (B4)
    drop_probabilities(at, s);
    for_output_gradients(at, s, [&](const PanelProduct& product) { micro_.scores(product); });
    steps_.drop(at, s.ds);
    micro_.score_gradient(at.rows, padded, s.p, s.ds, kTileKeys, known.delta, p_.scale);
    return;
  }
  for_output_gradients(at, s, [&](const PanelProduct& product) {
    micro_.score_gradients(product, s.p + (product.c - s.ds), known.delta, p_.scale);
  });
}

void ScoreTileStep::drop_probabilities(const TilePlace& at, const Scratch& s) const {
  for (std::int64_t r = 0; r < at.rows; ++r) {
    std::copy_n(s.p + r * kTileKeys, at.cols, s.dropped + r * kTileKeys);
  }
  steps_.drop(at, s.dropped);
}

void ScoreTileStep::hide(const TilePlace& at, int padded, float* p) const {
  steps_.hide(at, p);
  hide_padding(at, padded, p);
}

void ScoreTileStep::gradient_of_logits(const TilePlace& at, const Rows& known, const Scratch& s,
                                       bool bias_only) const {
  const std::int64_t row = at.sequence.q_begin + at.i0;
  const auto* lse = static_cast<const float*>(p_.lse.data);
  for (int r = 0; r < at.rows; ++r) {
    const float value = lse[offset_of(p_.lse, at.b, at.h, row + r)];
    s.lse[r] = value == kNothing ? -kNothing : value;
  }
  const int padded = static_cast<int>(round_up(at.cols, micro_.lanes));
  micro_.probabilities(at.rows, padded, s.p, kTileKeys, s.lse, known.lse_low);  // (B1)
  if (steps_.has_dropout()) drop_probabilities(at, s);
  // (B5). Scale is in dS, not in the sums of its products, which could overflow before it.
  const bool stores = stores_bias_ && !bias_only;
  const bool unscaled = bias_only || stores || s.capture_sums != nullptr;
  micro_.score_gradient(at.rows, padded, s.p, s.ds, kTileKeys, known.delta,
                        unscaled ? 1.0F : p_.scale);
  steps_.back_through_mod(at, s.premod, s.p, s.ds, s.capture_sums);
  if (stores) store_bias_gradient(at, s.ds);  // dbias (B6)
  if (unscaled && !bias_only) {
    std::fill_n(s.lse, at.rows, p_.scale);  // not needed any more
    micro_.scale_rows(at.rows, padded, s.ds, kTileKeys, s.lse);
  }
  if (!bias_only) steps_.back_through_cap(at, s.capped, s.ds);
}

void ScoreTileStep::store_bias_gradient(const TilePlace& at, const float* ds) const {
  const Tensor& t = p_.dbias;
  for (std::int64_t r = 0; r < at.rows; ++r) {
    const std::int64_t row = offset_of(t, at.b, at.h, at.sequence.q_begin + at.i0 + r);
    store_row(t, row + at.j0 * t.strides[3], t.strides[3], at.cols, ds + r * kTileKeys);
  }
}

}  // namespace tilewise::cpu
