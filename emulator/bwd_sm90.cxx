/// bwd_sm90 on the emulator, against the formulas in float64: one and several blocks, odd lengths,
/// GQA, masks, softcap, ALiBi, the gradient through LSE, head dims off the tile; poisoned shared
/// memory, workspace and outputs.
#include "bwd_sm90_configs.h"

namespace {

/// Lengths that the device looks up; rows that no sequence has are NaN.
void check_ragged() {
  constexpr Lengths kPacked = Lengths::packed, kKeys = Lengths::keys;
  const std::vector<int> queries = {70, 1, 0, 129, 200, 0}, keys = {33, 90, 5, 129, 300, 40};
  const Shape both = {.heads_q = 4, .heads_k = 2, .queries = queries, .keys = keys, .tail = 25};
  const auto of = [&](Shape shape, int dim) {
    shape.queries = queries, shape.keys = keys;
    shape.dim = shape.dim_v = dim;
    return shape;
  };
  check<ragged(k64, kPacked)>("packed, dim 64", both, kBf16);
  check<ragged(masked(k64, Mask::right), kPacked)>(
      "packed, dim 64, causal, 3 blocks",
      of({.heads_q = 4, .heads_k = 2, .high = 1, .d_lse = true, .tail = 300, .blocks = 3}, 64),
      kBf16);
  check<spans(ragged(masked(k64, Mask::right), kPacked))>("packed, dim 64, causal, spans, 3 blocks",
                                                          of({.heads_q = 4,
                                                              .heads_k = 2,
                                                              .high = 1,
                                                              .d_lse = true,
                                                              .tail = 300,
                                                              .blocks = 3,
                                                              .parts = 2},
                                                             64),
                                                          kBf16);
  check<ragged(masked(k64, Mask::right), kPacked)>(
      "packed, dim 40, causal, top left", of({.high = kFar, .tail = 1, .top = 1}, 40), kBf16);
  check<ragged(masked(k128, Mask::both), kPacked)>(
      "packed, dim 128, window, 2 blocks",
      of({.low = -60, .high = 11, .tail = 130, .blocks = 2, .section_heads = 1}, 128), kBf16);
  check<ragged(with_alibi(masked(k64, Mask::right)), kPacked)>(
      "packed, dim 64, ALiBi, causal", of({.high = 1, .alibi = true}, 64), kBf16);
  // A window to the right of ALiBi's diagonal: low and high are without Sk - Sq.
  check<ragged(with_alibi(masked(k64, Mask::both)), kPacked)>(
      "packed, dim 64, ALiBi, window on both sides",
      of({.low = -60, .high = 41, .alibi = true, .tail = 7}, 64), kBf16);
  check<ragged(with_alibi(masked(k128, Mask::both)), kKeys)>(
      "key lengths, dim 128, ALiBi, window on both sides",
      {.batch = 3,
       .seq_q = 70,
       .dim = 128,
       .dim_v = 128,
       .low = -100,
       .high = 5,
       .alibi = true,
       .keys = {200, 0, 131}},
      kBf16);
  check<ragged(plain(with_softcap(masked(k128, Mask::right))), kPacked)>(
      "packed, dim 128, softcap, causal", of({.high = 1, .softcap = 2.0F}, 128), kBf16);
  check<ragged(deterministic(masked(k64, Mask::right)), kPacked)>(
      "packed, dim 64, causal, deterministic, 3 blocks",
      of({.heads_q = 4, .heads_k = 2, .high = 1, .last_first = true, .tail = 9, .blocks = 3}, 64),
      kBf16);
  check<spans(ragged(deterministic(masked(k64, Mask::right)), kPacked))>(
      "packed, dim 64, causal, deterministic, spans, 3 blocks",
      of({.heads_q = 4,
          .heads_k = 2,
          .high = 1,
          .last_first = true,
          .tail = 9,
          .blocks = 3,
          .apart = 2,
          .parts = 3},
         64),
      kBf16);
  // The window lies right of the diagonal in all sequences but the last: nobody sees a key.
  check<ragged(deterministic(masked(k64, Mask::both)), kPacked)>(
      "packed, dim 64, top left, window, deterministic",
      {.low = -5,
       .high = kFar,
       .last_first = true,
       .queries = {130, 65, 70},
       .keys = {140, 75, 33},
       .tail = 9,
       .top = 1},
      kBf16);
  check<ragged(two_plane(masked(k128, Mask::right)), kPacked)>(
      "packed, dim 128, exact dS, causal, delta given, 3 blocks",
      of({.high = 1, .d_lse = true, .given_delta = true, .tail = 3, .blocks = 3}, 128), kExact);
  // More offsets than shared memory has room for.
  std::vector<int> many(100, 1);
  many[40] = 130, many[99] = 70;
  constexpr Config kCrowded = ragged(one_k(with_softcap(masked(k64, Mask::right))), kPacked);
  static_assert(SharedPlan(kCrowded).kept < 2 * 102 * 4 &&
                SharedPlan(ragged(k64, kPacked)).kept > 4 * 102 * 4);
  check<kCrowded>("packed, dim 64, softcap, 100 sequences",
                  {.high = 1, .softcap = 2.0F, .queries = many, .keys = many, .blocks = 3}, kBf16);
  check<ragged(k64, kPacked)>("packed, dim 64, 100 sequences, 3 blocks",
                              {.queries = many, .keys = many, .tail = 3, .blocks = 3}, kBf16);
  const std::vector<int> lengths = {200, 0, 77};
  check<ragged(k64, kKeys)>("key lengths, dim 64", {.batch = 3, .keys = lengths, .blocks = 2},
                            kBf16);
  check<ragged(masked(k128, Mask::right), kKeys)>(
      "key lengths, dim 128, causal, rows that see nothing",
      {.batch = 3,
       .heads_q = 4,
       .heads_k = 2,
       .dim = 128,
       .dim_v = 128,
       .high = 1,
       .keys = lengths},
      kBf16);
  check<ragged(masked(k128, Mask::both), kKeys)>(
      "key lengths, dim 128, window",
      {.batch = 3, .dim = 128, .dim_v = 128, .low = -60, .high = 30, .keys = lengths}, kBf16);
  check<ragged(split(masked(k64, Mask::right), 256), kKeys)>(
      "key lengths, dim 64, causal, 2 parts, chunks of 256",
      {.batch = 3, .seq_q = 300, .high = 1, .keys = lengths, .blocks = 3, .parts = 2}, kBf16);
  check<ragged(two_plane(k64), kKeys)>("key lengths, dim 64, exact dS",
                                       {.batch = 3, .keys = lengths}, kExact);
}

}  // namespace

