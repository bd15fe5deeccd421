/// Rows of bfloat16 tensors as they are, for the bfloat16 flash kernels.
#pragma once

#include <cstdint>

#include "cpu/micro/bf16_micro.h"
#include "problem/problem.h"

namespace tilewise::cpu {

/// `count` rows from `first` on; rows up to `padded` become 0.
struct RowSpan {
  std::int64_t first;
  int count, padded;
};

/// Rows as they may be read: where they lie, or a copy.
struct Bf16Rows {
  const Bf16* data;
  std::int64_t ld;
};

/// Rows of (b, h) of `t` along its S axis; columns past the head dim are 0 up to `ld`.
void bf16_rows(const Tensor& t, std::int64_t b, std::int64_t h, const RowSpan& rows, Bf16* out,
               std::int64_t ld);

/// Where they lie if nothing of them is padding, else copied to `out`.
Bf16Rows bf16_view(const Tensor& t, std::int64_t b, std::int64_t h, const RowSpan& rows, Bf16* out,
                   std::int64_t ld);

/// The same of a sequence's keys, through the page table when there is one.
Bf16Rows bf16_key_view(const Problem& p, const Tensor& pool, std::int64_t b, const Sequence& s,
                       std::int64_t h, const RowSpan& rows, Bf16* out, std::int64_t ld);

}  // namespace tilewise::cpu
