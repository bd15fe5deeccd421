/// bwd_dq_sm90 on the emulator, beside bwd_sm90 that leaves dQ to it, against the formulas in
/// float64: one and several blocks, odd lengths, GQA, masks, softcap, ALiBi, the gradient through
/// LSE, head dims off the tile; poisoned shared memory, workspace and outputs.
#include "bwd_sm90_made.h"

namespace {

constexpr Config k256 = {
    .head_dim = 256,
    .head_dim_v = 256,
    .shape = {.block_n = 64},
};

constexpr Config two_plane(Config c) {
  c.two_plane = true;
  return c;
}

constexpr double kBf16 = 1.2e-2, kFp16 = 1.5e-3;
constexpr double kExact = 4e-3;  // half a bf16 step of the result, P rounded for dV

/// Lengths that the device looks up; rows that no sequence has are NaN.
void check_ragged() {
  constexpr Lengths kPacked = Lengths::packed, kKeys = Lengths::keys;
  const auto of = [](Shape shape, int dim, int dim_v) {
    shape.queries = {70, 1, 0, 129, 200, 0}, shape.keys = {33, 90, 5, 129, 300, 40};
    shape.dim = dim, shape.dim_v = dim_v;
    return shape;
  };
  check<bwd_sm90::with_stages(ragged(k256, kPacked))>(
      "packed, 2 blocks", of({.heads_q = 4, .heads_k = 2, .tail = 25, .blocks = 2}, 256, 256),
      kBf16);
  check<bwd_sm90::with_stages(ragged(masked(k256, Mask::right), kPacked))>(
      "packed, causal, 3 blocks",
      of({.heads_q = 4, .heads_k = 2, .high = 1, .d_lse = true, .tail = 200, .blocks = 3}, 256,
         256),
      kBf16);
  check<bwd_sm90::with_stages(ragged(dims(masked(half(k256), Mask::both), 192, 128), kPacked))>(
      "packed, dims 192, 128, window, fp16",
      of({.low = -60, .high = 11, .tail = 3, .blocks = 2}, 192, 128), kFp16);
  check<bwd_sm90::with_stages(ragged(with_alibi(masked(k256, Mask::right)), kPacked))>(
      "packed, ALiBi, top left", of({.alibi = true, .top = 1}, 256, 256), kBf16);
  check<bwd_sm90::with_stages(ragged(with_alibi(masked(k256, Mask::both)), kPacked))>(
      "packed, ALiBi, window on both sides", of({.low = -60, .high = 41, .alibi = true}, 256, 256),
      kBf16);
  check<bwd_sm90::with_stages(ragged(two_plane(masked(k256, Mask::right)), kPacked))>(
      "packed, exact, causal", of({.high = 1, .tail = 1}, 256, 256), kExact);
  check<bwd_sm90::with_stages(ragged(masked(k256, Mask::right), kKeys))>(
      "key lengths, causal, rows that see nothing",
      {.batch = 3, .dim = 256, .dim_v = 256, .high = 1, .keys = {200, 0, 77}, .blocks = 2}, kBf16);
  check<bwd_sm90::with_stages(ragged(with_softcap(k256), kKeys))>(
      "key lengths, softcap",
      {.batch = 3, .dim = 256, .dim_v = 256, .softcap = 2.0F, .keys = {200, 0, 77}}, kBf16);
}

}  // namespace

int main() {
  check<bwd_sm90::with_stages(k256)>("2 blocks",
                                     {.batch = 2,
                                      .heads_q = 4,
                                      .heads_k = 2,
                                      .seq_q = 150,
                                      .seq_k = 140,
                                      .dim = 256,
                                      .dim_v = 256,
                                      .blocks = 2,
                                      .section_heads = 2,
                                      .apart = 2},
                                     kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::right))>(
      "causal", {.seq_q = 330, .seq_k = 330, .dim = 256, .dim_v = 256, .high = 1}, kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::right))>(
      "causal, rows that see nothing",
      {.seq_q = 300, .seq_k = 130, .dim = 256, .dim_v = 256, .high = 130 - 300 + 1, .d_lse = true},
      kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::right))>(
      "causal, keys that nobody sees",
      {.seq_q = 70, .seq_k = 300, .dim = 256, .dim_v = 256, .high = 1, .blocks = 2}, kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::both))>("window, 3 blocks",
                                                         {.heads_q = 4,
                                                          .heads_k = 2,
                                                          .seq_q = 400,
                                                          .seq_k = 400,
                                                          .dim = 256,
                                                          .dim_v = 256,
                                                          .low = -100,
                                                          .high = 31,
                                                          .blocks = 3},
                                                         kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::both))>(
      "window of one key",
      {.seq_q = 200, .seq_k = 300, .dim = 256, .dim_v = 256, .low = 80, .high = 81}, kBf16);
  check<bwd_sm90::with_stages(k256)>("one query",
                                     {.seq_q = 1, .seq_k = 200, .dim = 256, .dim_v = 256}, kBf16);
  check<bwd_sm90::with_stages(with_softcap(masked(half(k256), Mask::right)))>(
      "dim 200, softcap, fp16, causal",
      {.seq_q = 90, .seq_k = 100, .dim = 200, .dim_v = 200, .high = 11, .softcap = 2.0F}, kFp16);
  check<bwd_sm90::with_stages(dims(with_alibi(k256), 192, 128))>(
      "dims 192, 128, ALiBi", {.dim = 192, .dim_v = 128, .alibi = true, .blocks = 2}, kBf16);
  check<bwd_sm90::with_stages(dims(half(k256), 192, 192))>(
      "dim 192, fp16, delta given",
      {.heads_q = 4, .dim = 192, .dim_v = 192, .given_delta = true, .blocks = 2}, kFp16);
  check<bwd_sm90::with_stages(dims(k256, 64, 192))>(
      "dims 64, 136", {.dim = 64, .dim_v = 136, .amplitude = 3.0F}, kBf16);
  check<bwd_sm90::with_stages(dims(k256, 256, 96))>("dims 256, 96",
                                                    {.dim = 256, .dim_v = 96, .blocks = 2}, kBf16);
  check<bwd_sm90::with_stages(two_plane(masked(k256, Mask::right)))>(
      "exact, causal", {.seq_q = 150, .dim = 256, .dim_v = 256, .high = 51}, kExact);
  check<bwd_sm90::with_stages(two_plane(with_softcap(k256)))>(
      "exact, softcap",
      {.seq_q = 150, .seq_k = 100, .dim = 256, .dim_v = 256, .softcap = 2.0F, .blocks = 2}, kExact);
  check_ragged();
  return failures == 0 ? 0 : 1;
}
