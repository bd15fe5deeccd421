/// Matrix products by cuBLAS, opened at run time: what `eager` and `fused` are made of.
#pragma once

#include <cstdint>
#include <string>

#include "tilewise/tensor.h"

namespace tilewise::cuda {

/// Workspace that a session is given: what NVIDIA advises for Hopper; on older devices it needs
/// less.
inline constexpr std::int64_t kCublasWorkspaceBytes = std::int64_t{32} << 20;

/// A batch of row-major matrices of one shape.
struct MatrixBatch {
  const void* data = nullptr;
  DType dtype = DType::float32;
  bool transposed = false;  ///< the product takes the transpose of what lies in memory
  std::int64_t row_stride = 0;
  std::int64_t batch_stride = 0;
};

/// C = alpha * A B + beta * C for each of `batches`. A is m x k, B is k x n (after transposition),
/// C is m x n. Products and sums in float32; A and B have one type, C has that type or is float32.
struct MatrixProduct {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batches = 1;
  float alpha = 1.0F;
  float beta = 0.0F;  ///< 0: C is not read
  MatrixBatch a, b;
  void* c = nullptr;
  DType c_dtype = DType::float32;
  std::int64_t c_row_stride = 0, c_batch_stride = 0;
};

/// Lends a cuBLAS handle for some products on one stream. Nothing but `workspace` is used as
/// scratch memory.
class CublasSession {
 public:
  /// `tf32`: float32 operands may be rounded to tf32. Throws DeviceError.
  CublasSession(int device, void* stream, void* workspace, std::int64_t workspace_bytes, bool tf32);
  ~CublasSession();
  CublasSession(const CublasSession&) = delete;
  CublasSession& operator=(const CublasSession&) = delete;

  /// Throws DeviceError, InvalidArgument for sizes beyond 2^31 - 1.
  void multiply(const MatrixProduct& product);

 private:
  int device_;
  void* stream_;
  void* handle_ = nullptr;
  bool tf32_;
};

}  // namespace tilewise::cuda
