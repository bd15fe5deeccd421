/// FlashAttention-2 backward (Dao 2023, Algorithm 2) with products of bfloat16 factors, on AMX
/// tiles or vdpbf16ps. Schedule, memory and numbers: flash_bwd_bf16.md.
#include <cmath>
#include <limits>
#include <numbers>

#include "cpu/flash/flash.h"
#include "cpu/flash/flash_bwd.h"
#include "cpu/micro/bf16_rows.h"
#include "cpu/micro/elements.h"
#include "plan/batch_invariance.h"

namespace tilewise::cpu {
namespace {

constexpr std::int64_t kLdPairs = std::int64_t{2} * kTileKeys;  // a row of pairs of a tile
constexpr int kBoundaryRowsBf16 = 32;  // query rows are an inner length: whole steps of 32
constexpr int kPanelKeys = 32;         // keys are one too, and columns
constexpr auto kLog2E = std::numbers::log2e_v<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Problems of few terms, where the rounding of P and dS would show in the gradients: what it
/// leaves is multiplied too.
bool is_small(const Problem& p) {
  constexpr std::int64_t kPairs = std::int64_t{1} << 17;
  // A sparse list leaves few terms of many pairs; the lists of others must not decide.
  const bool listed = p.listed_pairs >= 0.0 && !p.deterministic;
  if (listed && p.listed_pairs <= static_cast<double>(kPairs)) return true;
  return planned_batch(p) * p.heads_q * p.seq_q * p.seq_k <= kPairs;
}

/// Sizes beside BackwardGeometry's.
struct PackedGeometry {
  std::int64_t d, dv;   ///< head dims as inner lengths
  std::int64_t blocks;  ///< of kTileRows query rows, of all heads
  std::int64_t blocks_per_head;
  std::int64_t block_rows;    ///< of short sequences fewer than kTileRows
  std::int64_t block_elems;   ///< a block of Q and dO, as rows and transposed
  std::int64_t worker_elems;  ///< what is packed of a block of keys, and rounded tiles
  std::int64_t sum_elems;     ///< float32: dK^T, dV^T and a tile of dQ

  PackedGeometry(const Problem& p, const BackwardGeometry& g)
      : d(round_up(p.head_dim, 32)),
        dv(round_up(p.head_dim_v, 32)),
        blocks_per_head(ceil_div(p.seq_q, kTileRows)),
        block_rows(std::min<std::int64_t>(kTileRows, round_up(p.seq_q, kBoundaryRowsBf16))) {
    blocks = p.batch * p.heads_q * blocks_per_head;
    block_elems = 2 * block_rows * (d + dv);
    worker_elems = kTileKeys * (3 * d + 2 * dv + std::int64_t{3} * kTileRows);
    sum_elems = kTileKeys * (d + dv) + kTileRows * g.ld_q;
  }
};

std::vector<MemoryPart> packed_items(const Problem& p, const BackwardGeometry& g) {
  using Role = MemoryItem::Role;
  const PackedGeometry packed(p, g);
  return {
      memory_part("packed Q, dO", Role::workspace, p.dtype, {packed.blocks, packed.block_elems}),
      memory_part("packed K, V, P, dS", Role::workspace, p.dtype, {g.workers, packed.worker_elems}),
      memory_part("dK^T, dV^T, dQ tile", Role::workspace, DType::float32,
                  {g.workers, packed.sum_elems})};
}

class Bf16Backward final : public Backward {
 public:
  Bf16Backward(const Problem& p, const Micro& micro, const Bf16Micro& products,
               const Context& context, WorkspaceCutter& cut)
      : Backward(p, micro, context, cut),
        products_(products),
        packed_(p, geometry_),
        small_(is_small(p)) {
    queries_ = cut.take<Bf16>(packed_.blocks * packed_.block_elems);
    tiles_ = cut.take<Bf16>(geometry_.workers * packed_.worker_elems);
    sums_ = cut.take<float>(geometry_.workers * packed_.sum_elems);
  }

