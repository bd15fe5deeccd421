/// bwd_sm90 with block lists whose blocks of 64 keys are half of a tile: each consumer passes over
/// what does not list its keys. On the emulator, against the formulas in float64.
#include "bwd_sm90_configs.h"

namespace {

/// The stages that the host gives such a list.
constexpr Config passing(Config c) {
  c.lists = Lists::parts;
  c.passes = true;
  c.shape.block_m = 64;
  c.shape.k_stages = c.head_dim == 64 ? 2 : 1;
  c.shape.q_stages = c.shape.do_stages = c.head_dim == 64 ? 4 : 3;
  return c;
}

}  // namespace

int main() {
  check<passing(k64)>("dim 64, GQA, mangled",
                      {.heads_q = 4,
                       .heads_k = 2,
                       .seq_q = 500,
                       .seq_k = 450,
                       .blocks = 2,
                       .list = {.q = 64, .k = 64, .density = 0.3, .by_head = true, .mangled = true}},
                      kBf16);
  check<passing(masked(k128, Mask::right))>(
      "dim 128, causal, lists of all",
      {.batch = 2,
       .heads_q = 2,
       .heads_k = 2,
       .seq_q = 420,
       .seq_k = 420,
       .dim = 128,
       .dim_v = 128,
       .high = 1,
       .d_lse = true,
       .blocks = 2,
       .list = {.q = 64, .k = 64, .density = 0.4, .by_batch = true, .by_head = true, .full = true}},
      kBf16);
  check<passing(ragged(masked(k128, Mask::both), Lengths::keys))>(
      "dim 128, blocks of 128 x 64, lengths, window, one row dense",
      {.batch = 3,
       .seq_q = 300,
       .seq_k = 390,
       .dim = 128,
       .dim_v = 128,
       .low = -150,
       .high = 31,
       .keys = {390, 0, 131},
       .blocks = 3,
       .list = {.q = 128, .k = 64, .density = 0.3, .by_head = true}},
      kBf16);
  return failures == 0 ? 0 : 1;
}
