/// fused: library products, and between them one pass over the scores with all operations, as a
/// compiler fuses them; S and P still lie in memory. Schedule, memory and numbers: fused.md.
#include <algorithm>
#include <cmath>

#include "cpu/textbook/textbook.h"
#include "cpu/textbook/unfused.h"

namespace tilewise::cpu {
namespace {

/// A strip stays in the first-level cache from its first operation to its last.
constexpr std::int64_t kStripScores = 4096;

void probabilities(const PassTools& t, const TilePlace& at, float* s, float* p, float* m,
                   float* l) {
  const std::int64_t n = at.cols;
  const bool hides = t.problem.has_positional_mask() || t.problem.mask.defined();
  const bool plain = !t.steps.elementwise() && !hides;
  for (int r = 0; r < at.rows; ++r) {  // (F1)
    const float high = t.rows.scale_highest(n, t.problem.scale, s + r * at.ld);
    if (plain) m[r] = softmax_shift(high, t.sink);
  }
  if (!plain) {
    for (int r = 0; p != s && r < at.rows; ++r) std::copy_n(s + r * at.ld, n, p + r * at.ld);
    if (t.steps.elementwise()) t.steps.apply(at, p);  // (F2) to (F4)
    t.steps.hide(at, p);
    for (int r = 0; r < at.rows; ++r) {
      m[r] = softmax_shift(t.rows.highest(n, p + r * at.ld), t.sink);
    }
  }
  const float* logits = plain ? s : p;
  for (int r = 0; r < at.rows; ++r) {  // (F5), (F6), (F12)
    float* row = p + r * at.ld;
    l[r] = t.rows.exp_sum(n, m[r], logits + r * at.ld, row) + std::exp(t.sink - m[r]);
    t.rows.scale(n, l[r] == 0.0F ? 0.0F : 1.0F / l[r], row, row);
  }
}

void score_gradient(const PassTools& t, const TilePlace& at, const float* p, float factor,
                    float* dp, float* delta) {
  t.steps.drop(at, dp);  // (B4)
  for (int r = 0; r < at.rows; ++r) {
    const float* p_row = p + r * at.ld;
    float* dp_row = dp + r * at.ld;
    delta[r] = t.rows.dot_seen(at.cols, p_row, dp_row) - delta[r];           // (B2), less dLSE
    t.rows.score_gradient_scaled(at.cols, p_row, delta[r], factor, dp_row);  // (B5)
  }
}

constexpr UnfusedPasses kPasses{.strip_scores = kStripScores,
                                .probabilities = probabilities,
                                .score_gradient = score_gradient,
                                .walks_forward = 5.0,
                                .walks_backward = 7.0};

}  // namespace

constinit const KernelRow kFusedForward{"fused_fwd",
                                        "fused",
                                        DeviceType::cpu,
                                        Pass::forward,
                                        "BLAS products, one pass over S x S in all; saves S and P",
                                        unfused_prepare,
                                        unfused_run,
                                        &kPasses};
constinit const KernelRow kFusedBackward{
    "fused_bwd",
    "fused",
    DeviceType::cpu,
    Pass::backward,
    "BLAS products, one pass over S x S in all; uses the saved P",
    unfused_prepare,
    unfused_run,
    &kPasses};

}  // namespace tilewise::cpu
