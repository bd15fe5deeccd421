/// Problem: a call's arguments, checked and in canonical form. The only place where arguments are
/// judged; everything below trusts it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "expression/program.h"
#include "tilewise/attention.h"

namespace tilewise {

/// Where one sequence lies along the S axes of the tensors. Dense: q_begin = k_begin = 0 and the
/// batch stride moves from one to the next. Packed: the batch stride is 0 and the begins differ.
struct Sequence {
  std::int64_t q_begin = 0, q_length = 0;
  std::int64_t k_begin = 0, k_length = 0;
  /// Column of row 0's shifted diagonal: Sk - Sq.
  std::int64_t shift() const { return k_length - q_length; }
};

/// Half-open range of key indices; empty when begin >= end.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

struct Forms;
namespace expression {
struct Affine;
}

/// All tensors have logical axes (B, H, S, D) and rank 4; row statistics (B, H, S), rank 3; bias
/// and mask (B, Hq, Sq, Sk), rank 4; slopes (B, Hq), rank 2. An axis that broadcasts, and the batch
/// axis of packed tensors, has stride 0, so that element (b, h, s, d) is at b*strides[0] +
/// h*strides[1] + (begin + s)*strides[2] + d*strides[3].
struct Problem {
  /// Stands for "no bound" in left and right; far outside any index, far inside int64.
  static constexpr std::int64_t kUnbounded = std::int64_t{1} << 60;

  Pass pass = Pass::forward;
  Device device;
  DType dtype = DType::float32;

  std::int64_t batch = 0;  ///< dense batch entries or packed sequences
  std::int64_t heads_q = 0, heads_k = 0;
  std::int64_t seq_q = 0, seq_k = 0;  ///< dense lengths; packed or paged: upper bounds
  /// Rows along the S axes of the packed tensors; of others seq_q, and seq_k unless paged.
  std::int64_t total_q = 0, total_k = 0;
  std::int64_t head_dim = 0, head_dim_v = 0;
  bool packed = false;  ///< of paged keys only the queries are
  bool paged = false;
  std::int64_t page_size = 0;  ///< paged only

  Tensor q, k, v, o, lse;  ///< lse may be not given in forward; k, v are the pools when paged
  Tensor d_o, d_lse, dq, dk, dv;
  Tensor dbias, dsinks;
  SavedState saved;

  float scale = 0.0F;    ///< as kernels use it
  double scale64 = 0.0;  ///< as the reference uses it
  double softcap = 0.0;  ///< 0 = off
  Causal causal = Causal::none;
  std::int64_t left = kUnbounded;  ///< on the shifted diagonal, inclusive
  std::int64_t right =
      kUnbounded;  ///< on the shifted diagonal, inclusive; min(right, 0) when causal bottom_right
  Tensor mask, bias;    ///< expanded to (B, Hq, Sq, Sk)
  Tensor alibi_slopes;  ///< expanded to (B, Hq)
  Tensor sinks;         ///< (Hq)
  const ScoreMod* score_mod = nullptr;
  expression::Function score_function;  ///< its result is a real
  expression::Function mask_function;   ///< its result is a boolean
  Tensor tree;  ///< (B, n, W): what mask_function says are the words of a tree (expression/tree.h)
  std::shared_ptr<const expression::Gradient> score_gradient;  ///< of backward
  std::shared_ptr<const expression::Affine> score_affine;      ///< null: it has no such form
  std::vector<Tensor> dcaptures;  ///< of backward: one a capture of the score; not given = unwanted
  BlockList block_list;
  /// Visible by list, position and length, and in plans by blocks of the mask expression; -1: not
  /// counted, or nobody here can see.
  double listed_pairs = -1.0;
  Dropout dropout;         ///< its offset with what the host has read of the counter
  Tensor dropout_counter;  ///< int64 (1), where the device reads it
  Tensor key_lengths, cu_seqlens_q, cu_seqlens_k, block_table;
  bool deterministic = false;
  Precision precision = Precision::exact;
  Forms* forms = nullptr;  ///< of a problem that is planned for tuning: plan/forms.h

  /// True when the sequences share the S axis of k and v, too.
  bool packed_keys() const { return packed && !paged; }
  /// Entries along axis 0 of q, o and the like in memory: one when packed, whose sequences share
  /// the S axis.
  std::int64_t stored_batch() const { return packed ? 1 : batch; }
  /// Rows of Q in memory, of all entries and heads: the length of a buffer of row statistics.
  std::int64_t query_rows() const { return stored_batch() * heads_q * total_q; }
  /// The index of row `row` of (b, h), counted along the S axis, among query_rows().
  std::int64_t query_row(std::int64_t b, std::int64_t h, std::int64_t row) const {
    return ((packed ? 0 : b) * heads_q + h) * total_q + row;
  }
  /// Rows of dK and dV that a sequence owns; those past its k_length get 0.
  std::int64_t key_rows(const Sequence& s) const { return packed ? s.k_length : seq_k; }

  /// Query heads per key head.
  std::int64_t group() const { return heads_k > 0 ? heads_q / heads_k : 1; }
  bool has_window() const { return left != kUnbounded || right != kUnbounded; }
  /// True when position alone (causal, window) hides keys.
  bool has_positional_mask() const { return causal != Causal::none || has_window(); }

  /// The place of sequence b. Length tensors must be on the host.
  Sequence sequence(std::int64_t b) const;

  /// Keys that row i of a sequence may see by position and length: causal, window, k_length.
  /// CONTRACT 4, 5.
  KeyRange visible_keys(const Sequence& s, std::int64_t i) const {
    const std::int64_t diagonal = i + s.shift();
    std::int64_t begin = std::max<std::int64_t>(0, diagonal - left);
    std::int64_t end = std::min(s.k_length, diagonal + right + 1);
    if (causal == Causal::top_left) end = std::min(end, i + 1);
    return {begin, std::max(begin, end)};
  }

  /// Row along the S axis of k and v of key j; paged: of the pool seen as (pages * page_size) rows,
  /// as page and slot.
  struct KeyRow {
    std::int64_t batch = 0;  ///< index along axis 0 of k and v
    std::int64_t row = 0;    ///< index along axis 2
  };
  KeyRow key_row(std::int64_t b, const Sequence& s, std::int64_t j) const;
};

/// Whether data pointers must be valid: planning looks at shapes only.
enum class Purpose : std::uint8_t { plan, run };

/// Judges every argument. Throws InvalidArgument, which names the argument, its value and what was
/// expected.
Problem make_problem(const ForwardTensors& tensors, const AttentionSpec& spec, Purpose purpose);
Problem make_problem(const BackwardTensors& tensors, const AttentionSpec& spec, Purpose purpose);

}  // namespace tilewise
