/// The host's BLAS, opened at run time: OpenBLAS by its soname, or the library that TILEWISE_BLAS
/// names. It multiplies for `eager` and `fused`; nothing else needs it.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::cpu {

/// A float32 matrix in row-major memory, read as it lies or transposed.
struct Factor {
  const float* data = nullptr;
  std::int64_t ld = 0;
  bool transposed = false;
};

class Blas {
 public:
  /// The process's BLAS, opened by the first call; null when there is none.
  static const Blas* get();
  /// Why get() gives null, and what brings it; empty when it does not.
  static std::string missing_reason();

  /// Throws OutOfMemory where a limit of the address space (ulimit -v) leaves no room for the
  /// buffers of so many threads that multiply at once: OpenBLAS would ask for them for ever. What
  /// was granted before is not asked for again.
  static void require_room(int threads);

  /// C (m x n) = A (m x k) B (k x n) + beta C. Sizes and leading dimensions fit in an int.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Factor a, Factor b, float beta,
                float* c, std::int64_t ldc) const;

  /// While one lives, BLAS calls run on the calling thread alone: threads of its own beside our
  /// pool would fight over the CPUs. The number that the process had set before comes back
  /// afterwards.
  class OneThread {
   public:
    explicit OneThread(const Blas& blas);
    ~OneThread();
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;

   private:
    const Blas& blas_;
  };

  /// "libopenblas.so.0".
  const std::string& name() const { return name_; }

 private:
  // cblas.h's enums have the size of an int.
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c,
                         int ldc);
  using GetThreads = int (*)();
  using SetThreads = void (*)(int);

  static const struct Opened& opened();
  friend struct Opened;

  std::string name_;
  Sgemm sgemm_ = nullptr;
  GetThreads get_threads_ = nullptr;  ///< null: not an OpenBLAS
  SetThreads set_threads_ = nullptr;
};

}  // namespace tilewise::cpu
