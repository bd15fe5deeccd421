/// bwd_sm90's configs to head dim 128 that emulated cases are made of.
#pragma once

#include "bwd_sm90_made.h"

namespace {

constexpr Config k64 = {.head_dim = 64,
                        .head_dim_v = 64,
                        .block_m = 128,
                        .k_stages = 2,
                        .fold_lse = true,
                        .v_registers = true};
constexpr Config k128 = {.block_m = 64, .k_stages = 2, .fold_lse = true};

constexpr Config one_k(Config c) {
  c.k_stages = 1;
  return c;
}
constexpr Config plain(Config c) {
  c.fold_lse = c.v_registers = false;
  c.modified = c.modified || c.alibi;
  return one_k(c);
}
constexpr Config exact(Config c) {
  c.block_m = 64;
  c.v_registers = false;
  c.exact = true;
  return c;
}
constexpr Config split(Config c, int chunk_rows) {
  c.split = true;
  c.chunk_rows = chunk_rows;
  return c;
}
constexpr Config deterministic(Config c) {
  c.deterministic = true;
  return c;
}

using bwd_sm90::SharedPlan;
constexpr double kBf16 = 1.2e-2, kFp16 = 1.5e-3;
constexpr double kExact = 4e-3;  // half a bf16 step of the result, P rounded for dV

}  // namespace
