/// merge_rows on the host. See rows/README.md.
#pragma once

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/merge_args.h"
#include "tilewise/tensor.h"

namespace tilewise::cuda {

/// merge() of attention.h for tensors (B, Hq, Sq, Dv) and (B, Hq, Sq) of a GPU, on a stream. Throws
/// DeviceError, CompileError.
void merge(const Tensor& o, const Tensor& lse, const Tensor& o_other, const Tensor& lse_other,
           void* stream);

/// For tests.
merge_rows::Config merge_config(const Tensor& o, const Tensor& o_other);
merge_rows::Args merge_args(const Tensor& o, const Tensor& lse, const Tensor& o_other,
                            const Tensor& lse_other);

}  // namespace tilewise::cuda