 private:
  /// A block of query rows: rows are A of S and dP, the transposed ones A of dK^T and dV^T.
  struct Queries {
    Bf16 *q, *d_o;      ///< block_rows x d, dv
    Bf16 *q_t, *d_o_t;  ///< d, dv x block_rows
  };
  /// A worker's block of keys and tile.
  struct Keys {
    Bf16 *k_t, *v_t;  ///< B of S and dP: pairs along D
    Bf16* k;          ///< B of dQ: pairs of keys
    Bf16* rows;       ///< kTileKeys x max(d, dv): keys before they are packed
    GradientTile tile;
    float *dk_t, *dv_t, *dq;
  };

  Queries queries(std::int64_t b, std::int64_t h, std::int64_t block) const {
    Bf16* at =
        queries_ + ((b * p_.heads_q + h) * packed_.blocks_per_head + block) * packed_.block_elems;
    const std::int64_t q = packed_.block_rows * packed_.d;
    const std::int64_t d_o = packed_.block_rows * packed_.dv;
    return {at, at + q, at + q + d_o, at + 2 * q + d_o};
  }

  Keys keys(int slot) const {
    Keys keys{};
    Bf16* at = tiles_ + slot * packed_.worker_elems;
    const auto take = [&](std::int64_t elems) {
      Bf16* part = at;
      at += elems * kTileKeys;
      return part;
    };
    keys.k_t = take(packed_.d);
    keys.v_t = take(packed_.dv);
    keys.k = take(packed_.d);
    keys.rows = take(std::max(packed_.d, packed_.dv));
    keys.tile = {.p_pairs = take(kTileRows),
                 .ds_pairs = take(kTileRows),
                 .ds_rows = take(kTileRows),
                 .ld_pairs = kLdPairs,
                 .ld_rows = kTileKeys};
    keys.dk_t = sums_ + slot * packed_.sum_elems;
    keys.dv_t = keys.dk_t + kTileKeys * packed_.d;
    keys.dq = keys.dv_t + kTileKeys * packed_.dv;
    return keys;
  }

  void pack_rows(const RowBlock& block) const override {
    const Queries to = queries(block.b, block.h, block.i0 / kTileRows);
    const auto padded = static_cast<int>(round_up(block.rows, kBoundaryRowsBf16));
    const RowSpan rows{block.sequence.q_begin + block.i0, block.rows, padded};
    bf16_rows(p_.q, block.b, block.h, rows, to.q, packed_.d);
    bf16_rows(p_.d_o, block.b, block.h, rows, to.d_o, packed_.dv);
    const ScoreTileStep::Rows known = this->known(block.b, block.h, rows.first);
    for (int r = 0; r < block.rows; ++r) {  // 0 times NaN would be NaN
      if (!known.sees_nothing(r)) continue;
      std::fill_n(to.q + r * packed_.d, packed_.d, Bf16{0});
      std::fill_n(to.d_o + r * packed_.dv, packed_.dv, Bf16{0});
    }
    products_.transpose(padded, static_cast<int>(packed_.d), to.q, packed_.d, to.q_t,
                        packed_.block_rows);
    products_.transpose(padded, static_cast<int>(packed_.dv), to.d_o, packed_.dv, to.d_o_t,
                        packed_.block_rows);
  }

  /// Keys of a block as products take them.
  static int padded_keys(const KeyBlock& block) {
    return static_cast<int>(round_up(block.keys, kPanelKeys));
  }

  void pack_keys(const KeyBlock& block, const Keys& to) const {
    const int padded = padded_keys(block);
    const RowSpan rows{block.j0, block.keys, padded};
    const auto d = static_cast<int>(packed_.d);
    const auto dv = static_cast<int>(packed_.dv);
    const Bf16Rows v =
        bf16_key_view(p_, p_.v, block.b, block.sequence, block.h_k, rows, to.rows, dv);
    products_.pack_transposed_pairs(padded, dv, v.data, v.ld, to.v_t, kLdPairs);
    const Bf16Rows k =
        bf16_key_view(p_, p_.k, block.b, block.sequence, block.h_k, rows, to.rows, d);
    products_.pack_transposed_pairs(padded, d, k.data, k.ld, to.k_t, kLdPairs);
    products_.pack_pairs(padded, d, k.data, k.ld, to.k, 2 * packed_.d);
  }

