/// AttentionSpec: what to compute, in the field's words. docs/math.md holds the equations.
///
///   P = softmax(mask(mod(cap(scale * Q K^T) + bias)));  O = dropout(P) V
///
/// i is a query index, j a key index, Sq and Sk the lengths of one sequence, Hq and Hk head counts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tilewise/expression.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Which diagonal a causal mask follows when Sq != Sk.
enum class Causal : std::uint8_t {
  none,
  bottom_right,  ///< j <= i + Sk - Sq (FlashAttention's; the default meaning of "causal" here)
  top_left,      ///< j <= i (torch's scaled_dot_product_attention)
};

/// Sliding window, inclusive: i + Sk - Sq - left <= j <= i + Sk - Sq + right. Not given = unbounded
/// on that side; a negative value is an offset. A window of W keys ending at the query's own key is
/// left = W - 1, right = 0.
struct Window {
  std::optional<std::int64_t> left;
  std::optional<std::int64_t> right;
  bool operator==(const Window&) const = default;
};

/// How float32 inputs are multiplied. exact: float32 accuracy, whatever unit computes it. refined:
/// exact, and backward takes delta = rowsum(P dP) from P, not from an O that 16 bits have rounded:
/// for keys with a large common part (docs/numerics.md). It costs two products more.
enum class Precision : std::uint8_t { exact, tf32, refined };

/// Dropout on P. The keep bit is a function of (seed, offset, b, h, i, j) only: Philox 4x32-10 with
/// key = seed and counter = (j / 4, i, b * Hq + h, offset), word j mod 4; keep iff word >= floor(p
/// * 2^32). Salmon et al. 2011.
struct Dropout {
  double p = 0.0;  ///< in [0, 1]; kept values are scaled by 1 / (1 - p); 1 gives O = 0
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< its low 32 bits are the counter's last word
  bool operator==(const Dropout&) const = default;
};

/// The visible (query block, key block) pairs as CSR, per (B|1, Hq|1). Other masks still apply to
/// partial blocks; on full blocks the caller promises that they would hide nothing, and whether a
/// pair is seen that one of them hides is undefined. Packed: B counts sequences, and blocks begin
/// anew in each; there are as many as max_seqlen_q and max_seqlen_k have.
struct BlockList {
  Tensor row_offsets;  ///< int32 (B|1, Hq|1, query_blocks + 1), offsets into block_index
  Tensor block_index;  ///< int32 (pairs): key block of each pair, ascending within a row
  Tensor block_full;   ///< bool or uint8 (pairs): nonzero = the block needs no element mask; may be
                       ///< not given
  std::int64_t block_q = 0;  ///< rows of a query block, > 0
  std::int64_t block_k = 0;  ///< keys of a key block, > 0
  bool defined() const { return row_offsets.defined() || block_index.defined(); }
};

/// A tile of scores that a ScoreMod sees: rows i0 .. i0+rows-1, keys j0 .. j0+cols-1 of batch entry
/// b, query head h.
struct ScoreTile {
  float* scores = nullptr;      ///< in place; element (r, c) is scores[r * row_stride + c]
  std::int64_t row_stride = 0;  ///< in elements
  std::int64_t rows = 0, cols = 0;
  std::int64_t b = 0, h = 0, i0 = 0, j0 = 0;
};

/// A score function of the caller's own, for the CPU. It sees logits after scale, cap and bias,
/// before the mask. Both callables run concurrently on different tiles, may be called for any
/// tiling, and must not throw.
struct ScoreMod {
  /// x -> mod(x), in place.
  std::function<void(const ScoreTile& x)> apply;
  /// grad *= d mod / dx at x. `x` holds the logits before apply; `grad` has the same shape and
  /// strides. Needed for backward only.
  std::function<void(const ScoreTile& x, float* grad)> derivative;
};

/// Everything that decides what attention computes. Defaults: no mask, scale 1/sqrt(D), no options.
struct AttentionSpec {
  std::optional<double> scale =
      {};  ///< not given: 1/sqrt(D) of the caller's D; 0 and negative are valid, NaN/Inf not

  Causal causal = Causal::none;
  Window window = {};  ///< with causal: right bound min(right, 0)
  Tensor mask = {};    ///< bool, true = visible; broadcasts to (B, Hq, Sq, Sk); packed: (1|Hq,
                       ///< total_q, max_k)
  BlockList block_list = {};  ///< all masks given apply together (AND)
  /// A boolean: true = visible. It reads no score.
  Expression mask_expression = {};

  double softcap = 0.0;      ///< c of c * tanh(x / c); 0 = off
  Tensor alibi_slopes = {};  ///< float32 (Hq) or (B, Hq): bias -= slope * |i + Sk - Sq - j|
  Tensor bias = {};          ///< any float type, used in float32; shapes as mask; -inf hides a key
  Tensor sinks = {};         ///< float32 (Hq): a logit that takes probability and gives no value
  const ScoreMod* score_mod = nullptr;  ///< CPU only; not beside a score expression
  /// The logit that softmax sees, from score(), the one after scale, cap, bias and ALiBi; -inf
  /// hides the pair.
  Expression score_expression = {};
  Dropout dropout = {};
  /// int64 (1), on the device of q: added to dropout's offset when a kernel reads it. So a replayed
  /// graph drops anew once the number has changed. Backward needs what its forward read.
  Tensor dropout_counter = {};

  Tensor key_lengths = {};  ///< int32 (B): keys of each batch entry; bits beyond them never matter

  /// Packed sequences: int32 or int64 (sequences + 1), non-decreasing, from 0. Both or none; with
  /// block_table cu_seqlens_q alone.
  Tensor cu_seqlens_q = {}, cu_seqlens_k = {};
  /// Upper bounds of the packed lengths, cut to the rows there are; 0 = read from host offsets. An
  /// error without offsets. With device offsets nobody can see that a bound is too small: what is
  /// computed then is undefined. With block_table max_seqlen_k bounds key_lengths, 0 = the table's
  /// pages.
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;

  /// Paged KV: int32 (B, max_pages); k and v are then pools with logical axes (pages, Hk,
  /// page_size, D), and key_lengths is required. Entries past the length are never read. Beside
  /// cu_seqlens_q the queries are packed, and B counts sequences.
  Tensor block_table = {};

  bool deterministic = false;  ///< backward bitwise repeatable under any load; no result depends on
                               ///< the rest of the batch: the plan is that of one entry
  Precision precision = Precision::exact;
};

}  // namespace tilewise
