/// Host side of what baseline, eager and fused share.
#pragma once

#include <string>

#include "cuda/jit/unit.h"
#include "cuda/kernels/textbook/textbook_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// Why none of them runs a problem; empty when they may.
std::string textbook_refusal(const Problem& problem);

/// ".storage = tilewise::textbook::Storage::bf16": of a Config.
std::string storage_config(DType dtype);

textbook::LogitRule logit_rule(const Problem& problem);
textbook::RowView row_view(const Tensor& tensor);
tile::View4 view4(const Tensor& tensor);

/// B * Hq * Sq.
std::int64_t score_rows(const Problem& problem);

}  // namespace tilewise::cuda
