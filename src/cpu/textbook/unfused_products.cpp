#include "cpu/textbook/unfused_products.h"

#include <algorithm>
#include <climits>
#include <vector>

#include "cpu/flash/tiles.h"

namespace tilewise::cpu {
namespace {

constexpr std::int64_t kLoadRows = 256;  ///< rows of a task that converts an operand

}  // namespace

bool direct(const Tensor& t) {
  return t.dtype == DType::float32 && t.strides[3] == 1 && t.strides[2] >= t.sizes[3] &&
         t.strides[2] <= INT_MAX;
}

Operand operand(const Tensor& t, bool packed, const float* copy) {
  if (direct(t)) {
    return {static_cast<const float*>(t.data), t.strides[0], t.strides[1], t.strides[2]};
  }
  const std::int64_t head = t.sizes[2] * t.sizes[3];
  return {copy, packed ? 0 : t.sizes[1] * head, head, t.sizes[3]};
}

void load_operand(const Tensor& t, bool packed, Executor& executor, int workers, float* copy) {
  if (direct(t)) return;
  const std::int64_t rows = t.sizes[2];
  const std::int64_t dim = t.sizes[3];
  const std::int64_t chunks = ceil_div(rows, kLoadRows);
  const std::int64_t heads = (packed ? 1 : t.sizes[0]) * t.sizes[1];
  run_tasks(executor, workers, heads * chunks, [&](std::int64_t task, int /*slot*/) {
    const std::int64_t head = task / chunks;
    const std::int64_t first = task % chunks * kLoadRows;
    const auto count = static_cast<int>(std::min(kLoadRows, rows - first));
    load_rows(t, head / t.sizes[1], head % t.sizes[1], first, count, static_cast<int>(dim),
              copy + (head * rows + first) * dim, dim);
  });
}

void Products::multiply(std::int64_t m, std::int64_t n, std::int64_t k, Factor a, const float* b,
                        std::int64_t ldb, bool add, float* c, std::int64_t ldc) const {
  if (m == 0 || n == 0) return;
  std::vector<std::int64_t> apart;
  std::int64_t begin = 0;
  const auto multiply_up_to = [&](std::int64_t end) {
    if (end > begin) {
      const Factor part{a.data + begin * (a.transposed ? a.ld : 1), a.ld, a.transposed};
      blas->multiply(m, n, end - begin, part, {b + begin * ldb, ldb}, add ? 1.0F : 0.0F, c, ldc);
      add = true;
    }
    begin = end + 1;
  };
  for (std::int64_t r = 0; r < k; ++r) {
    if (rows->all_finite(n, b + r * ldb)) continue;
    multiply_up_to(r);
    apart.push_back(r);
  }
  multiply_up_to(k);
  for (std::int64_t i = 0; !add && i < m; ++i) std::fill_n(c + i * ldc, n, 0.0F);
  for (const std::int64_t r : apart) {
    for (std::int64_t i = 0; i < m; ++i) {
      const float factor = a.transposed ? a.data[r * a.ld + i] : a.data[i * a.ld + r];
      if (factor != 0.0F) rows->add_scaled(n, factor, b + r * ldb, c + i * ldc);
    }
  }
}

}  // namespace tilewise::cpu
