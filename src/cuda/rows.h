/// The CUDA room's part of the kernel table.
#pragma once

#include <span>

#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// Every CUDA row, most special first. A kernel's row.h declares its rows and its pack units.
/// rows.cpp lists both.
std::span<const KernelRow> cuda_rows();

}  // namespace tilewise::cuda
