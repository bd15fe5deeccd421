/// Gates of blocks: captured tensors of which every pair of a block of queries and a block of keys
/// reads one element. See bwd_sm80/captures.md.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "cuda/kernels/bwd_sm80/capture_blocks_args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// As BlockArgs has it.
struct Gate {
  std::array<bwd_captures_sm80::GateAxis, 4> axes{};
  std::array<int, 4> sizes{}, per{};
};

/// The gate that a captured tensor is in a backward problem. Empty where pairs of a block may read
/// several of its elements, and for packed sequences.
std::optional<Gate> gate_of(const Problem& problem, std::size_t capture);

}  // namespace tilewise::cuda
