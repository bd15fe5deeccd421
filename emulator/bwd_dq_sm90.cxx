/// bwd_dq_sm90 on the emulator, beside bwd_sm90 that leaves dQ to it, against the formulas in
/// float64: one and several blocks, odd lengths, GQA, masks, softcap, ALiBi, the gradient through
/// LSE, head dims off the tile; poisoned shared memory, workspace and outputs.
#include "bwd_sm90_made.h"
//
#include "bwd_sm90_lines.h"

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
  check<bwd_sm90::with_stages(ragged(k256, kPacked))>(
      "packed, 2 blocks: h4/2 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=25,25 d256 bf16 "
      "grid=2",
      kBf16);
  check<bwd_sm90::with_stages(ragged(masked(k256, Mask::right), kPacked))>(
      "packed, causal, 3 blocks: h4/2 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=200,200 d256 "
      "bf16 causal dlse grid=3",
      kBf16);
  check<bwd_sm90::with_stages(ragged(dims(masked(half(k256), Mask::both), 192, 128), kPacked))>(
      "packed, dims 192, 128, window, fp16: h2/1 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=3,3 d192 dv128 f16 window=60,10 grid=2",
      kFp16);
  check<bwd_sm90::with_stages(ragged(with_alibi(masked(k256, Mask::right)), kPacked))>(
      "packed, ALiBi, top left: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40 d256 bf16 "
      "causal_top_left alibi",
      kBf16);
  check<bwd_sm90::with_stages(ragged(with_alibi(masked(k256, Mask::both)), kPacked))>(
      "packed, ALiBi, window on both sides: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40 d256 "
      "bf16 window=60,40 alibi",
      kBf16);
  check<bwd_sm90::with_stages(ragged(two_plane(masked(k256, Mask::right)), kPacked))>(
      "packed, exact, causal: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=1,1 d256 bf16 "
      "causal",
      kExact);
  check<bwd_sm90::with_stages(ragged(masked(k256, Mask::right), kKeys))>(
      "key lengths, causal, rows that see nothing: b3 h2/1 q150 k200 lengths=200,0,77 d256 bf16 "
      "causal grid=2",
      kBf16);
  check<bwd_sm90::with_stages(ragged(with_softcap(k256), kKeys))>(
      "key lengths, softcap: b3 h2/1 q150 k200 lengths=200,0,77 d256 bf16 softcap=2", kBf16);
}

}  // namespace

int main() {
  check<bwd_sm90::with_stages(k256)>(
      "2 blocks: b2 h4/2 q150 k140 d256 bf16 grid=2 section_heads=2 apart=2", kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::right))>("causal: b1 h2/1 s330 d256 bf16 causal",
                                                          kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::right))>(
      "causal, rows that see nothing: b1 h2/1 q300 k130 d256 bf16 causal dlse", kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::right))>(
      "causal, keys that nobody sees: b1 h2/1 q70 k300 d256 bf16 causal_top_left grid=2", kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::both))>(
      "window, 3 blocks: b1 h4/2 s400 d256 bf16 window=100,30 grid=3", kBf16);
  check<bwd_sm90::with_stages(masked(k256, Mask::both))>(
      "window of one key: b1 h2/1 q200 k300 d256 bf16 window=20,-20", kBf16);
  check<bwd_sm90::with_stages(k256)>("one query: b1 h2/1 q1 k200 d256 bf16", kBf16);
  check<bwd_sm90::with_stages(with_softcap(masked(half(k256), Mask::right)))>(
      "dim 200, softcap, fp16, causal: b1 h2/1 q90 k100 d200 f16 causal softcap=2", kFp16);
  check<bwd_sm90::with_stages(dims(with_alibi(k256), 192, 128))>(
      "dims 192, 128, ALiBi: b1 h2/1 q150 k200 d192 dv128 bf16 alibi grid=2", kBf16);
  check<bwd_sm90::with_stages(dims(half(k256), 192, 192))>(
      "dim 192, fp16, delta given: b1 h4/1 q150 k200 d192 f16 given_delta grid=2", kFp16);
  check<bwd_sm90::with_stages(dims(k256, 64, 192))>(
      "dims 64, 136: b1 h2/1 q150 k200 d64 dv136 bf16 q=randn*3 k=randn*3", kBf16);
  check<bwd_sm90::with_stages(dims(k256, 256, 96))>(
      "dims 256, 96: b1 h2/1 q150 k200 d256 dv96 bf16 grid=2", kBf16);
  check<bwd_sm90::with_stages(two_plane(masked(k256, Mask::right)))>(
      "exact, causal: b1 h2/1 q150 k200 d256 bf16 causal", kExact);
  check<bwd_sm90::with_stages(two_plane(with_softcap(k256)))>(
      "exact, softcap: b1 h2/1 q150 k100 d256 bf16 softcap=2 grid=2", kExact);
  check_ragged();
  return failures == 0 ? 0 : 1;
}
