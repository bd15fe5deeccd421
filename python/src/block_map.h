/// The blocks of pairs that a mask leaves, for Python's BlockMask.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace tilewise::python {

namespace nb = nanobind;

/// (B, H, row_offsets, block_index, block_full): BlockMap's fields, tables as bytes; B and H are 1
/// where every batch entry or head has the same blocks. `captures` lie in host memory. Throws
/// InvalidArgument for a mask that is no boolean of a pair.
nb::tuple block_map(const std::string& mask, const nb::tuple& captures, std::int64_t batch,
                    std::int64_t heads, std::int64_t rows, std::int64_t keys, std::int64_t block_q,
                    std::int64_t block_k);

}  // namespace tilewise::python
