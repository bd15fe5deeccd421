/// append() for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

/// inputs: k, v, k_cache, v_cache, lengths, q. outputs: new_lengths, skipped, rotated_q. options:
/// block_table, cu_seqlens, max_seqlen, cos, sin, positions, interleaved, one_query_position,
/// layout. What is not given is None.
void append_call(const nanobind::tuple& inputs, const nanobind::tuple& outputs,
                 const nanobind::tuple& options);

}  // namespace tilewise::python
