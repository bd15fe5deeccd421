/// The implementations that exist to be compared with: they keep S x S matrices in memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "plan/kernel_row.h"

namespace tilewise::cpu {

/// baseline_fwd, eager_fwd, eager_bwd, fused_fwd, fused_bwd.
std::span<const KernelRow> textbook_rows();

/// Why no textbook kernel supports a problem. Empty if one may.
std::string textbook_refusal(const Problem& problem);

/// Shape of S and P: (B, Hq, Sq, Sk); packed: (1, Hq, total_q, max_k), a sequence's rows where its
/// queries are.
std::array<std::int64_t, 4> scores_shape(const Problem& problem);

/// Element (b, h, row, 0) of a buffer of that shape; `row` counts along the S axis of Q.
std::int64_t score_at(const Problem& problem, std::int64_t b, std::int64_t h, std::int64_t row);

// One per file: baseline.cpp, eager.cpp, fused.cpp.
extern const KernelRow kBaselineForward;
extern const KernelRow kEagerForward, kEagerBackward;
extern const KernelRow kFusedForward, kFusedBackward;

}  // namespace tilewise::cpu
