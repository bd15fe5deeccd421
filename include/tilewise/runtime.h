/// What a caller may bring along: memory, threads, a stream. Each has a default.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tilewise/tensor.h"

namespace tilewise {

/// Gives workspace. Thread-safe. The library allocates nothing large except through the Allocator
/// of the call.
class TILEWISE_API Allocator {
 public:
  Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator();
  /// `bytes` > 0 of memory on `device`, aligned to 256 bytes, usable on `stream`. Throws
  /// OutOfMemory.
  virtual void* allocate(std::int64_t bytes, Device device, void* stream) = 0;
  /// Takes back what allocate() gave; on a GPU the memory may still be in use by work queued on
  /// `stream`.
  virtual void release(void* data, std::int64_t bytes, Device device, void* stream) noexcept = 0;
};

/// Aligned host memory and, on CUDA devices, stream-ordered device memory.
TILEWISE_API Allocator& default_allocator();

/// Runs CPU work in parallel. Bring OpenMP, TBB or a framework's pool by implementing it.
class TILEWISE_API Executor {
 public:
  using Body = std::function<void(std::int64_t task, int worker)>;
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor();
  /// Most bodies that run at the same time; `worker` is in [0, concurrency()).
  virtual int concurrency() const = 0;
  /// Calls body(task, worker) once for every task in [0, tasks), lower tasks started first, and
  /// returns when all are done. Two bodies with the same `worker` never overlap. An exception of a
  /// body is rethrown here.
  virtual void parallel_for(std::int64_t tasks, const Body& body) = 0;
};

/// A persistent pool of `threads` threads, the caller's own included. A call from inside one of its
/// bodies, or while another thread is using the pool, runs on the calling thread alone: the pool
/// never over-subscribes. Throws InvalidArgument for threads < 1.
TILEWISE_API std::unique_ptr<Executor> make_thread_pool(int threads);

/// The process-wide pool: TILEWISE_NUM_THREADS, else OMP_NUM_THREADS, else the CPUs this process
/// may run on, or what the CFS quota of its control group leaves of them, rounded down.
TILEWISE_API Executor& default_executor();

/// How to run a call: everything that does not change what is computed.
struct Launch {
  void* stream =
      nullptr;  ///< CUstream of the tensors' device; null = its default stream; unused on the CPU
  Allocator* allocator = nullptr;  ///< null = default_allocator()
  void* workspace =
      nullptr;  ///< caller's own, at least Plan::workspace_bytes and 256-byte aligned; or null
  std::int64_t workspace_bytes = 0;
  Executor* executor = nullptr;  ///< null = default_executor()
};

}  // namespace tilewise
