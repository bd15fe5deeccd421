#include "harness/case_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cpu/micro/elements.h"
#include "harness/case_buffers.h"
#include "problem/blocks.h"
#include "reference/elements.h"
#include "tilewise/runtime.h"

namespace tilewise {
namespace {

constexpr std::int64_t kRowsPerTask = 256;

/// Sizes and strides with leading axes added; axes of stride 0 count once.
struct Rows {
  Sizes sizes{1, 1, 1, 1};
  Sizes strides{};
  std::int64_t count() const { return sizes[0] * sizes[1] * sizes[2]; }
};

Rows rows_of(const Tensor& tensor) {
  Rows rows;
  const auto first = static_cast<std::size_t>(4 - tensor.rank);
  for (std::size_t n = first; n < 4; ++n) {
    rows.sizes[n] = tensor.sizes[n - first];
    rows.strides[n] = tensor.strides[n - first];
    if (rows.strides[n] == 0) rows.sizes[n] = std::min<std::int64_t>(rows.sizes[n], 1);
  }
  return rows;
}

/// Calls body_of_rows(begin, end) over all rows, in parallel.
void for_rows(const Rows& rows,
              const std::function<void(std::int64_t, std::int64_t)>& body_of_rows) {
  const std::int64_t tasks = ceil_div(rows.count(), kRowsPerTask);
  if (tasks <= 1) {
    body_of_rows(0, rows.count());
    return;
  }
  default_executor().parallel_for(tasks, [&](std::int64_t task, int) {
    body_of_rows(task * kRowsPerTask, std::min(rows.count(), (task + 1) * kRowsPerTask));
  });
}

}  // namespace

Random::Random(std::uint64_t seed, Stream stream, std::uint32_t part)
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
      stream_(static_cast<std::uint32_t>(stream)),
      part_(part) {}

void Random::load(std::int64_t block) {
  if (words_block_ == block) return;
  const auto count = static_cast<std::uint64_t>(block);
  words_ = philox4x32_10(
      {static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(count >> 32), stream_, part_},
      key_);
  words_block_ = block;
}

std::uint32_t Random::word(std::int64_t n) {
  load(n / 4);
  return words_[static_cast<std::size_t>(n % 4)];
}

double Random::uniform(std::int64_t n) { return word(n) * 0x1p-32; }

double Random::normal(std::int64_t n) {
  load(n / 4);
  if (normals_block_ != n / 4) {
    // Box and Muller 1958: two uniform numbers give two normal ones.
    for (std::size_t pair = 0; pair < 4; pair += 2) {
      const float u = (static_cast<float>(words_[pair] >> 8) + 0.5F) * 0x1p-24F;
      const float angle =
          static_cast<float>(words_[pair + 1]) * 0x1p-32F * 2.0F * std::numbers::pi_v<float>;
      const float radius = std::sqrt(-2.0F * std::log(u));
      normals_[pair] = radius * std::cos(angle);
      normals_[pair + 1] = radius * std::sin(angle);
    }
    normals_block_ = n / 4;
  }
  return static_cast<double>(normals_[static_cast<std::size_t>(n % 4)]);
}

double fill_value(const Fill& fill, Random& random, std::int64_t h, std::int64_t s, std::int64_t d,
                  std::int64_t n) {
  double value = 0.0;
  switch (fill.kind) {
    case Fill::Kind::randn:
      value = random.normal(n);
      break;
    case Fill::Kind::rand:
      value = random.uniform(n);
      break;
    case Fill::Kind::sign:
      value = (random.word(n) & 1U) != 0 ? 1.0 : -1.0;
      break;
    case Fill::Kind::zeros:
      return fill.shift;
    case Fill::Kind::iota:
      value = static_cast<double>(s);
      break;
    case Fill::Kind::heads:
      value = static_cast<double>(h);
      break;
    case Fill::Kind::arange:
      value = static_cast<double>(n);
      break;
    case Fill::Kind::eye:
      value = s == d ? 1.0 : 0.0;
      break;
  }
  return fill.scale * value + fill.shift;
}

void fill_tensor(const Tensor& tensor, const Fill& fill, std::uint64_t seed, Stream stream) {
  if (tensor.data == nullptr || tensor.numel() == 0) return;
  const Rows rows = rows_of(tensor);
  for_rows(rows, [&](std::int64_t begin, std::int64_t end) {
    Random random(seed, stream);
    std::vector<float> values(static_cast<std::size_t>(rows.sizes[3]));
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t s = row % rows.sizes[2];
      const std::int64_t h = row / rows.sizes[2] % rows.sizes[1];
      const std::int64_t b = row / rows.sizes[2] / rows.sizes[1];
      const std::int64_t offset = b * rows.strides[0] + h * rows.strides[1] + s * rows.strides[2];
      for (std::int64_t d = 0; d < rows.sizes[3]; ++d) {
        values[static_cast<std::size_t>(d)] =
            static_cast<float>(fill_value(fill, random, h, s, d, row * rows.sizes[3] + d));
      }
      cpu::store_row(tensor, offset, rows.strides[3], rows.sizes[3], values.data());
    }
  });
}

void set_elements(const Tensor& tensor,
                  const std::function<double(std::int64_t b, std::int64_t h, std::int64_t s,
                                             std::int64_t d, std::int64_t n)>& value) {
  if (tensor.data == nullptr || tensor.numel() == 0) return;
  const Rows rows = rows_of(tensor);
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const std::int64_t s = row % rows.sizes[2];
    const std::int64_t h = row / rows.sizes[2] % rows.sizes[1];
    const std::int64_t b = row / rows.sizes[2] / rows.sizes[1];
    const std::int64_t offset = b * rows.strides[0] + h * rows.strides[1] + s * rows.strides[2];
    for (std::int64_t d = 0; d < rows.sizes[3]; ++d) {
      reference::store(tensor, offset + d * rows.strides[3],
                       value(b, h, s, d, row * rows.sizes[3] + d));
    }
  }
}

}  // namespace tilewise