  void key_block(const KeyBlock& block, int slot, float* dk, float* dv) const override {
    const Micro& micro = tile_.micro();
    const Keys keys = this->keys(slot);
    const int padded = padded_keys(block);
    for (std::int64_t row = 0; row < packed_.d + packed_.dv; ++row) {
      std::fill_n(keys.dk_t + row * kTileKeys, padded, 0.0F);
    }
    pack_keys(block, keys);
    products_.enter();
    for (std::int64_t head = 0; head < p_.group(); ++head) {
      for_tiles(block, head, kBoundaryRowsBf16, true, [&](const TilePlace& at) {
        if (!gradient(at, keys, block, slot)) return;
        add_products(at, keys, block.split);
        if (!small_) return;
        const ScoreTileStep::Scratch scratch = tile_scratch(slot);
        const int cols = static_cast<int>(round_up(at.cols, 32));
        products_.remainder(at.rows, cols, scratch.dropped, kTileKeys);
        products_.remainder(at.rows, cols, scratch.ds, kTileKeys);
        products_.round_gradient(at.rows, cols, scratch.dropped, scratch.ds, kTileKeys, keys.tile);
        add_products(at, keys, block.split);
      });
    }
    products_.leave();
    micro.transpose(static_cast<int>(geometry_.ld_q), padded, keys.dk_t, kTileKeys, dk,
                    geometry_.ld_q, 1.0F);
    micro.transpose(static_cast<int>(geometry_.ld_v), padded, keys.dv_t, kTileKeys, dv,
                    geometry_.ld_v, 1.0F);
  }

  /// P and scale * dS of a tile, rounded; false when position hides the whole tile.
  bool gradient(const TilePlace& at, const Keys& keys, const KeyBlock& block, int slot) const {
    const Visibility seen = tile_visibility(p_, at);
    if (seen == Visibility::none) return false;
    ScoreTileStep::Scratch scratch = tile_scratch(slot);
    const ScoreTileStep::Rows known = this->known(at.b, at.h, at.sequence.q_begin + at.i0);
    const int cols = static_cast<int>(round_up(at.cols, 32));
    float lse_log2[kTileRows];
    // The scores that the low part of LSE belongs to, and the dP whose average delta is.
    if (!moderate(at, known, lse_log2) || sees_one_key(at)) {
      tile_.load_keys_of(block.b, block.sequence, block.h_k, block.j0, block.keys, scratch);
      tile_.gradient(at, known, scratch);
      round(at, cols, scratch, keys);
      return true;
    }
    scores(at, cols, keys, scratch);
    if (small_ || !tile_.plain() || p_.scale <= 0.0F) {
      products_.scale(at.rows, cols, scratch.p, kTileKeys, p_.scale);
      tile_.logits_of_scores(at, seen, scratch);
      tile_.gradient_of_logits(at, known, scratch, false);
      round(at, cols, scratch, keys);
      return true;
    }
    if (seen == Visibility::some || cols > at.cols) tile_.hide(at, cols, scratch.p);
    products_.gradient_step(at.rows, cols, scratch.p, scratch.ds, kTileKeys, p_.scale * kLog2E,
                            lse_log2, known.delta, p_.scale, keys.tile);
    return true;
  }

  /// S / scale into p, dP into ds.
  void scores(const TilePlace& at, int cols, const Keys& keys,
              const ScoreTileStep::Scratch& scratch) const {
    const Queries from = queries(at.b, at.h, at.i0 / kTileRows);
    const std::int64_t row = at.i0 % kTileRows;
    const auto d = static_cast<int>(packed_.d);
    const auto dv = static_cast<int>(packed_.dv);
    products_.gemm(at.rows, cols, d, from.q + row * d, d, keys.k_t, kLdPairs, scratch.p, kTileKeys,
                   false);
    products_.gemm(at.rows, cols, dv, from.d_o + row * dv, dv, keys.v_t, kLdPairs, scratch.ds,
                   kTileKeys, false);
  }

  /// P and dS of the float32 tile.
  void round(const TilePlace& at, int cols, const ScoreTileStep::Scratch& scratch,
             const Keys& keys) const {
    for (int r = 0; r < at.rows; ++r) {
      for (int c = at.cols; c < cols; ++c) {
        scratch.dropped[r * kTileKeys + c] = 0.0F;
        scratch.ds[r * kTileKeys + c] = 0.0F;
      }
    }
    products_.round_gradient(at.rows, cols, scratch.dropped, scratch.ds, kTileKeys, keys.tile);
  }

