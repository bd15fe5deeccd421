// libcublas.so.13 that computes its one product on the host, element by element.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "../fake_driver/blas_handle.h"

namespace {

enum Type { kFloat32 = 0, kFloat16 = 2, kBfloat16 = 14 };

/// A matrix of column-major storage, of one batch entry.
struct Matrix {
  char* data;
  int type;
  long stride;

  float get(long row, long column, bool is_transposed = false) const {
    const long at = is_transposed ? column + row * stride : row + column * stride;
    if (type == kFloat32) return read<float>(at);
    if (type == kFloat16) return static_cast<float>(read<_Float16>(at));
    const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(at)} << 16;
    float x;
    return std::memcpy(&x, &bits, 4), x;
  }
  void set(long row, long column, float x) const {
    const long at = row + column * stride;
    if (type == kFloat32) return write(at, x);
    if (type == kFloat16) return write(at, static_cast<_Float16>(x));
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    write(at,
          static_cast<std::uint16_t>(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16));
  }

 private:
  template <class T>
  T read(long at) const {
    T x;
    return std::memcpy(&x, data + at * static_cast<long>(sizeof(T)), sizeof(T)), x;
  }
  template <class T>
  void write(long at, T x) const {
    std::memcpy(data + at * static_cast<long>(sizeof(T)), &x, sizeof(T));
  }
};

Matrix entry(const void* data, int type, int stride, long long batch_stride, int batch) {
  auto* all = static_cast<char*>(const_cast<void*>(data));
  return {all + batch * batch_stride * (type == kFloat32 ? 4 : 2), type, stride};
}

/// Rights to device memory, which the driver gives.
class OpenMemory {
 public:
  OpenMemory() { call("card_open_memory"); }
  ~OpenMemory() { call("card_close_memory"); }
  OpenMemory(const OpenMemory&) = delete;

 private:
  static void call(const char* name) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    reinterpret_cast<void (*)()>(dlsym(driver, name))();
  }
};

}  // namespace

extern "C" {

int cublasGemmStridedBatchedEx(void*, int transpose_a, int transpose_b, int m, int n, int k,
                               const void* alpha, const void* a_data, int a_type, int lda,
                               long long stride_a, const void* b_data, int b_type, int ldb,
                               long long stride_b, const void* beta, void* c_data, int c_type,
                               int ldc, long long stride_c, int batches, int, int) {
  const float product_scale = *static_cast<const float*>(alpha);
  const float old_scale = *static_cast<const float*>(beta);
  const OpenMemory open;
  for (int batch = 0; batch < batches; ++batch) {
    const Matrix a = entry(a_data, a_type, lda, stride_a, batch);
    const Matrix b = entry(b_data, b_type, ldb, stride_b, batch);
    const Matrix c = entry(c_data, c_type, ldc, stride_c, batch);
    for (int column = 0; column < n; ++column) {
      for (int row = 0; row < m; ++row) {
        float sum = 0.0F;
        for (int i = 0; i < k; ++i)
          sum += a.get(row, i, transpose_a != 0) * b.get(i, column, transpose_b != 0);
        const float old = old_scale != 0.0F ? old_scale * c.get(row, column) : 0.0F;
        c.set(row, column, product_scale * sum + old);
      }
    }
  }
  return 0;
}

}  // extern "C"
