/// append_rows on the host. See rows/append.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "problem/append.h"

namespace tilewise::cuda {

/// Starts append() on a stream. Throws DeviceError, CompileError, and Unsupported for sizes past 32
/// bits.
void append(const Append& call, void* stream);

void add_append_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
