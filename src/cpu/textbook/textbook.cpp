#include "cpu/textbook/textbook.h"

#include <algorithm>
#include <array>
#include <climits>

namespace tilewise::cpu {

std::span<const KernelRow> textbook_rows() {
  static const std::array rows{kFusedForward, kFusedBackward, kEagerForward, kEagerBackward,
                               kBaselineForward};
  return rows;
}

std::string textbook_refusal(const Problem& p) {
  if (p.dtype == DType::float64)
    return "float64 is not supported by this kernel (only by the reference)";
  if (p.paged) return "paged K and V are not supported by this kernel";
  if (p.block_list.defined()) return "block lists are not supported by this kernel";
  if (p.score_function.defined()) return "a score expression is not supported by this kernel";
  if (p.mask_function.defined()) return "a mask expression is not supported by this kernel";
  constexpr std::int64_t kMost = INT_MAX;  // what a BLAS call takes
  if (std::max({p.seq_q, p.seq_k, p.head_dim, p.head_dim_v}) > kMost) {
    return "lengths and head dims above " + std::to_string(kMost);
  }
  return "";
}

std::array<std::int64_t, 4> scores_shape(const Problem& p) {
  return {p.stored_batch(), p.heads_q, p.total_q, p.seq_k};
}

std::int64_t score_at(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t row) {
  return p.query_row(b, h, row) * p.seq_k;
}

}  // namespace tilewise::cpu
