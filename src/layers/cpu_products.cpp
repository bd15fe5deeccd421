/// Products of matrices.
#include <optional>
#include <type_traits>

#include "cpu/textbook/blas.h"
#include "layers/cpu_ops.h"

namespace tilewise::asam {
namespace {

/// A matrix as it lies in memory, read as such or transposed.
template <class T>
struct Matrix {
  const T* data;
  std::int64_t ld;
  bool transposed;
  T at(std::int64_t i, std::int64_t j) const {
    return transposed ? data[j * ld + i] : data[i * ld + j];
  }
};

/// Rows `begin` to `end` of C (m x n) = A (m x k) B (k x n) + beta C.
template <class T>
void product(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t k, Matrix<T> a,
             Matrix<T> b, T beta, T* c) {
  if constexpr (std::is_same_v<T, float>) {
    if (const cpu::Blas* blas = cpu::Blas::get(); blas != nullptr) {
      const float* rows = a.data + begin * (a.transposed ? 1 : a.ld);
      blas->multiply(end - begin, n, k, {rows, a.ld, a.transposed}, {b.data, b.ld, b.transposed},
                     beta, c + begin * n, n);
      return;
    }
  }
  for (std::int64_t i = begin; i < end; ++i) {
    T* row = c + i * n;
    for (std::int64_t j = 0; j < n; ++j) row[j] = beta == T{0} ? T{0} : beta * row[j];
    for (std::int64_t p = 0; p < k; ++p) {
      const T factor = a.at(i, p);
      for (std::int64_t j = 0; j < n; ++j) row[j] += factor * b.at(p, j);
    }
  }
}

/// Keeps the BLAS on the calling threads, where it multiplies.
template <class T>
class QuietBlas {
 public:
  QuietBlas() {
    if constexpr (std::is_same_v<T, float>) {
      if (const cpu::Blas* blas = cpu::Blas::get(); blas != nullptr) one_thread_.emplace(*blas);
    }
  }

 private:
  std::optional<cpu::Blas::OneThread> one_thread_;
};

}  // namespace

template <class T>
void CpuOps<T>::linear(Factor<T> x, const T* w, T* y, const Epilogue<T>& epilogue, LinearShape s) {
  const QuietBlas<T> quiet;
  const T* rows = wide(x, x_, {s.rows, s.in});
  T* z = epilogue.z != nullptr ? epilogue.z : y;
  each(s.rows, s.in * s.out, [&](std::int64_t begin, std::int64_t end) {
    product<T>(begin, end, s.out, s.in, {rows, s.in, false}, {w, s.in, true}, 0, z);
  });
  this->finish_linear(z, y, epilogue, {s.rows, s.out});
}

template <class T>
void CpuOps<T>::linear_backward(Factor<T> x, const T* w, Factor<T> dy, T* dx, T* dw,
                                LinearShape s) {
  const QuietBlas<T> quiet;
  const T* d = wide(dy, dy_, {s.rows, s.out});
  if (dx != nullptr) {
    each(s.rows, s.in * s.out, [&](std::int64_t begin, std::int64_t end) {
      product<T>(begin, end, s.in, s.out, {d, s.out, false}, {w, s.in, false}, 0, dx);
    });
  }
  if (dw == nullptr) return;
  const T* rows = wide(x, x_, {s.rows, s.in});
  each(s.out, s.in * s.rows, [&](std::int64_t begin, std::int64_t end) {
    product<T>(begin, end, s.in, s.rows, {d, s.out, true}, {rows, s.in, false}, 1, dw);
  });
}

template void CpuOps<float>::linear(Factor<float>, const float*, float*, const Epilogue<float>&,
                                    LinearShape);
template void CpuOps<double>::linear(Factor<double>, const double*, double*,
                                     const Epilogue<double>&, LinearShape);
template void CpuOps<float>::linear_backward(Factor<float>, const float*, Factor<float>, float*,
                                             float*, LinearShape);
template void CpuOps<double>::linear_backward(Factor<double>, const double*, Factor<double>,
                                              double*, double*, LinearShape);

}  // namespace tilewise::asam
