/// AttentionSpec: the options of attention. docs/math.md has the equations.
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

/// The diagonal of a causal mask if Sq != Sk.
enum class Causal : std::uint8_t {
  none,
  bottom_right,  ///< j <= i + Sk - Sq, as in FlashAttention; the default meaning of "causal"
  top_left,      ///< j <= i, as in torch's scaled_dot_product_attention
};

/// Inclusive sliding window: i + Sk - Sq - left <= j <= i + Sk - Sq + right. A side that is not
/// given is unbounded. Negative values are offsets. A window of W keys that ends at the query's own
/// key has left = W - 1, right = 0.
struct Window {
  std::optional<std::int64_t> left = {};
  std::optional<std::int64_t> right = {};
  bool operator==(const Window&) const = default;
};

/// Precision of products.
///   exact: float32 accuracy on any unit
///   tf32: float32 factors keep eleven significant bits
///   refined: exact, and backward computes delta = rowsum(P dP) from P, not from the rounded O
/// refined helps if keys have a large common part (docs/numerics.md). It costs two more products.
enum class Precision : std::uint8_t { exact, tf32, refined };

/// Dropout on P. The keep bit depends only on (seed, offset, b, h, i, j). It comes from Philox
/// 4x32-10 with key = seed and counter = (j / 4, i, b * Hq + h, offset), word j mod 4
/// (Salmon et al. 2011). An element is kept if its word is at least floor(2^32 p).
struct Dropout {
  double p = 0.0;  ///< in [0, 1]; scales kept values by 1 / (1 - p); 1 gives O = 0
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< its low 32 bits are the last word of the counter
  bool operator==(const Dropout&) const = default;
};

/// The visible (query block, key block) pairs as CSR, per (B|1, Hq|1). Other masks still apply to
/// partial blocks. In full blocks the caller guarantees that no other mask hides a pair; otherwise
/// the result is undefined. With packed sequences, B counts sequences and each sequence has its own
/// blocks, as many as max_seqlen_q and max_seqlen_k need.
struct BlockList {
  Tensor row_offsets = {};   ///< int32 (B|1, Hq|1, query_blocks + 1), offsets into block_index
  Tensor block_index = {};   ///< int32 (pairs): key block of each pair, ascending within a row
  Tensor block_full = {};    ///< optional, bool or uint8 (pairs): nonzero = needs no element mask
  std::int64_t block_q = 0;  ///< query rows per block, > 0
  std::int64_t block_k = 0;  ///< keys per block, > 0
  bool defined() const { return row_offsets.defined() || block_index.defined(); }
};

/// A tile of scores for a ScoreMod: rows i0 .. i0+rows-1 and keys j0 .. j0+cols-1 of batch entry b
/// and query head h.
struct ScoreTile {
  float* scores = nullptr;      ///< in place; element (r, c) is scores[r * row_stride + c]
  std::int64_t row_stride = 0;  ///< in elements
  std::int64_t rows = 0, cols = 0;
  std::int64_t b = 0, h = 0, i0 = 0, j0 = 0;
};

/// A custom score function on the CPU. It receives logits after scale, softcap and bias, before the
/// mask. Both callables run concurrently on different tiles, must work for any tiling, and must not
/// throw.
struct ScoreMod {
  /// x -> mod(x), in place.
  std::function<void(const ScoreTile& x)> apply = {};
  /// grad *= d mod / dx at x. `x` holds the logits before apply. `grad` has the same shape and
  /// strides. Only backward needs it.
  std::function<void(const ScoreTile& x, float* grad)> derivative = {};
};

/// A bound of packed lengths: no sequence has a row. 0 means that no bound is given.
inline constexpr std::int64_t kNoRows = -1;

/// Everything that determines the result of attention. Defaults: no mask, scale 1/sqrt(D), no
/// options.
struct AttentionSpec {
  /// Default 1/sqrt(D). 0 and negative values are valid, NaN and infinity are not.
  std::optional<double> scale = {};

  Causal causal = Causal::none;
  Window window = {};  ///< with causal, the right bound is min(right, 0)
  /// bool, true = visible. Broadcasts to (B, Hq, Sq, Sk), packed to (1|Hq, total_q, max_k).
  Tensor mask = {};
  BlockList block_list = {};  ///< all masks are combined by AND
  /// A boolean, true = visible. It cannot read the score.
  Expression mask_expression = {};

  double softcap = 0.0;      ///< c in c * tanh(x / c); 0 = off
  Tensor alibi_slopes = {};  ///< float32 (Hq) or (B, Hq): bias -= slope * |i + Sk - Sq - j|
  Tensor bias = {};   ///< any float type, used in float32; same shapes as mask; -inf hides a key
  Tensor sinks = {};  ///< float32 (Hq): the logit of a key without a value
  const ScoreMod* score_mod = nullptr;  ///< CPU only; excludes score_expression
  /// The logit for softmax, computed from score(): the logit after scale, softcap, bias and ALiBi.
  /// -inf hides the pair.
  Expression score_expression = {};
  Dropout dropout = {};
  /// int64 (1) on the device of q. A kernel adds it to dropout's offset when it runs, so a replayed
  /// graph drops different elements once the number has changed. Backward needs the value that its
  /// forward read.
  Tensor dropout_counter = {};

  /// int32 (B): number of keys of each batch entry. Memory past them has no effect.
  Tensor key_lengths = {};

  /// Packed sequences: int32 or int64 (sequences + 1), non-decreasing, starting at 0. Give both, or
  /// with block_table only cu_seqlens_q.
  Tensor cu_seqlens_q = {}, cu_seqlens_k = {};
  /// Upper bounds of the packed lengths, clamped to the number of rows. 0 = read from host offsets,
  /// kNoRows = all are empty. They are an error without offsets. With device offsets, a bound that
  /// is too small cannot be detected and the result is undefined. With block_table, max_seqlen_k
  /// bounds key_lengths, and 0 = all pages of the table.
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;

  /// Paged KV cache: int32 (B, max_pages). k and v are then pools with logical axes (pages, Hk,
  /// page_size, D), and key_lengths is required. Entries past the length are never read. With
  /// cu_seqlens_q the queries are packed, and B counts sequences.
  Tensor block_table = {};

  /// Backward is bitwise repeatable under any load. Results do not depend on the rest of the batch,
  /// because the plan is made for one entry.
  bool deterministic = false;
  Precision precision = Precision::exact;
};

}  // namespace tilewise
