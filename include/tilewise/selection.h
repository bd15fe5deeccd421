/// Selects the key blocks that each query block attends to, by scores of blocks.
///
///   tilewise::BlockSelection by{.rule = tilewise::BlockRule::top_k, .count = 8};
///   tilewise::BlockList list = ...;  // block_index has selected_blocks_bound() entries
///   tilewise::select_blocks(q, k, by, list);
///
/// No buffer has an element per pair of tokens, and the host never waits for a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "tilewise/runtime.h"
#include "tilewise/spec.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Weights of the statistics that score a block. A statistic pools a block's tokens per feature.
/// The score of a query block and a key block is scale * sum over statistics of weight * (statistic
/// of Q) . (statistic of K).
struct PoolWeights {
  double mean = 1.0;
  double maximum = 0.0;
  double minimum = 0.0;
  double variance = 0.0;  ///< over the block's tokens, divided by their number
};

/// The source of block scores.
///   pooled: PoolWeights of the blocks' tokens
///   antidiagonal: for every tile of stride x stride pairs, the sum of the logits on its
///     antidiagonal, over stride. A softmax over a row of tiles turns them into probabilities, and
///     a block has those of its tiles (XAttention, Xu et al. 2025). Missing tokens are zeros.
///   vertical_slash: the probabilities of the last block_q queries over all keys, summed per key
///     block and per distance in blocks. The rule selects key blocks, and distances, and every row
///     attends to both (MInference, Jiang et al. 2024; FlexPrefill, Lai et al. 2025).
enum class BlockScorer { pooled, antidiagonal, vertical_slash };

/// Which key blocks of a row are selected. A softmax over the row's key blocks turns scores into
/// probabilities.
///   top_k: the `count` largest
///   mass: the fewest blocks whose sum is at least `mass`
///   above: all blocks larger than `threshold`
/// Of equal blocks, the first counts as larger.
enum class BlockRule { top_k, mass, above };

struct BlockSelection {
  std::int64_t block_q = 64, block_k = 64;  ///< tokens per block, >= 1
  PoolWeights weights = {};                 ///< pooled: at least one is not 0
  std::optional<double> scale = {};         ///< default 1/sqrt(D)
  /// Excludes blocks without a pair on or left of the diagonal, which is shifted by Sk - Sq.
  bool causal = false;
  /// int32 (B): number of keys of each batch entry; keys past it are ignored
  Tensor key_lengths = {};
  BlockRule rule = BlockRule::top_k;
  std::int64_t count = 0;  ///< top_k: blocks per row, >= 0
  double mass = 1.0;       ///< mass: >= 0
  double threshold = 0.0;  ///< above: any number but NaN
  /// Always select the blocks on the row's part of the shifted diagonal, and the first block.
  bool keep_diagonal = true, keep_first = true;
  BlockScorer scorer = BlockScorer::pooled;
  std::int64_t stride = 8;  ///< antidiagonal: it divides block_q and block_k
};

/// Number of entries that block_index needs. q (B, Hq, Sq, D) and k (B, Hk, Sk, D) have any float
/// type and any strides; their data is not read. Throws InvalidArgument.
TILEWISE_API std::int64_t selected_blocks_bound(const Tensor& q, const Tensor& k,
                                                const BlockSelection& selection);

/// Writes row_offsets, int32 (B, Hq, ceil(Sq / block_q) + 1), and block_index, int32 with at least
/// selected_blocks_bound() entries, both contiguous and on q's device. Unused entries of
/// block_index keep their values. block_full, block_q and block_k are ignored. Throws
/// InvalidArgument, Unsupported (on a GPU: float64, head dims above 256, more than 8192 blocks of
/// keys), OutOfMemory, DeviceError.
TILEWISE_API void select_blocks(const Tensor& q, const Tensor& k, const BlockSelection& selection,
                                const BlockList& list, const Launch& launch = {});

/// The same selection as a mask: contiguous bool or uint8 (B, Hq, query blocks, key blocks); 1 =
/// selected.
TILEWISE_API void select_block_mask(const Tensor& q, const Tensor& k,
                                    const BlockSelection& selection, const Tensor& mask,
                                    const Launch& launch = {});

/// The scores that the pooled scorer compares, before the softmax: contiguous float32 (B, Hq, query
/// blocks, key blocks). A block that a row excludes has -inf. The rule, the kept blocks and the
/// scorer of `selection` are ignored. Throws InvalidArgument, Unsupported (on a GPU).
TILEWISE_API void score_blocks(const Tensor& q, const Tensor& k, const BlockSelection& selection,
                               const Tensor& scores, const Launch& launch = {});

/// dq and dk from the gradient of the scores, which is like the scores: float32, with the shapes of
/// q and k and any strides. A maximum and a minimum pass theirs to the first token that has it.
/// Scores of -inf pass no gradient. Throws InvalidArgument, Unsupported (on a GPU).
TILEWISE_API void score_blocks_backward(const Tensor& q, const Tensor& k,
                                        const BlockSelection& selection, const Tensor& d_scores,
                                        const Tensor& dq, const Tensor& dk,
                                        const Launch& launch = {});

/// Which blocks of sorted tokens share clusters. A token belongs to the centroid of the largest
/// cosine. A cluster counts in a block if it has more than threshold / C of the block's tokens. In
/// a query block only the `top` clusters with the most tokens count.
struct ClusterRouting {
  std::int64_t block_q = 64, block_k = 64;  ///< tokens per block, >= 1
  std::int64_t top = 2;                     ///< 1 to C
  double threshold = 1.0;                   ///< >= 0
  /// int32 (B): number of keys of each batch entry; the others are padding
  Tensor key_lengths = {};
};

/// Sorts tokens by their clusters, stably, and pairs the blocks that share one. Every query block
/// also gets the key block that shares the most tokens with it. centroids: (Hk, C, D), of q's type.
/// query_order, int32 (B, Hq, Sq), and key_order, int32 (B, Hk, Sk), get the token at each place,
/// padding last; mask, bool or uint8 (B, Hq, query blocks, key blocks), gets 1 for a pair. All
/// three are contiguous. Throws InvalidArgument, Unsupported (on a GPU).
TILEWISE_API void cluster_route(const Tensor& q, const Tensor& k, const Tensor& centroids,
                                const ClusterRouting& routing, const Tensor& query_order,
                                const Tensor& key_order, const Tensor& mask,
                                const Launch& launch = {});

}  // namespace tilewise
