#include "cuda/kernels/rows/copy.h"

#include "cuda/driver/launch.h"
#include "cuda/host/common.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernel.h"
#include "cuda/kernels/rows/copy_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {

namespace {

void start(copy_rows::Args args, const Tensor& from, const Tensor& to, void* stream) {
  args.from = host::view4(from);
  args.to = host::view4(to);
  args.heads = static_cast<int>(to.sizes[1]);
  args.rows = to.sizes[2];
  args.dim = static_cast<int>(to.sizes[3]);
  args.elements = to.numel();
  const KernelUnit unit = {.stem = "copy_rows",
                           .file = "rows/copy",
                           .config = ".element_bytes = " + std::to_string(dtype_bytes(to.dtype)) +
                                     (args.lse != nullptr ? flag_text("hides", true) : ""),
                           .threads = copy_rows::kThreads};
  launch(load(unit, to.device.index), {.x = ceil_div(args.elements, copy_rows::kThreads)}, stream,
         args);
}

}  // namespace

void copy_elements(const Tensor& from, const Tensor& to, void* stream) {
  start({}, from, to, stream);
}

void copy_seen_rows(const Tensor& from, const Tensor& to, const Tensor& lse, void* stream) {
  copy_rows::Args args;
  args.lse = static_cast<const float*>(lse.data);
  args.lse_b = lse.strides[0];
  args.lse_h = lse.strides[1];
  args.lse_s = lse.strides[2];
  start(args, from, to, stream);
}

}  // namespace tilewise::cuda
