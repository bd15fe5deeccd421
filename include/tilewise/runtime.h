/// Resources that a caller can provide: memory, threads, a stream. Each has a default.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tilewise/tensor.h"

namespace tilewise {

/// Provides workspace. Implementations must be thread-safe. The library makes large allocations
/// only through the Allocator of the call.
class TILEWISE_API Allocator {
 public:
  Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator();
  /// Returns `bytes` > 0 of memory on `device`, aligned to 256 bytes and usable on `stream`. Throws
  /// OutOfMemory.
  virtual void* allocate(std::int64_t bytes, Device device, void* stream) = 0;
  /// Frees memory from allocate(). On a GPU, work queued on `stream` may still use it.
  virtual void release(void* data, std::int64_t bytes, Device device, void* stream) noexcept = 0;
};

/// Provides aligned host memory and, on CUDA devices, stream-ordered device memory.
TILEWISE_API Allocator& default_allocator();

/// Runs CPU work in parallel. Implement it to use OpenMP, TBB or a framework's pool.
class TILEWISE_API Executor {
 public:
  using Body = std::function<void(std::int64_t task, int worker)>;
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor();
  /// Maximum number of concurrent bodies; `worker` is in [0, concurrency()).
  virtual int concurrency() const = 0;
  /// Calls body(task, worker) once for every task in [0, tasks), starts lower tasks first, and
  /// returns when all are done. Two bodies with the same `worker` never overlap. Rethrows the
  /// exception of a body.
  virtual void parallel_for(std::int64_t tasks, const Body& body) = 0;
};

/// Makes a persistent pool of `threads` threads, including the caller's. A call from one of its
/// bodies, or while another thread uses the pool, runs only on the calling thread. The pool never
/// oversubscribes. Throws InvalidArgument for threads < 1.
TILEWISE_API std::unique_ptr<Executor> make_thread_pool(int threads);

/// The process-wide pool. Its size is TILEWISE_NUM_THREADS, else OMP_NUM_THREADS, else the number
/// of CPUs that affinity and the CFS quota of the control group allow, rounded down.
TILEWISE_API Executor& default_executor();

/// How to run a call. No field changes the result.
struct Launch {
  void* stream = nullptr;          ///< CUstream; null = default stream; unused on the CPU
  Allocator* allocator = nullptr;  ///< null = default_allocator()
  void* workspace = nullptr;  ///< null, or at least Plan::workspace_bytes of the caller's memory,
                              ///< aligned to 256 bytes
  std::int64_t workspace_bytes = 0;
  Executor* executor = nullptr;  ///< null = default_executor()
};

}  // namespace tilewise
