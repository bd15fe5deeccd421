/// Block lists that scores of blocks choose: which blocks of keys each block of queries attends.
///
///   tilewise::BlockSelection by{.block_q = 64, .block_k = 64, .rule = BlockRule::top_k, .count =
///   8}; tilewise::BlockList list = ...;  // row_offsets, and block_index of
///   selected_blocks_bound() tilewise::select_blocks(q, k, by, list);
///
/// Nothing has an element for every pair of tokens, and on a GPU the host waits for nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "tilewise/runtime.h"
#include "tilewise/spec.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// What a block's tokens are scored by, feature by feature: the score of a block of queries and a
/// block of keys is scale * sum over statistics of weight * (statistic of Q) . (statistic of K).
struct PoolWeights {
  double mean = 1.0;
  double maximum = 0.0;
  double minimum = 0.0;
  double variance = 0.0;  ///< over the block's tokens, divided by their number
};

/// Where scores of blocks come from.
/// pooled: PoolWeights of their tokens.
/// antidiagonal: of every tile of stride x stride pairs the sum of the logits on its antidiagonal,
/// over stride; a softmax over the tiles of a row of tiles; a block has the probabilities of its
/// tiles (XAttention, Xu et al. 2025). Tokens that a tile lacks are zeros. vertical_slash: the
/// probabilities of the last block_q queries over all keys, summed over the keys of a block and
/// over the pairs that are `distance` blocks apart. The rule takes blocks of keys, and distances;
/// every row attends to both (MInference, Jiang et al. 2024; FlexPrefill, Lai et al. 2025).
enum class BlockScorer { pooled, antidiagonal, vertical_slash };

/// Which blocks of a row are taken, once a softmax over its blocks of keys has made probabilities
/// of the scores. top_k: the `count` largest; mass: the fewest whose sum is at least `mass`;
/// above: those larger than `threshold`. Of equal ones the first is the larger.
enum class BlockRule { top_k, mass, above };

struct BlockSelection {
  std::int64_t block_q = 64, block_k = 64;  ///< tokens of a block, >= 1
  PoolWeights weights;                      ///< pooled: one of them is not 0
  std::optional<double> scale;              ///< not given: 1/sqrt(D)
  /// Blocks of which no pair lies on or left of the diagonal, shifted by Sk - Sq, are not taken.
  bool causal = false;
  Tensor key_lengths;  ///< int32 (B): keys of each batch entry; those past them are not looked at
  BlockRule rule = BlockRule::top_k;
  std::int64_t count = 0;
  double mass = 1.0;
  double threshold = 0.0;
  /// Whatever the scores: the blocks that hold the row's part of the shifted diagonal; the first.
  bool keep_diagonal = true, keep_first = true;
  BlockScorer scorer = BlockScorer::pooled;
  std::int64_t stride = 8;  ///< antidiagonal: it divides block_q and block_k
};

/// Entries that block_index needs room for. q (B, Hq, Sq, D), k (B, Hk, Sk, D): any float type, any
/// strides; data is not read. Throws InvalidArgument.
TILEWISE_API std::int64_t selected_blocks_bound(const Tensor& q, const Tensor& k,
                                                const BlockSelection& selection);

/// Writes row_offsets, int32 (B, Hq, ceil(Sq / block_q) + 1), and block_index, int32 with at least
/// selected_blocks_bound() entries, both contiguous and on q's device; what of block_index is not
/// used is left as it was. block_full, block_q and block_k are not looked at. Throws
/// InvalidArgument, Unsupported (on a GPU: float64, head dims above 256, more than 8192 blocks of
/// keys), OutOfMemory, DeviceError.
TILEWISE_API void select_blocks(const Tensor& q, const Tensor& k, const BlockSelection& selection,
                                const BlockList& list, const Launch& launch = {});

/// The same as a mask: bool or uint8 (B, Hq, query blocks, key blocks), contiguous; 1 is taken.
TILEWISE_API void select_block_mask(const Tensor& q, const Tensor& k,
                                    const BlockSelection& selection, const Tensor& mask,
                                    const Launch& launch = {});

}  // namespace tilewise
