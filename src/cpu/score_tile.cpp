#include "cpu/score_tile.h"

#include <algorithm>
#include <limits>

#include "cpu/elements.h"
#include "cpu/tiles.h"

namespace tilewise::cpu {
namespace {

constexpr std::int64_t kTileElems = std::int64_t{kTileRows} * kTileKeys;
constexpr int kScoreTiles = 5;  // p, dropped, ds, capped, premod

}  // namespace

ScoreTileStep::ScoreTileStep(const Problem& p, const Micro& micro)
    : p_(p),
      micro_(micro),
      steps_(p),
      ld_q_(round_up(p.head_dim, micro.lanes)),
      ld_v_(round_up(p.head_dim_v, micro.lanes)) {}

std::int64_t ScoreTileStep::scratch_elems() const {
  const std::int64_t rows = kTileRows * (ld_q_ + ld_v_);
  const std::int64_t keys = kTileKeys * (ld_q_ + ld_v_ + p_.head_dim + p_.head_dim_v);
  return round_up(rows + keys + kScoreTiles * kTileElems + kTileRows, 16);
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
  s.q = take(kTileRows * ld_q_);
  s.d_o = take(kTileRows * ld_v_);
  s.k = take(kTileKeys * ld_q_);
  s.v = take(kTileKeys * ld_v_);
  s.k_panels = take(kTileKeys * p_.head_dim);
  s.v_panels = take(kTileKeys * p_.head_dim_v);
  s.lse = take(kTileRows);
  return s;
}

void ScoreTileStep::load_keys_of(std::int64_t b, const Sequence& sequence, std::int64_t h_k,
                                 std::int64_t j0, int keys, const Scratch& s) const {
  const int d = static_cast<int>(p_.head_dim);
  const int dv = static_cast<int>(p_.head_dim_v);
  load_keys(p_, p_.k, b, sequence, h_k, j0, keys, d, s.k, ld_q_);
  load_keys(p_, p_.v, b, sequence, h_k, j0, keys, dv, s.v, ld_v_);
  pack_transposed(micro_, keys, d, s.k, ld_q_, s.k_panels, p_.scale);
  pack_transposed(micro_, keys, dv, s.v, ld_v_, s.v_panels, 1.0F);
}

/// S = scale Q K^T into p and dP = dO V^T into ds.
void ScoreTileStep::products(const TilePlace& at, const Scratch& s) const {
  const int d = static_cast<int>(p_.head_dim);
  const int dv = static_cast<int>(p_.head_dim_v);
  const int wide = micro_.panel_cols;
  for (int n = 0; n < at.cols; n += wide) {
    const int cols = std::min(wide, static_cast<int>(round_up(at.cols - n, micro_.lanes)));
    const std::int64_t panel = n / wide;
    micro_.gemm(at.rows, cols, d, s.q, ld_q_, 1, s.k_panels + panel * d * wide, wide, s.p + n,
                kTileKeys, false);
    micro_.gemm(at.rows, cols, dv, s.d_o, ld_v_, 1, s.v_panels + panel * dv * wide, wide, s.ds + n,
                kTileKeys, false);
  }
}

bool ScoreTileStep::gradient(const TilePlace& at, const float* delta, const Scratch& s,
                             bool bias_only) const {
  const Visibility seen = tile_visibility(p_, at.sequence, at.i0, at.rows, at.j0, at.cols);
  if (seen == Visibility::none) return false;
  const std::int64_t row = at.sequence.q_begin + at.i0;
  load_rows(p_.q, at.b, at.h, row, at.rows, static_cast<int>(p_.head_dim), s.q, ld_q_);
  load_rows(p_.d_o, at.b, at.h, row, at.rows, static_cast<int>(p_.head_dim_v), s.d_o, ld_v_);
  const auto* lse = static_cast<const float*>(p_.lse.data);
  for (int r = 0; r < at.rows; ++r) {
    const float value = lse[offset_of(p_.lse, at.b, at.h, row + r)];
    const bool sees_nothing = value == -std::numeric_limits<float>::infinity();
    s.lse[r] = sees_nothing ? std::numeric_limits<float>::infinity() : value;
  }
  products(at, s);
  if (steps_.elementwise()) {
    steps_.apply(at, s.p, s.capped, s.premod);
  } else if (seen == Visibility::some) {
    steps_.mask_position(at, s.p);
  }
  const int padded = static_cast<int>(round_up(at.cols, micro_.lanes));
  micro_.probabilities(at.rows, padded, s.p, kTileKeys, s.lse);  // (B3)
  if (steps_.has_dropout()) {
    for (int r = 0; r < at.rows; ++r)
      std::copy_n(s.p + r * kTileKeys, at.cols, s.dropped + r * kTileKeys);
    steps_.drop(at, s.dropped);
    steps_.drop(at, s.ds);  // (B5) dP through dropout
  }
  micro_.score_gradient(at.rows, padded, s.p, s.ds, kTileKeys, delta);  // (B6)
  steps_.back_through_mod(at, s.premod, s.ds);
  if (!bias_only) steps_.back_through_cap(at, s.capped, s.ds);
  return true;
}

}  // namespace tilewise::cpu
