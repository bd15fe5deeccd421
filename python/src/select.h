/// select_blocks() and select_block_mask() for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

/// inputs: q, k, key_lengths. outputs: row_offsets, block_index, mask: the first two or the last.
/// options: block_q, block_k, weights (mean, maximum, minimum, variance), scale, causal, rule (0
/// top_k, 1 mass, 2 above), count, share (the mass or the threshold), keep_diagonal, keep_first,
/// layout. What is not given is None.
void select_call(const nanobind::tuple& inputs, const nanobind::tuple& outputs,
                 const nanobind::tuple& options);

}  // namespace tilewise::python
