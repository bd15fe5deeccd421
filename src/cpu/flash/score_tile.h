/// One tile of backward: from Q, K, V, dO, LSE and delta to P and dS. Shared by the main pass (dQ,
/// dK, dV) and the bias-gradient pass.
#pragma once

#include <limits>

#include "cpu/flash/score_steps.h"
#include "cpu/flash/tiles.h"
#include "cpu/flash/visible.h"
#include "cpu/micro/micro.h"
#include "problem/problem.h"

namespace tilewise::cpu {

inline constexpr int kTileRows = 96;   ///< query rows of a backward tile
inline constexpr int kTileKeys = 128;  ///< keys of a backward tile
/// Query rows of a tile that position cuts: less is worked out for nothing.
inline constexpr int kBoundaryRows = 48;

class ScoreTileStep {
 public:
  /// Buffers of one worker. Tiles of scores are kTileRows x kTileKeys.
  struct Scratch {
    const float *q, *d_o;  ///< kTileRows x ld, query rows of the tile, there or where they lie
    const float* k;        ///< kTileKeys x ld_q, keys of the tile, there or where they lie
    float *q_rows, *d_o_rows, *k_rows, *v_rows;  ///< room for copies
    float *k_panels, *v_panels;                  ///< (factor K)^T and V^T in panels
    float* p;                                    ///< P before dropout
    float* dropped;          ///< P after dropout; the same buffer as p when there is none
    float* ds;               ///< gradient of q.k
    float *capped, *premod;  ///< for a nonlinear spec
    float *lse, *lse_low;    ///< kTileRows; +inf for rows that see nothing
    double* capture_sums;    ///< a part of the gradients of captured tensors, or null
  };

  /// What backward knows of each query row besides LSE; element 0 is the tile's first row.
  struct Rows {
    float* delta;    ///< rowsum(P * dP) - dLSE
    float* lse_low;  ///< what LSE lost when it was rounded to float32: LSE = lse + lse_low
    /// Row r sees no key: its lse_low is kSeesNothing, its P is 0, and its Q and dO are not read.
    bool sees_nothing(int r) const { return lse_low[r] == kSeesNothing; }
  };
  static constexpr float kSeesNothing = std::numeric_limits<float>::infinity();

  ScoreTileStep(const Problem& problem, const Micro& micro);

  const Micro& micro() const { return micro_; }
  std::int64_t scratch_elems() const;
  /// Cuts slot's part out of a buffer of workers * scratch_elems() floats.
  Scratch scratch(float* base, int slot) const;

  /// Finds or loads, and packs keys j0 .. j0 + keys - 1.
  void load_keys_of(std::int64_t b, const Sequence& sequence, std::int64_t h_k, std::int64_t j0,
                    int keys, Scratch& scratch) const;

  /// Of rows i0 .. i0 + rows - 1 the first to the last that the float32 LSE or the rounded O is too
  /// coarse for.
  KeyRange rows_to_refine(std::int64_t b, std::int64_t h, const Sequence& sequence, std::int64_t i0,
                          int rows) const;
  /// Works out delta and lse_low of these rows from a pass of their own over the keys: exact where
  /// logits are huge, at the price of two more products.
  void refine(std::int64_t b, std::int64_t h, const Sequence& sequence, std::int64_t i0, int rows,
              Scratch& scratch, const Rows& out) const;

  /// Finds or loads the tile's query rows and fills p, dropped and ds; false, doing nothing, when
  /// position hides the whole tile. With `bias_only`, ds is the gradient of the bias: before the
  /// way back through the cap and without scale.
  bool gradient(const TilePlace& place, const Rows& known, Scratch& scratch,
                bool bias_only = false) const;

  // The second half of gradient(), for products worked out elsewhere: with scale * q.k in p and dP
  // in ds, first one, then the other.

  /// p: logits, hidden keys and padded columns -inf; ds: dP through dropout.
  void logits_of_scores(const TilePlace& place, Visibility seen, const Scratch& scratch) const;
  /// p: P, dropped: P after dropout, ds: scale * dS.
  void gradient_of_logits(const TilePlace& place, const Rows& known, const Scratch& scratch,
                          bool bias_only) const;
  /// Hidden keys and columns up to `padded` become -inf in p.
  void hide(const TilePlace& place, int padded, float* p) const;
  const CaptureGradients& capture_gradients() const { return steps_.capture_gradients(); }
  /// True where each element of dbias belongs to one pair: gradient() stores it, and who calls it
  /// has cleared dbias before.
  bool stores_bias_gradient() const { return stores_bias_; }
  /// True when nothing comes between scores and P, or after it.
  bool plain() const { return !steps_.elementwise() && !steps_.has_dropout(); }

 private:
  /// Finds or loads the tile's query rows; those that see nothing become 0.
  void load_queries_of(const TilePlace& place, const Rows& known, Scratch& scratch) const;
  /// Logits into p and dP (through dropout) into ds.
  void logits(const TilePlace& place, Visibility seen, const Scratch& scratch) const;
  /// gradient() where no more than position decides the logits: scores become P in registers, and
  /// without dropout dP becomes dS.
  void gradient_of_position(const TilePlace& place, Visibility seen, const Rows& known,
                            const Scratch& scratch) const;
  void store_bias_gradient(const TilePlace& place, const float* ds) const;
  /// P after dropout into `dropped`.
  void drop_probabilities(const TilePlace& place, const Scratch& scratch) const;
  template <class Use>
  void for_scores(const TilePlace& place, const Scratch& scratch, const Use& use) const;
  template <class Use>
  void for_output_gradients(const TilePlace& place, const Scratch& scratch, const Use& use) const;
  template <class Use>
  void for_panels(const TilePlace& place, PanelProduct product, const Use& use) const;

  const Problem& p_;
  const Micro& micro_;
  ScoreSteps steps_;
  bool log2_;  ///< scores of keys that were packed here are in units of ln 2
  bool stores_bias_;
  std::int64_t ld_q_, ld_v_;
};

}  // namespace tilewise::cpu
