#include "cuda/kernels/rows/copy.h"

#include <cstdint>
#include <string>

#include "cuda/driver/launch.h"
#include "cuda/host/common.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernel.h"
#include "cuda/kernels/rows/copy_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {

namespace {

/// Neighbours on the innermost axis that both tensors hold side by side in aligned words of at most
/// 8 bytes: a power of two.
std::int64_t neighbours(const Tensor& from, const Tensor& to) {
  const std::int64_t bytes = dtype_bytes(to.dtype);
  std::int64_t most = 8 / bytes;
  const auto divides = [&](std::int64_t value) {
    while (value % most != 0) most /= 2;
  };
  for (const Tensor* t : {&from, &to}) {
    if (t->strides[3] != 1) return 1;
    divides(t->sizes[3]);
    for (int axis = 0; axis < 3; ++axis) divides(t->strides[axis]);
    const auto base = reinterpret_cast<std::uintptr_t>(t->data);
    while (base % static_cast<std::uintptr_t>(most * bytes) != 0) most /= 2;
  }
  return most;
}

/// The tensor in words of `words` elements.
tile::View4 view_of(const Tensor& t, std::int64_t words) {
  tile::View4 view = host::view4(t);
  for (long long* stride : {&view.stride_b, &view.stride_h, &view.stride_s}) *stride /= words;
  return view;
}

void start(copy_rows::Args args, const Tensor& from, const Tensor& to, void* stream) {
  const std::int64_t words = neighbours(from, to);
  args.from = view_of(from, words);
  args.to = view_of(to, words);
  args.heads = static_cast<int>(to.sizes[1]);
  args.rows = to.sizes[2];
  args.dim = static_cast<int>(to.sizes[3] / words);
  args.elements = to.numel() / words;
  const KernelUnit unit = {
      .stem = "copy_rows",
      .file = "rows/copy",
      .config = ".element_bytes = " + std::to_string(dtype_bytes(to.dtype) * words) +
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
