/// Products by cuBLAS or by the kernel of product.cuh, and the 16-bit twins that they take.
#include <algorithm>

#include "layers/cuda_ops.h"
#include "problem/blocks.h"

namespace tilewise::asam {
namespace {

namespace steps = layer_steps;

/// A matrix without gaps.
steps::Twin flat_twin(const float* x, std::uint16_t* half, Shape s) {
  return {.data = const_cast<float*>(x),
          .half = half,
          .stride_s = s.cols,
          .tokens = static_cast<int>(s.rows),
          .dim = static_cast<int>(s.cols),
          .elems = s.rows * s.cols};
}

}  // namespace

std::vector<cuda::MatrixBatch> CudaOps::factors(std::initializer_list<Matrix> matrices) {
  std::vector<cuda::MatrixBatch> out;
  steps::TwinArgs args{.bf16 = compute_ == DType::bfloat16};
  std::int64_t most = 0;
  int twins = 0;
  for (const Matrix& m : matrices) {
    const std::size_t n = out.size();
    const std::int64_t elems = m.rows * m.cols;
    out.push_back(
        {.data = m.data.wide, .dtype = compute_, .transposed = m.transposed, .row_stride = m.cols});
    if (m.data.half != nullptr) out.back().data = m.data.half;
    if (compute_ == DType::float32 || m.data.half != nullptr) continue;
    unsigned short* half = halves_[n].room(memory_, elems);
    out.back().data = half;
    args.twins[twins++] = flat_twin(m.data.wide, half, {m.rows, m.cols});
    most = std::max(most, elems);
  }
  if (twins > 0) start(Step::narrow, args, blocks_for(most), twins);
  return out;
}

void CudaOps::to_half(const float* x, std::uint16_t* half, Shape s) {
  steps::TwinArgs args{.bf16 = compute_ == DType::bfloat16};
  args.twins[0] = flat_twin(x, half, s);
  start(Step::narrow, args, blocks_for(s.rows * s.cols));
}

void CudaOps::from_half(const std::uint16_t* half, float* x, Shape s) {
  steps::TwinArgs args{.bf16 = compute_ == DType::bfloat16};
  args.twins[0] = flat_twin(x, const_cast<std::uint16_t*>(half), s);
  start(Step::widen, args, blocks_for(s.rows * s.cols));
}

void CudaOps::linear(Factor<float> x, const float* w, float* y, const Epilogue<float>& epilogue,
                     LinearShape s) {
  if (compute_ == DType::float32 && s.in % 4 == 0) return multiply(x.wide, w, y, epilogue, s);
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

void CudaOps::linear_backward(Factor<float> x, const float* w, Factor<float> dy, float* dx,
                              float* dw, LinearShape s) {
  std::vector<cuda::MatrixBatch> f;
  const Matrix d{dy, s.rows, s.out, false}, rows{x, s.rows, s.in, false},
      weights{w, s.out, s.in, false};
  if (dx == nullptr) {
    f = factors({d, rows});
  } else if (dw == nullptr) {
    f = factors({d, weights});
  } else {
    f = factors({d, rows, weights});
  }
  cuda::CublasSession session(device_, stream_, products_.get(), cuda::kCublasWorkspaceBytes,
                              false);
  if (dx != nullptr) {
    session.multiply({.m = s.rows,
                      .n = s.in,
                      .k = s.out,
                      .a = f[0],
                      .b = f.back(),
                      .c = dx,
                      .c_row_stride = s.in});
  }
  if (dw == nullptr) return;
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
