/// Values of a case's tensors: one random generator, Philox 4x32-10, counted by element, so that a
/// value depends on (seed, tensor, index) only. Used by materialize.cpp only.
#pragma once

#include <cstdint>
#include <functional>

#include "harness/case.h"
#include "problem/philox.h"

namespace tilewise {

/// The random sequence of a tensor.
enum class Stream : std::uint32_t {
  q,
  k,
  v,
  d_o,
  d_lse,
  bias,
  bias_region,
  mask_region,
  sinks,
  blocks,
  pages,
  captures
};

class Random {
 public:
  Random(std::uint64_t seed, Stream stream, std::uint32_t part = 0);
  std::uint32_t word(std::int64_t n);
  double uniform(std::int64_t n);  ///< [0, 1)
  double normal(std::int64_t n);   ///< N(0, 1)

 private:
  PhiloxKey key_;
  std::uint32_t stream_, part_;
  std::int64_t words_block_ = -1, normals_block_ = -1;
  PhiloxCounter words_{};
  std::array<float, 4> normals_{};

  void load(std::int64_t block);
};

/// One element: at index (h, s, d), the n-th in row-major order.
double fill_value(const Fill& fill, Random& random, std::int64_t h, std::int64_t s, std::int64_t d,
                  std::int64_t n);

/// Fills a tensor of rank 1 to 4, whose axes are the last of (B, H, S, D). Axes of stride 0 are
/// written once.
void fill_tensor(const Tensor& tensor, const Fill& fill, std::uint64_t seed, Stream stream);

/// Sets every element from a function of its index, (B, H, S, D) as above.
void set_elements(const Tensor& tensor,
                  const std::function<double(std::int64_t b, std::int64_t h, std::int64_t s,
                                             std::int64_t d, std::int64_t n)>& value);

}  // namespace tilewise
