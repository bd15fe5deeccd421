/// bwd_sm90 with block lists on the emulator, against the formulas in float64: blocks as large as
/// tiles, larger and smaller, under masks and lengths, of heads and of batch entries, rows that
/// list nothing, keys that nobody lists.
#include "bwd_sm90_configs.h"

namespace {

constexpr Config listed(Config c, Lists lists) {
  c.lists = lists;
  return c;
}

/// Blocks of fewer than 128 queries.
constexpr Config short_steps(Config c) {
  c.shape.block_m = 64;
  return c;
}

constexpr Config shown(Config c) {
  c.options.mask = true;
  return c;
}

/// Blocks of half a tile's keys, with the stages that the host gives such a list.
constexpr Config passing(Config c) {
  c = short_steps(listed(c, Lists::parts));
  c.passes = true;
  c.shape.k_stages = 1;
  c.shape.q_stages = c.shape.do_stages = c.head_dim == 64 ? 4 : 3;
  return c;
}

}  // namespace

int main() {
  constexpr double kFewKeys = 4e-4;
  constexpr Lists kParts = Lists::parts;
  check<listed(k64, kParts)>("dim 64",
                             {.heads_q = 2,
                              .heads_k = 2,
                              .seq_q = 500,
                              .seq_k = 600,
                              .blocks = 2,
                              .list = {.q = 128, .k = 128, .by_head = true, .full = true}},
                             kBf16);
  check<listed(masked(k64, Mask::right), kParts)>(
      "dim 64, causal, GQA, lists of all",
      {.batch = 2,
       .heads_q = 4,
       .heads_k = 2,
       .seq_q = 520,
       .seq_k = 520,
       .high = 1,
       .d_lse = true,
       .blocks = 3,
       .list = {.q = 128, .k = 128, .by_batch = true, .by_head = true, .full = true}},
      kBf16);
  check<listed(short_steps(k64), kParts)>(
      "dim 64, blocks of 64, mangled",
      {.heads_q = 2,
       .heads_k = 1,
       .seq_q = 400,
       .seq_k = 500,
       .list = {.q = 64, .k = 64, .by_head = true, .mangled = true}},
      kBf16);
  check<ragged(listed(masked(short_steps(k64), Mask::both), kParts), Lengths::keys)>(
      "dim 64, blocks of 16 x 32, lengths, window",
      {.batch = 3,
       .seq_q = 200,
       .seq_k = 260,
       .low = -100,
       .high = 31,
       .keys = {260, 0, 131},
       .blocks = 2,
       .list = {.q = 16, .k = 32, .by_head = true, .full = true}},
      kBf16);
  check<listed(k128, kParts)>("dim 128, blocks of 256",
                              {.heads_q = 2,
                               .heads_k = 2,
                               .seq_q = 600,
                               .seq_k = 900,
                               .dim = 128,
                               .dim_v = 128,
                               .blocks = 3,
                               .list = {.q = 256, .k = 256, .by_head = true}},
                              kBf16);
  check<listed(masked(k128, Mask::right), kParts)>(
      "dim 128, blocks of 64 x 16, causal",
      {.seq_q = 300,
       .seq_k = 300,
       .dim = 128,
       .dim_v = 128,
       .high = 1,
       .list = {.q = 64, .k = 16, .by_head = true, .full = true}},
      kBf16);
  check<listed(plain(with_alibi(k128)), kParts)>("dim 128, ALiBi, GQA",
                                                 {.heads_q = 4,
                                                  .heads_k = 2,
                                                  .seq_q = 300,
                                                  .seq_k = 300,
                                                  .dim = 128,
                                                  .dim_v = 128,
                                                  .alibi = true,
                                                  .list = {.q = 128, .k = 128, .by_head = true}},
                                                 kBf16);
  check<listed(two_plane(k64), kParts)>(
      "dim 64, exact dS, blocks of 32",
      {.heads_q = 2, .heads_k = 2, .blocks = 2, .list = {.q = 32, .k = 128, .by_head = true}},
      kExact);
  // dQ was off by 6.4e-4 with a delta from O.
  check<listed(two_plane(half(shown(masked(k64, Mask::right)))), kParts)>(
      "few keys, causal, mask, sinks, delta from P",
      {.batch = 2,
       .heads_q = 3,
       .heads_k = 3,
       .seq_q = 8,
       .seq_k = 8,
       .dim = 16,
       .dim_v = 16,
       .high = 1,
       .scale = 0.25F,
       .given_delta = true,
       .sinks = true,
       .list = {.q = 256,
                .k = 128,
                .density = 0.03,
                .by_batch = true,
                .by_head = true,
                .full = true,
                .dense_row = 0},
       .shows = {.density = 0.1, .by_batch = true},
       .values = 3},
      kFewKeys);
  check<deterministic(listed(masked(k64, Mask::right), kParts))>(
      "dim 64, causal, deterministic",
      {.batch = 2,
       .heads_q = 4,
       .heads_k = 2,
       .seq_q = 700,
       .seq_k = 700,
       .high = 1,
       .last_first = true,
       .blocks = 3,
       .list = {.q = 128, .k = 128, .density = 0.7, .by_head = true}},
      kBf16);
  check<deterministic(listed(k128, kParts))>("dim 128, deterministic, blocks of 32",
                                             {.heads_q = 2,
                                              .heads_k = 2,
                                              .seq_q = 200,
                                              .seq_k = 500,
                                              .dim = 128,
                                              .dim_v = 128,
                                              .blocks = 3,
                                              .list = {.q = 32, .k = 32, .by_head = true}},
                                             kBf16);
  // A row block of each lists nothing; the second has no queries.
  check<ragged(listed(masked(k128, Mask::right), kParts), Lengths::packed)>(
      "dim 128, packed sequences with a list each, causal, GQA, rows behind the last",
      {.heads_q = 4,
       .heads_k = 2,
       .dim = 128,
       .dim_v = 128,
       .high = 1,
       .queries = {90, 0, 300, 40},
       .keys = {130, 70, 200, 40},
       .tail = 70,
       .blocks = 2,
       .list = {.q = 64, .k = 32, .by_batch = true, .by_head = true, .full = true}},
      kBf16);
  check<deterministic(ragged(listed(k64, kParts), Lengths::packed))>(
      "dim 64, packed sequences, one list, deterministic",
      {.heads_q = 2,
       .heads_k = 1,
       .queries = {300, 150},
       .keys = {200, 300},
       .blocks = 2,
       .list = {.q = 128, .k = 64, .by_head = true}},
      kBf16);
  check<listed(k64, kParts)>("dim 64, nothing listed",
                             {.batch = 2,
                              .heads_q = 2,
                              .heads_k = 1,
                              .seq_q = 300,
                              .seq_k = 300,
                              .blocks = 3,
                              .list = {.q = 128, .k = 128, .density = 0.0}},
                             kBf16);
  check<passing(masked(k64, Mask::right))>(
      "dim 64, half tiles passed over, causal, GQA, mangled",
      {.heads_q = 4,
       .heads_k = 2,
       .seq_q = 500,
       .seq_k = 450,
       .high = 1,
       .blocks = 2,
       .list = {.q = 64, .k = 64, .density = 0.3, .by_head = true, .mangled = true}},
      kBf16);
  check<passing(k64)>("dim 64, half tiles passed over, GQA, lists of entries",
                      {.batch = 2,
                       .heads_q = 4,
                       .heads_k = 1,
                       .seq_q = 700,
                       .seq_k = 390,
                       .blocks = 3,
                       .list = {.q = 64, .k = 64, .density = 0.2, .by_batch = true}},
                      kBf16);
  check<passing(ragged(masked(k128, Mask::both), Lengths::keys))>(
      "dim 128, half tiles passed over, lengths, window",
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
