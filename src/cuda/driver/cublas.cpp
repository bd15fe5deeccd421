#include "cuda/driver/cublas.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <vector>

#include "cuda/driver/cuda_types.h"
#include "cuda/driver/device.h"
#include "cuda/driver/library.h"
#include "cuda/driver/memory.h"

namespace tilewise::cuda {
namespace {

using Handle = void*;
using Status = int;

// Values of cuBLAS's enumerations.
constexpr int kOperationNone = 0, kOperationTranspose = 1;
constexpr int kComputeFloat32 = 68, kComputeFastTf32 = 77;
constexpr int kAlgorithmDefault = -1;
/// CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: partial sums of 16-bit products stay float32.
constexpr int kMathFullReduction = 16;

/// One pointer a function, named as in cuBLAS's manual.
struct Cublas {
  Status (*cublasCreate)(Handle* handle);
  Status (*cublasSetStream)(Handle handle, CUstream stream);
  Status (*cublasSetWorkspace)(Handle handle, void* workspace, std::size_t bytes);
  Status (*cublasSetMathMode)(Handle handle, int mode);
  const char* (*cublasGetStatusString)(Status status);
  Status (*cublasGemmStridedBatchedEx)(Handle handle, int operation_a, int operation_b, int m,
                                       int n, int k, const void* alpha, const void* a, int a_type,
                                       int lda, long long stride_a, const void* b, int b_type,
                                       int ldb, long long stride_b, const void* beta, void* c,
                                       int c_type, int ldc, long long stride_c, int batches,
                                       int compute_type, int algorithm);
};

struct OpenedCublas {
  Cublas functions{};
  bool usable = false;
  std::string reason;
};

bool resolve_all(SharedLibrary& library, Cublas& c) {
  return library.resolve("cublasCreate_v2", c.cublasCreate) &&
         library.resolve("cublasSetStream_v2", c.cublasSetStream) &&
         library.resolve("cublasSetWorkspace_v2", c.cublasSetWorkspace) &&
         library.resolve("cublasSetMathMode", c.cublasSetMathMode) &&
         library.resolve("cublasGetStatusString", c.cublasGetStatusString) &&
         library.resolve("cublasGemmStridedBatchedEx", c.cublasGemmStridedBatchedEx);
}

OpenedCublas open_cublas() {
  OpenedCublas opened;
  SharedLibrary library;
  std::vector<std::string> names = {"libcublas.so.13", "libcublas.so.12"};
  if (driver_version().starts_with("12.")) std::swap(names[0], names[1]);
  names.emplace_back("libcublas.so");
  if (!library.open(names)) {
    opened.reason =
        "cuBLAS was not found (libcublas, from the CUDA toolkit or the Python package "
        "nvidia-cublas): " +
        library.error();
  } else if (!resolve_all(library, opened.functions)) {
    opened.reason = "cuBLAS is too old: " + library.error();
  } else {
    opened.usable = true;
  }
  return opened;
}

const OpenedCublas& opened_cublas() {
  static const OpenedCublas opened = open_cublas();
  return opened;
}

const Cublas& cublas() {
  const OpenedCublas& opened = opened_cublas();
  if (!opened.usable) throw DeviceError(opened.reason);
  return opened.functions;
}

void check(Status status, const char* call, int device) {
  if (status == 0) return;
  throw DeviceError(std::string(call) + " on cuda:" + std::to_string(device) + ": " +
                    cublas().cublasGetStatusString(status));
}

/// Handles that no session holds. A handle serves one thread at a time; none is ever destroyed,
/// because the driver may be gone first.
struct HandlePool {
  std::mutex mutex;
  std::vector<std::vector<Handle>> idle;  // by device
};

HandlePool& pool() {
  static HandlePool& kept = *new HandlePool;
  return kept;
}

Handle take_handle(int device) {
  HandlePool& handles = pool();
  {
    const std::lock_guard lock(handles.mutex);
    handles.idle.resize(static_cast<std::size_t>(device_count()));
    std::vector<Handle>& idle = handles.idle[static_cast<std::size_t>(device)];
    if (!idle.empty()) {
      const Handle handle = idle.back();
      idle.pop_back();
      return handle;
    }
  }
  Handle handle = nullptr;
  check(cublas().cublasCreate(&handle), "cublasCreate", device);
  check(cublas().cublasSetMathMode(handle, kMathFullReduction), "cublasSetMathMode", device);
  return handle;
}

int data_type(DType dtype) {
  if (dtype == DType::float16) return 2;
  if (dtype == DType::bfloat16) return 14;
  return 0;  // CUDA_R_32F
}

int narrow(std::int64_t value) {
  if (value > std::numeric_limits<int>::max()) {
    throw InvalidArgument("a matrix product has a size of " + std::to_string(value) +
                          ": cuBLAS takes at most 2^31 - 1");
  }
  return static_cast<int>(value);
}

/// Batches of one call: what a grid's z axis surely holds.
constexpr std::int64_t kBatchesAtOnce = 32768;

std::size_t element(DType dtype) { return static_cast<std::size_t>(dtype_bytes(dtype)); }

const std::byte* advance(const void* data, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(data) + elements * static_cast<std::int64_t>(element(dtype));
}

}  // namespace

CublasSession::CublasSession(int device, void* stream, void* workspace,
                             std::int64_t workspace_bytes, bool tf32)
    : device_(device), stream_(stream), tf32_(tf32) {
  const ContextScope scope(device);
  handle_ = take_handle(device);
  // NOTE: setting the stream takes the workspace away again: the order matters.
  check(cublas().cublasSetStream(handle_, static_cast<CUstream>(stream)), "cublasSetStream",
        device);
  check(cublas().cublasSetWorkspace(handle_, workspace, static_cast<std::size_t>(workspace_bytes)),
        "cublasSetWorkspace", device);
}

CublasSession::~CublasSession() {
  HandlePool& handles = pool();
  const std::lock_guard lock(handles.mutex);
  handles.idle[static_cast<std::size_t>(device_)].push_back(handle_);
}

void CublasSession::multiply(const MatrixProduct& p) {
  if (p.m <= 0 || p.n <= 0 || p.batches <= 0) return;
  if (p.k <= 0) {
    // An empty sum. C is contiguous wherever this can happen.
    fill_bytes(p.c, 0, p.batches * p.m * p.n * dtype_bytes(p.c_dtype), device_, stream_);
    return;
  }
  const ContextScope scope(device_);
  const auto operation = [](const MatrixBatch& x) {
    return x.transposed ? kOperationTranspose : kOperationNone;
  };
  for (std::int64_t first = 0; first < p.batches; first += kBatchesAtOnce) {
    const std::int64_t count = std::min(kBatchesAtOnce, p.batches - first);
    const void* a = advance(p.a.data, first * p.a.batch_stride, p.a.dtype);
    const void* b = advance(p.b.data, first * p.b.batch_stride, p.b.dtype);
    void* c = const_cast<std::byte*>(advance(p.c, first * p.c_batch_stride, p.c_dtype));
    // cuBLAS is column-major: what it sees as C^T = B^T A^T is our row-major C = A B.
    check(cublas().cublasGemmStridedBatchedEx(
              handle_, operation(p.b), operation(p.a), narrow(p.n), narrow(p.m), narrow(p.k),
              &p.alpha, b, data_type(p.b.dtype), narrow(p.b.row_stride), p.b.batch_stride, a,
              data_type(p.a.dtype), narrow(p.a.row_stride), p.a.batch_stride, &p.beta, c,
              data_type(p.c_dtype), narrow(p.c_row_stride), p.c_batch_stride, narrow(count),
              tf32_ ? kComputeFastTf32 : kComputeFloat32, kAlgorithmDefault),
          "cublasGemmStridedBatchedEx", device_);
  }
}

}  // namespace tilewise::cuda