int main() {
  check<k64>("dim 64", {}, kBf16);
  check<masked(k64, Mask::right)>("dim 64, causal, 3 blocks",
                                  {.seq_q = 300, .seq_k = 300, .high = 1, .blocks = 3}, kBf16);
  check<hiding(masked(k64, Mask::right))>(
      "dim 64, rows that see nothing", {.seq_q = 300, .seq_k = 170, .high = 170 - 300 + 1}, kBf16);
  check<masked(k64, Mask::both)>("dim 64, window",
                                 {.seq_q = 400, .seq_k = 400, .low = -100, .high = 51}, kBf16);
  check<with_softcap(masked(k64, Mask::right))>(
      "dim 64, softcap", {.high = 51, .softcap = 2.0F, .d_lse = true}, kBf16);
  check<with_alibi(masked(k64, Mask::right))>("dim 64, ALiBi", {.high = 51, .alibi = true}, kBf16);
  check<deterministic(masked(k64, Mask::right))>("dim 64, deterministic, 3 blocks",
                                                 {.batch = 2,
                                                  .heads_q = 4,
                                                  .heads_k = 2,
                                                  .seq_q = 300,
                                                  .seq_k = 300,
                                                  .high = 1,
                                                  .last_first = true,
                                                  .blocks = 3,
                                                  .section_heads = 2},
                                                 kBf16);
  check<half(k64)>("dim 40, fp16, dLSE, batch 2",
                   {.batch = 2,
                    .heads_q = 4,
                    .heads_k = 2,
                    .seq_q = 70,
                    .dim = 40,
                    .dim_v = 40,
                    .d_lse = true,
                    .blocks = 2},
                   kFp16);
  check<k64>("dim 64, one query", {.seq_q = 1, .seq_k = 300}, kBf16);
  check<k128>("dim 128, 2 blocks",
              {.batch = 2,
               .heads_q = 4,
               .heads_k = 2,
               .dim = 128,
               .dim_v = 128,
               .blocks = 2,
               .section_heads = 2,
               .apart = 2},
              kBf16);
  check<masked(k128, Mask::right)>(
      "dim 128, causal",
      {.seq_q = 200, .seq_k = 300, .dim = 128, .dim_v = 128, .high = 101, .d_lse = true}, kBf16);
  check<masked(k128, Mask::both)>(
      "dim 128, window",
      {.seq_q = 300, .seq_k = 300, .dim = 128, .dim_v = 128, .low = -60, .high = 1}, kBf16);
  check<plain(with_softcap(masked(k128, Mask::right)))>(
      "dim 128, softcap", {.dim = 128, .dim_v = 128, .high = 51, .softcap = 2.0F}, kBf16);
  check<plain(with_alibi(k128))>("dim 128, ALiBi", {.dim = 128, .dim_v = 128, .alibi = true},
                                 kBf16);
  check<deterministic(k128)>(
      "dim 128, deterministic, 3 blocks",
      {.heads_q = 4, .heads_k = 2, .seq_k = 400, .dim = 128, .dim_v = 128, .blocks = 3}, kBf16);
  check<dims(masked(k128, Mask::right), 96, 96)>("dim 96, causal",
                                                 {.dim = 96, .dim_v = 96, .high = 51}, kBf16);
  check<staged(masked(k64, Mask::right), 3, 2, 2)>(
      "dim 64, causal, three stages of Q, 3 blocks",
      {.heads_q = 4, .heads_k = 2, .seq_q = 700, .seq_k = 600, .high = 1, .blocks = 3}, kBf16);
  check<staged(dims(masked(k128, Mask::right), 96, 96), 3, 3, 1)>("dim 96, causal, more stages",
                                                                  {.heads_q = 4,
                                                                   .heads_k = 2,
                                                                   .seq_q = 500,
                                                                   .seq_k = 500,
                                                                   .dim = 96,
                                                                   .dim_v = 96,
                                                                   .high = 1,
                                                                   .blocks = 3},
                                                                  kBf16);
  check<dims(k128, 64, 128)>("dims 64, 128", {.dim_v = 128}, kBf16);
  check<dims(k128, 128, 64)>("dims 128, 64", {.dim = 128}, kBf16);
  check<narrow(dims(k128, 80, 64))>("dims 72, 40", {.dim = 72, .dim_v = 40}, kBf16);
  check<narrow(dims(masked(k128, Mask::right), 80, 80))>("dim 80, causal, 2 blocks",
                                                         {.heads_q = 4,
                                                          .heads_k = 2,
                                                          .seq_q = 300,
                                                          .seq_k = 300,
                                                          .dim = 80,
                                                          .dim_v = 80,
                                                          .high = 1,
                                                          .blocks = 2},
                                                         kBf16);
  check<narrow(dims(deterministic(k128), 96, 80))>("dims 96, 80, deterministic",
                                                   {.seq_k = 300, .dim = 96, .dim_v = 80}, kBf16);
  check<hiding(split(masked(k64, Mask::right), 256))>("dim 64, causal, 3 parts, chunks of 256",
                                                      {.heads_q = 4,
                                                       .heads_k = 2,
                                                       .seq_q = 700,
                                                       .seq_k = 600,
                                                       .high = -100 + 1,
                                                       .blocks = 3,
                                                       .section_heads = 2,
                                                       .parts = 3},
                                                      kBf16);
  check<split(k128, 128)>(
      "dim 128, 2 parts",
      {.batch = 2, .seq_q = 200, .seq_k = 300, .dim = 128, .dim_v = 128, .blocks = 2, .parts = 2},
      kBf16);
  check<narrow(split(dims(k128, 96, 96), 128))>(
      "dim 96, 2 parts", {.dim = 96, .dim_v = 96, .d_lse = true, .parts = 2}, kBf16);
  check<hiding(two_plane(masked(k128, Mask::both)))>(
      "dim 128, exact dS, rows at both ends that see nothing",
      {.seq_q = 300, .seq_k = 100, .dim = 128, .dim_v = 128, .low = -70, .high = -20}, kExact);
  check<masked(k64, Mask::right)>(
      "dim 64, causal, GQA",
      {.heads_q = 4, .heads_k = 2, .seq_q = 500, .seq_k = 300, .high = 1, .blocks = 3}, kBf16);
  check<with_softcap(masked(k64, Mask::both))>(
      "dim 64, window, softcap",
      {.seq_q = 300, .seq_k = 300, .low = -100, .high = 51, .softcap = 2.0F}, kBf16);
  check<with_alibi(masked(half(k64), Mask::right))>(
      "dim 64, ALiBi, fp16", {.seq_q = 300, .high = 51, .alibi = true}, kFp16);
  check<deterministic(masked(k128, Mask::right))>("dim 128, causal, deterministic",
                                                  {.seq_q = 300,
                                                   .seq_k = 300,
                                                   .dim = 128,
                                                   .dim_v = 128,
                                                   .high = 1,
                                                   .last_first = true,
                                                   .blocks = 3},
                                                  kBf16);
  check<split(dims(k128, 128, 64), 128)>("dims 128, 64, 3 parts",
                                         {.batch = 2,
                                          .seq_q = 200,
                                          .seq_k = 300,
                                          .dim = 128,
                                          .blocks = 2,
                                          .section_heads = 2,
                                          .parts = 3},
                                         kBf16);
  // A key head's query heads in several jobs; sections end inside a group.
  check<split(masked(k128, Mask::right), 128)>("dim 128, causal, 2 sharers of 4 heads, 3 blocks",
                                               {.heads_q = 8,
                                                .heads_k = 2,
                                                .seq_q = 200,
                                                .seq_k = 300,
                                                .dim = 128,
                                                .dim_v = 128,
                                                .high = 101,
                                                .blocks = 3,
                                                .section_heads = 3,
                                                .sharers = 2},
                                               kBf16);
  check<deterministic(split(masked(k64, Mask::right), 256))>(
      "dim 64, causal, 3 sharers, deterministic, 3 blocks",
      {.batch = 2,
       .heads_q = 6,
       .heads_k = 2,
       .seq_q = 300,
       .seq_k = 300,
       .high = 1,
       .last_first = true,
       .blocks = 3,
       .sharers = 3},
      kBf16);
  check<two_plane(k64)>("dim 64, exact dS, 2 blocks", {.heads_q = 2, .heads_k = 2, .blocks = 2},
                        kExact);
  check<two_plane(masked(k128, Mask::right))>(
      "dim 128, exact dS, causal, GQA",
      {.batch = 2, .heads_q = 4, .heads_k = 2, .dim = 128, .dim_v = 128, .high = 51, .blocks = 3},
      kExact);
  check<two_plane(k64)>("dim 64, exact dS, 3 keys, delta given",
                        {.seq_q = 150, .seq_k = 3, .d_lse = true, .given_delta = true, .blocks = 2},
                        kExact);
  check<two_plane(with_softcap(half(k64)))>("dim 64, exact dS, softcap, fp16",
                                            {.softcap = 2.0F, .d_lse = true}, 6e-4);
  // Conversions, and right after them tiles of keys that no query sees.
  constexpr Shape kHidden = {
      .batch = 4, .heads_q = 1, .seq_q = 128, .seq_k = 300, .low = 140, .high = 200, .apart = 2};
  constexpr Shape kHidden128 = {.batch = 4,
                                .heads_q = 1,
                                .seq_q = 128,
                                .seq_k = 300,
                                .dim = 128,
                                .dim_v = 128,
                                .low = 140,
                                .high = 200,
                                .apart = 2};
  check<masked(k128, Mask::both)>("dim 128, hidden keys first", kHidden128, kBf16);
  check<masked(k64, Mask::both)>("dim 64, hidden keys first", kHidden, kBf16);
  check<deterministic(masked(k128, Mask::right))>("dim 128, hidden keys, deterministic",
                                                  {.batch = 4,
                                                   .heads_q = 1,
                                                   .seq_q = 200,
                                                   .seq_k = 400,
                                                   .dim = 128,
                                                   .dim_v = 128,
                                                   .high = 1,
                                                   .last_first = true,
                                                   .apart = 2},
                                                  kBf16);
  check_ragged();
  return failures == 0 ? 0 : 1;
}
