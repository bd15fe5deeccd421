/// Score functions and masks of the caller's own in bwd_sm90, against the interpreter of their
/// programs.
#include "bwd_sm90_check.h"
//
#include "cuda/tile/expression_ranges.cuh"
#include "expression_texts.h"
//
#include "interpreted.h"
#include "mask_maps.h"

namespace {

constexpr Config k64 = {
    .head_dim = 64, .head_dim_v = 64, .block_m = 128, .modified = true, .v_registers = true};
constexpr Config k128 = {.block_m = 64, .modified = true};
constexpr double kBf16 = 1.2e-2, kExact = 4e-3;

constexpr Config with_sample(Config c, int sample) {
  c.expressions = samples::expressions_of(sample, true);
  c.gated = sample == 1 || sample == 2;  // the others have the slope 1
  if (!c.gated) c.k_stages = 2;
  return c;
}
constexpr Config exact(Config c) {
  c.block_m = 64;
  c.v_registers = false;
  c.exact = true;
  return c;
}

constexpr Config mapped(Config c) {
  c.lists = Lists::whole;
  return c;
}

template <Config kConfig, int kSample>
void check_sample(const char* name, Shape shape, double bound) {
  const samples::Interpreted interpreted(samples::kSamples[kSample]);
  Formula formula;
  formula.captures = cuda::captures_of(interpreted.problem);
  formula.of = [&](int b, int h, int i, int j, int queries, int keys, double x) -> Formula::Score {
    const expression::Point at = {b, h, i, j, queries, keys, x};
    return {interpreted.value(at), interpreted.derivative(at), interpreted.is_visible(at)};
  };
  if constexpr (kConfig.listed()) {
    formula.mask = interpreted.problem.mask_function;
    formula.map = map_of<kSample + 1>(formula.captures);
  }
  shape.formula = &formula;
  check<with_sample(kConfig, kSample)>(name, shape, bound);
}

}  // namespace

int main() {
  check_sample<masked(k64, Mask::right), 0>("slopes by head, causal", {.high = 51, .blocks = 2},
                                            kBf16);
  check_sample<k64, 1>("softcap, floors, documents", {.heads_q = 2, .heads_k = 2}, kBf16);
  check_sample<masked(k128, Mask::both), 2>(
      "hidden infinite slopes, window",
      {.batch = 2, .dim = 128, .dim_v = 128, .low = -60, .high = 20, .blocks = 2}, kBf16);
  check_sample<exact(masked(k64, Mask::right)), 2>("the same, exact dS",
                                                   {.high = 51, .given_delta = true}, kExact);
  check_sample<exact(masked(k128, Mask::right)), 1>(
      "softcap, floors, documents, exact dS",
      {.dim = 128, .dim_v = 128, .high = 51, .given_delta = true}, kExact);
  check_sample<exact(k64), 3>("sums over lanes, exact dS", {.heads_q = 1, .d_lse = true}, kExact);
  check_sample<ragged(masked(k64, Mask::right), Lengths::packed), 0>(
      "slopes by head, packed, causal",
      {.high = 1,
       .queries = {70, 1, 0, 129, 200, 0},
       .keys = {33, 90, 5, 129, 300, 40},
       .tail = 25},
      kBf16);
  check_sample<mapped(k64), 1>("a map of documents, GQA",
                               {.heads_q = 2, .heads_k = 1, .seq_q = 530, .seq_k = 601}, kBf16);
  check_sample<mapped(masked(k128, Mask::right)), 3>(
      "a map of chosen blocks, causal",
      {.heads_q = 1, .seq_q = 520, .seq_k = 640, .dim = 128, .dim_v = 128, .high = 121}, kBf16);
  return failures == 0 ? 0 : 1;
}
