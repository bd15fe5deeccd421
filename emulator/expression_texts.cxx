/// Prints the device functions of expression_samples.h: what kernels of the emulation include.
#include <cstdio>

#include "cuda/host/expression_ranges.h"
#include "expression_samples.h"

int main() {
  using namespace tilewise;
  for (int n = 0; n < samples::kCount; ++n) {
    const Expression score = samples::score_of(samples::kSamples[n]);
    const Expression mask = samples::mask_of(samples::kSamples[n]);
    int first = 0;
    if (score.defined()) {
      const expression::Lowered& lowered = expression::lower(score);
      first = static_cast<int>(lowered.captures().size());
      std::fputs(cuda::score_text(*lowered.program(), {n + 1, 0}).c_str(), stdout);
      const cuda::FunctionName gradient = {samples::kGradients + n + 1, 0};
      std::fputs(cuda::gradient_text(*lowered.gradient(), gradient).c_str(), stdout);
      if (cuda::strip_values(*lowered.gradient()) > 0) {
        const cuda::FunctionName strip = {samples::kStripped + n + 1, 0, true};
        std::fputs(cuda::gradient_text(*lowered.gradient(), strip).c_str(), stdout);
      }
      if (lowered.affine() != nullptr) {
        std::fputs(cuda::slant_text(*lowered.affine(), {n + 1, 0}).c_str(), stdout);
        std::fputs(cuda::slant_text(*lowered.affine(), gradient).c_str(), stdout);
      }
      const cuda::FunctionName sums = {samples::kCaptures + n + 1, 0};
      const std::vector<bool> all(lowered.captures().size(), true);
      if (!lowered.gradient()->terms.empty())
        std::fputs(cuda::captures_text(*lowered.gradient(), all, n == 2, sums).c_str(), stdout);
      if (n == 0) {
        std::vector<bool> gate(all.size(), false);
        for (std::size_t c = 0; c < gate.size(); ++c)
          gate[c] = lowered.captures()[c].name() == "gate";
        std::fputs(
            cuda::captures_text(*lowered.gradient(), gate, false, {samples::kGate, 0}).c_str(),
            stdout);
      }
    }
    if (mask.defined()) {
      const expression::Program& program = *expression::lower(mask).program();
      std::fputs(cuda::mask_text(program, {n + 1, first}).c_str(), stdout);
      std::fputs(cuda::mask_ranges_text(program, {n + 1, first}).c_str(), stdout);
    }
  }
  int number = samples::kMasksFrom;
  for (const char* const text : samples::kMasks) {
    const Expression parsed = Expression::parse(text, samples::tables().captures);
    const expression::Program& mask = *expression::lower(parsed).program();
    std::fputs(cuda::mask_text(mask, {number, 0}).c_str(), stdout);
    std::fputs(cuda::mask_ranges_text(mask, {number, 0}).c_str(), stdout);
    ++number;
  }
  return 0;
}
