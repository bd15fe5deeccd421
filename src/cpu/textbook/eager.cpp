/// eager: library products, and between them one pass over the scores for each operation, as a
/// framework runs it op by op. Schedule, memory and numbers: eager.md.
#include <algorithm>
#include <cmath>

#include "cpu/textbook/textbook.h"
#include "cpu/textbook/unfused.h"

namespace tilewise::cpu {
namespace {

/// body(r) for every row of a block: one pass over its scores.
template <class Body>
void walk(const TilePlace& at, const Body& body) {
  for (int r = 0; r < at.rows; ++r) body(r, r * at.ld);
}

void probabilities(const PassTools& t, const TilePlace& at, float* s, float* p, float* m,
                   float* l) {
  const std::int64_t n = at.cols;
  walk(at,
       [&](int, std::int64_t row) { t.rows.scale(n, t.problem.scale, s + row, s + row); });  // (F1)
  if (p != s) {
    walk(at, [&](int, std::int64_t row) { std::copy_n(s + row, n, p + row); });
  }
  if (t.steps.elementwise()) t.steps.apply(at, p);  // (F2) to (F4)
  if (t.problem.has_positional_mask() || t.problem.mask.defined()) t.steps.hide(at, p);
  // (F5) LSE, (F6) P
  walk(at,
       [&](int r, std::int64_t row) { m[r] = softmax_shift(t.rows.highest(n, p + row), t.sink); });
  walk(at, [&](int r, std::int64_t row) { t.rows.exp(n, m[r], p + row); });
  walk(at, [&](int r, std::int64_t row) {
    l[r] = t.rows.sum(n, p + row) + std::exp(t.sink - m[r]);  // (F12)
  });
  walk(at, [&](int r, std::int64_t row) {
    t.rows.scale(n, l[r] == 0.0F ? 0.0F : 1.0F / l[r], p + row, p + row);
  });
}

void score_gradient(const PassTools& t, const TilePlace& at, const float* p, float factor,
                    float* dp, float* delta) {
  const std::int64_t n = at.cols;
  t.steps.drop(at, dp);  // (B4)
  walk(at, [&](int r, std::int64_t row) {
    delta[r] = t.rows.dot_seen(n, p + row, dp + row) - delta[r];  // (B2), less dLSE
  });
  walk(at, [&](int r, std::int64_t row) {
    t.rows.score_gradient(n, p + row, delta[r], dp + row);  // (B5)
  });
  if (factor == 1.0F) return;
  walk(at, [&](int, std::int64_t row) { t.rows.scale(n, factor, dp + row, dp + row); });
}

constexpr UnfusedPasses kPasses{.strip_scores = 0,
                                .probabilities = probabilities,
                                .score_gradient = score_gradient,
                                .walks_forward = 13.0,
                                .walks_backward = 12.0};

}  // namespace

constinit const KernelRow kEagerForward{
    "eager_fwd",
    "eager",
    DeviceType::cpu,
    Pass::forward,
    "BLAS products, one pass over S x S per operation; saves S and P",
    unfused_prepare,
    unfused_run,
    &kPasses};
constinit const KernelRow kEagerBackward{
    "eager_bwd",
    "eager",
    DeviceType::cpu,
    Pass::backward,
    "BLAS products, one pass over S x S per operation; uses the saved P",
    unfused_prepare,
    unfused_run,
    &kPasses};

}  // namespace tilewise::cpu
