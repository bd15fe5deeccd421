/// Products by cuBLAS or by the kernel of product.cuh, and the 16-bit twins that they and the
/// attention take.
#include <algorithm>

#include "layers/cuda_ops.h"
#include "problem/blocks.h"

namespace tilewise::asam {
namespace {

namespace steps = layer_steps;

/// A tensor (B, heads, tokens, dim) and where its twin lies.
steps::Twin twin_of(const Tensor& t, void* half) {
  return {.data = static_cast<float*>(t.data),
          .half = static_cast<unsigned short*>(half),
          .stride_b = t.strides[0],
          .stride_h = t.strides[1],
          .stride_s = t.strides[2],
          .heads = static_cast<int>(t.sizes[1]),
          .tokens = static_cast<int>(t.sizes[2]),
          .dim = static_cast<int>(t.sizes[3]),
          .elems = t.numel()};
}

}  // namespace

void CudaOps::narrow(std::span<Tensor> tensors, int filled) {
  if (compute_ == DType::float32) return;
  steps::TwinArgs args{.bf16 = compute_ == DType::bfloat16};
  std::int64_t most = 0;
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    Tensor& t = tensors[n];
    void* half = halves_[n].room(memory_, t.numel());
    if (static_cast<int>(n) < filled) {
      args.twins[n] = twin_of(t, half);
      most = std::max(most, t.numel());
    }
    t = Tensor::bshd(half, compute_, t.sizes[0], t.sizes[2], t.sizes[1], t.sizes[3], t.device);
  }
  start(Step::narrow, args, blocks_for(most), filled);
}

void CudaOps::widen(std::span<const Tensor> twins, std::span<const Tensor> tensors) {
  if (compute_ == DType::float32) return;
  steps::TwinArgs args{.bf16 = compute_ == DType::bfloat16};
  std::int64_t most = 0;
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    args.twins[n] = twin_of(tensors[n], twins[n].data);
    most = std::max(most, tensors[n].numel());
  }
  start(Step::widen, args, blocks_for(most), static_cast<int>(tensors.size()));
}

std::vector<cuda::MatrixBatch> CudaOps::factors(std::initializer_list<Factor> wide) {
  std::vector<cuda::MatrixBatch> out;
  steps::TwinArgs args{.bf16 = compute_ == DType::bfloat16};
  std::int64_t most = 0;
  for (const Factor& f : wide) {
    const std::size_t n = out.size();
    const std::int64_t elems = f.rows * f.cols;
    out.push_back(
        {.data = f.data, .dtype = compute_, .transposed = f.transposed, .row_stride = f.cols});
    if (compute_ == DType::float32) continue;
    unsigned short* half = halves_[n].room(memory_, elems);
    out.back().data = half;
    args.twins[n] = {.data = const_cast<float*>(f.data),
                     .half = half,
                     .stride_s = f.cols,
                     .tokens = static_cast<int>(f.rows),
                     .dim = static_cast<int>(f.cols),
                     .elems = elems};
    most = std::max(most, elems);
  }
  if (compute_ != DType::float32) {
    start(Step::narrow, args, blocks_for(most), static_cast<int>(out.size()));
  }
  return out;
}

void CudaOps::linear(const float* x, const float* w, float* y, const Epilogue<float>& epilogue,
                     LinearShape s) {
  if (compute_ == DType::float32 && s.in % 4 == 0) return multiply(x, w, y, epilogue, s);
  float* z = epilogue.z != nullptr ? epilogue.z : y;
  const auto f = factors({{x, s.rows, s.in, false}, {w, s.out, s.in, true}});
  cuda::CublasSession session(device_, stream_, products_.get(), cuda::kCublasWorkspaceBytes,
                              false);
  session.multiply(
      {.m = s.rows, .n = s.out, .k = s.in, .a = f[0], .b = f[1], .c = z, .c_row_stride = s.out});
  finish_linear(z, y, epilogue, {s.rows, s.out});
}

void CudaOps::multiply(const float* x, const float* w, float* y, const Epilogue<float>& epilogue,
                       LinearShape s) {
  const steps::ProductArgs args{.x = x,
                                .w = w,
                                .bias = epilogue.bias,
                                .residual = epilogue.residual,
                                .z = epilogue.z,
                                .y = y,
                                .f = device_activation(epilogue.f),
                                .rows = s.rows,
                                .in = static_cast<int>(s.in),
                                .out = static_cast<int>(s.out)};
  const auto blocks = [&](std::int64_t rows) {
    return ceil_div(s.rows, rows) * ceil_div(s.out, std::int64_t{steps::kProductColumns});
  };
  // Fewer blocks than multiprocessors leave some without work: then blocks of half the rows.
  constexpr std::int64_t kMultiprocessors = 132;
  const bool large = blocks(64) >= kMultiprocessors;
  start(large ? Step::product_64 : Step::product_32, args, blocks(large ? 64 : 32));
}

void CudaOps::linear_backward(const float* x, const float* w, const float* dy, float* dx, float* dw,
                              LinearShape s) {
  auto f = factors({{dy, s.rows, s.out, false}, {x, s.rows, s.in, false}, {w, s.out, s.in, false}});
  cuda::CublasSession session(device_, stream_, products_.get(), cuda::kCublasWorkspaceBytes,
                              false);
  if (dx != nullptr) {
    session.multiply(
        {.m = s.rows, .n = s.in, .k = s.out, .a = f[0], .b = f[2], .c = dx, .c_row_stride = s.in});
  }
  f[0].transposed = true;
  session.multiply({.m = s.out,
                    .n = s.in,
                    .k = s.rows,
                    .beta = 1.0F,
                    .a = f[0],
                    .b = f[1],
                    .c = dw,
                    .c_row_stride = s.in});
}

}  // namespace tilewise::asam
