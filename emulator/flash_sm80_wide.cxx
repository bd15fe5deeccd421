/// fwd_sm80, bwd_sm80 and bwd_dq_sm80 above 256 columns on the emulator: gradients, V and O in
/// slices, against the formulas in float64.
#include "flash_sm80_checks.h"

namespace {

constexpr fwd_sm80::Config in_parts(fwd_sm80::Config config) {
  config.split = true;
  return config;
}
constexpr fwd_sm80::Config kFloatForward = {
    .form = {.element = Element::fp16, .planes = 2, .scaled = true},
    .head_dim = 384,
    .head_dim_v = 192,
    .slices = 2,
    .shape = {.block_m = 16, .block_n = 16, .warps = 1, .stages = 1}};
constexpr Gradient of_floats(Gradient config, int block, int warps) {
  config.form = {.element = Element::fp16, .planes = 2, .scaled = true};
  config.shape.block_m = config.shape.block_n = block;
  config.shape.warps = warps;
  return config;
}

}  // namespace

int main() {
  emulator::checks_races = true;
  const Shape some = {
      .heads_q = 2, .heads_k = 1, .seq_q = 50, .seq_k = 70, .dim = 328, .causal = true};
  check_forward<kSliced>("forward, dim 328", some);
  check_forward<in_parts(kSliced)>("forward, dim 328, three parts", some);
  const Shape odd = {.heads_q = 1, .heads_k = 1, .seq_q = 20, .seq_k = 37, .dim = 301};
  check_forward<kFloatForward>("forward, dim 301, float32", odd, kExact);
  check_backward<kSlicedKeys, kSlicedQueries>("dim 328", some, kBf16, kBf16);
  check_backward<with_pairs(kSlicedKeys), with_pairs(kSlicedQueries), Delta::p>(
      "dim 264, bias and mask",
      {.heads_q = 1,
       .heads_k = 1,
       .seq_q = 40,
       .seq_k = 40,
       .dim = 264,
       .scale = 0.062F,
       .pairs = true},
      kBf16, kBf16);
  check_float<of_floats(kSlicedKeys, 16, 1), of_floats(kSlicedQueries, 16, 1)>("dim 301, float32",
                                                                               odd, true, 2e-6);
  return failures == 0 ? 0 : 1;
}
