#include "cuda/kernels/rows/copy.h"

#include "cuda/driver/launch.h"
#include "cuda/host/common.h"
#include "cuda/jit/kernel.h"
#include "cuda/kernels/rows/copy_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {

void copy_elements(const Tensor& from, const Tensor& to, void* stream) {
  copy_rows::Args args;
  args.from = host::view4(from);
  args.to = host::view4(to);
  args.heads = static_cast<int>(to.sizes[1]);
  args.rows = to.sizes[2];
  args.dim = static_cast<int>(to.sizes[3]);
  args.elements = to.numel();
  const KernelUnit unit = {.stem = "copy_rows",
                           .file = "rows/copy",
                           .config = ".element_bytes = " + std::to_string(dtype_bytes(to.dtype)),
                           .threads = copy_rows::kThreads};
  launch(load(unit, to.device.index), {.x = ceil_div(args.elements, copy_rows::kThreads)}, stream,
         args);
}

}  // namespace tilewise::cuda
