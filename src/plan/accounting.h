/// Counting: visible pairs, FLOPs, and the bytes of every tensor that a pass holds.
#pragma once

#include <vector>

#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise {

/// (query, key) pairs that position, lengths and block list leave visible, over batch and query
/// heads. Element masks do not count. Packed lengths on a device: estimated from the totals. A list
/// on a device: as many pairs as it has room for.
double visible_pairs(const Problem& problem);

/// Without the block list, whose contents a plan made from shapes does not know.
double positional_pairs(const Problem& problem);

/// Forward: 2 * pairs * (D + Dv). Backward: 2 * pairs * (3 D + 2 Dv), i.e. 2.5 times forward when D
/// = Dv.
double attention_flops(const Problem& problem);
double attention_flops(const Problem& problem, double pairs);

/// Inputs, outputs and gradients of the call itself (not what a kernel adds).
std::vector<MemoryItem> problem_memory(const Problem& problem);

/// Bytes of them all, without their words.
double problem_bytes(const Problem& problem);

/// A MemoryItem with its bytes worked out from a shape.
MemoryItem memory_item(std::string name, MemoryItem::Role role, DType dtype,
                       const std::vector<std::int64_t>& shape);

/// Bytes of the items with the given role.
std::int64_t bytes_of(const std::vector<MemoryItem>& items, MemoryItem::Role role);

}  // namespace tilewise
