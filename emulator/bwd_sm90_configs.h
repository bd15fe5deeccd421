/// bwd_sm90's configs to head dim 128 that emulated cases are made of.
#pragma once

#include "bwd_sm90_made.h"

namespace {

constexpr Config k64 = {.head_dim = 64, .head_dim_v = 64, .shape = {.block_m = 128, .k_stages = 2}};
constexpr Config k128 = {.shape = {.k_stages = 2}};

constexpr Config one_k(Config c) {
  c.shape.k_stages = 1;
  return c;
}
constexpr Config plain(Config c) {
  c.logits.modified = true;
  return one_k(c);
}
constexpr Config two_plane(Config c) {
  c.shape.block_m = 64;
  c.two_plane = true;
  return c;
}
constexpr Config split(Config c, int chunk_rows) {
  c.sums.split = true;
  c.shape.chunk_rows = chunk_rows;
  return c;
}
constexpr Config spans(Config c) {
  c.spans = true;
  return c;
}
constexpr Config deterministic(Config c) {
  c.sums.deterministic = true;
  return c;
}
constexpr Config staged(Config c, int q_stages, int do_stages, int k_stages) {
  c.shape.q_stages = q_stages;
  c.shape.do_stages = do_stages;
  c.shape.k_stages = k_stages;
  return c;
}
constexpr Config chunks(Config c, int rows) {
  c.shape.chunk_rows = rows;
  return c;
}
/// dQ in the head dim's own columns.
constexpr Config narrow(Config c) {
  c.sums.narrow = true;
  return c;
}

using bwd_sm90::SharedPlan;
constexpr double kBf16 = 1.2e-2, kFp16 = 1.5e-3;
constexpr double kExact = 4e-3;  // half a bf16 step of the result, P rounded for dV

}  // namespace