  /// True where no row sees more than one key: dP is delta, and dS 0.
  bool sees_one_key(const TilePlace& at) const {
    for (int r = 0; r < at.rows; ++r) {
      if (keys_seen(p_, at, at.i0 + r, 2) > 1) return false;
    }
    return true;
  }

  /// LSE in the exponent's unit; false where a float32 is too coarse for it.
  bool moderate(const TilePlace& at, const ScoreTileStep::Rows& known, float* lse_log2) const {
    constexpr float kCoarse = 512.0F;
    const auto* lse = static_cast<const float*>(p_.lse.data);
    for (int r = 0; r < at.rows; ++r) {
      const float value = lse[offset_of(p_.lse, at.b, at.h, at.sequence.q_begin + at.i0 + r)];
      if (std::isfinite(value) && std::abs(value) > kCoarse) return false;
      lse_log2[r] = value == -kInfinity ? kInfinity : (value + known.lse_low[r]) * kLog2E;
    }
    return true;
  }

  /// (B3) dV^T += dO^T P; (B9) dK^T += Q^T dS; (B8) dQ += dS K. Scale is in dS.
  void add_products(const TilePlace& at, const Keys& keys, int split) const {
    const auto ld_q = static_cast<int>(geometry_.ld_q);
    const auto ld_v = static_cast<int>(geometry_.ld_v);
    const Queries from = queries(at.b, at.h, at.i0 / kTileRows);
    const std::int64_t row = at.i0 % kTileRows;
    const int rows = static_cast<int>(round_up(at.rows, 32));
    const int cols = static_cast<int>(round_up(at.cols, 32));
    const GradientTile& tile = keys.tile;
    products_.gemm(ld_v, cols, rows, from.d_o_t + row, packed_.block_rows, tile.p_pairs,
                   tile.ld_pairs, keys.dv_t, kTileKeys, true);
    products_.gemm(ld_q, cols, rows, from.q_t + row, packed_.block_rows, tile.ds_pairs,
                   tile.ld_pairs, keys.dk_t, kTileKeys, true);
    float* dq = dq_rows(split, at.b, at.h, at.sequence.q_begin + at.i0);
    if (at.rows % 16 == 0) {
      products_.gemm(at.rows, ld_q, cols, tile.ds_rows, tile.ld_rows, keys.k, 2 * packed_.d, dq,
                     ld_q, true);
      return;
    }
    // The product writes whole tiles of rows: those past the end are others'.
    products_.gemm(at.rows, ld_q, cols, tile.ds_rows, tile.ld_rows, keys.k, 2 * packed_.d, keys.dq,
                   ld_q, false);
    for (int i = 0; i < at.rows * ld_q; ++i) dq[i] += keys.dq[i];
  }

  const Bf16Micro& products_;
  PackedGeometry packed_;
  bool small_;
  Bf16 *queries_, *tiles_;
  float* sums_;
};

}  // namespace

bool half_tiles(const Problem& p) {
  constexpr std::int64_t kHalf = kBoundaryRowsBf16 / 2;
  return !takes_first_kernel(p) && p.seq_q <= kHalf && p.seq_k <= kHalf;
}

void flash_backward_bf16(const KernelRow& row, const Problem& problem, const Context& context) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  WorkspaceCutter cut(context.workspace);
  Bf16Backward(problem, micro(isa), bf16_micro(isa), context, cut).run();
}

Prepared flash_backward_bf16_prepared(const KernelRow& row, const Problem& problem,
                                      const Hardware& machine) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  const Form form = backward_form(problem, micro(isa), kPanelKeys, machine);
  const BackwardGeometry g(problem, micro(isa), kPanelKeys, form.threads, form.splits);
  Cost cost;
  set_form(cost, form);
  cost.memory = Backward::workspace_items(problem, micro(isa), g);
  for (const MemoryPart& part : packed_items(problem, g)) cost.memory.push_back(part);
  predict_flash_time(problem, machine, isa, cost);
  return {std::move(cost), remember(g)};
}

}  // namespace tilewise::cpu
