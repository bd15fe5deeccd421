/// The split-key identity: partial results over disjoint keys, merged by their log-sum-exp.
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/micro/elements.h"
#include "problem/apart.h"
#include "problem/arguments.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

void check(const char* name, const Tensor& o, const char* lse_name, const Tensor& lse) {
  if (o.rank != 4 || !is_floating(o.dtype))
    arguments::fail(name, o, "expected a float type with axes (B, Hq, Sq, Dv)");
  arguments::require_device(name, o, Device{});
  arguments::require_device(lse_name, lse, Device{});
  arguments::require_shape(lse_name, lse, DType::float32, {o.sizes[0], o.sizes[1], o.sizes[2]},
                           "(B, Hq, Sq)");
  arguments::require_countable(name, o);
  arguments::require_data(name, o);
  arguments::require_data(lse_name, lse);
}

}  // namespace

void merge(Tensor o, Tensor lse, Tensor o_other, Tensor lse_other) {
  check("o", o, "lse", lse);
  check("o_other", o_other, "lse_other", lse_other);
  if (o.sizes != o_other.sizes)
    arguments::fail("o_other", o_other, "expected the shape of o, " + o.describe());
  arguments::require_no_overlap("o", o);
  arguments::require_no_overlap("lse", lse);
  const std::array<Named, 2> outputs = {{{"o", &o}, {"lse", &lse}}};
  const std::array<Named, 2> inputs = {{{"o_other", &o_other}, {"lse_other", &lse_other}}};
  require_apart(outputs, inputs);
  if (o.numel() == 0) return;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const std::int64_t dim = o.sizes[3];
  std::vector<float> a(static_cast<std::size_t>(dim));
  std::vector<float> b(static_cast<std::size_t>(dim));
  for (std::int64_t i0 = 0; i0 < o.sizes[0]; ++i0) {
    for (std::int64_t i1 = 0; i1 < o.sizes[1]; ++i1) {
      for (std::int64_t i2 = 0; i2 < o.sizes[2]; ++i2) {
        float& lse_a = static_cast<float*>(lse.data)[cpu::offset_of(lse, i0, i1, i2)];
        const float lse_b =
            static_cast<const float*>(lse_other.data)[cpu::offset_of(lse_other, i0, i1, i2)];
        // Nothing comes from a part that saw no key, and -0 plus 0 would be 0.
        if (lse_b == kNothing) continue;
        const float high = lse_a > lse_b || std::isnan(lse_a) ? lse_a : lse_b;
        const float weight_a = std::exp(lse_a - high);  // at most 1: nothing overflows
        const float weight_b = std::exp(lse_b - high);
        const float sum = weight_a + weight_b;
        cpu::load_row(o, cpu::offset_of(o, i0, i1, i2), o.strides[3], dim, a.data());
        cpu::load_row(o_other, cpu::offset_of(o_other, i0, i1, i2), o_other.strides[3], dim,
                      b.data());
        if (lse_a == kNothing) {
          a = b;
        } else {
          for (std::size_t d = 0; d < a.size(); ++d)
            a[d] = (weight_a * a[d] + weight_b * b[d]) / sum;
        }
        cpu::store_row(o, cpu::offset_of(o, i0, i1, i2), o.strides[3], dim, a.data());
        lse_a = high + std::log(sum);
      }
    }
  }
}

}  // namespace tilewise
