/// bwd_sm90 on the emulator, against the formulas in float64: one and several blocks, odd lengths,
/// GQA, masks, softcap, ALiBi, the gradient through LSE, head dims off the tile; poisoned shared
/// memory, workspace and outputs.
#include "bwd_sm90_configs.h"
//
#include "bwd_sm90_lines.h"

namespace {

/// Lengths that the device looks up; rows that no sequence has are NaN.
void check_ragged() {
  constexpr Lengths kPacked = Lengths::packed, kKeys = Lengths::keys;
  check<ragged(k64, kPacked)>(
      "packed, dim 64: h4/2 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=25,25 d64 bf16", kBf16);
  check<ragged(masked(k64, Mask::right), kPacked)>(
      "packed, dim 64, causal, 3 blocks: h4/2 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=300,300 d64 bf16 causal dlse grid=3",
      kBf16);
  check<spans(ragged(masked(k64, Mask::right), kPacked))>(
      "packed, dim 64, causal, spans, 3 blocks: h4/2 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=300,300 d64 bf16 causal dlse grid=3 parts=2",
      kBf16);
  check<ragged(masked(k64, Mask::right), kPacked)>(
      "packed, dim 40, causal, top left: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=1,1 "
      "d40 bf16 causal_top_left",
      kBf16);
  check<ragged(masked(k128, Mask::both), kPacked)>(
      "packed, dim 128, window, 2 blocks: h2/1 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=130,130 d128 bf16 window=60,10 grid=2",
      kBf16);
  check<ragged(with_alibi(masked(k64, Mask::right)), kPacked)>(
      "packed, dim 64, ALiBi, causal: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40 d64 bf16 "
      "causal alibi",
      kBf16);
  // A window to the right of ALiBi's diagonal: lengths are the device's.
  check<ragged(with_alibi(masked(k64, Mask::both)), kPacked)>(
      "packed, dim 64, ALiBi, window on both sides: h2/1 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=7,7 d64 bf16 window=60,40 alibi",
      kBf16);
  check<ragged(with_alibi(masked(k128, Mask::both)), kKeys)>(
      "key lengths, dim 128, ALiBi, window on both sides: b3 h2/1 q70 k200 lengths=200,0,131 d128 "
      "bf16 window=100,4 alibi",
      kBf16);
  check<ragged(plain(with_softcap(masked(k128, Mask::right))), kPacked)>(
      "packed, dim 128, softcap, causal: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40 d128 bf16 "
      "causal softcap=2",
      kBf16);
  check<ragged(deterministic(masked(k64, Mask::right)), kPacked)>(
      "packed, dim 64, causal, deterministic, 3 blocks: h4/2 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=9,9 d64 bf16 causal last_first grid=3",
      kBf16);
  check<spans(ragged(deterministic(masked(k64, Mask::right)), kPacked))>(
      "packed, dim 64, causal, deterministic, spans, 3 blocks: h4/2 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=9,9 d64 bf16 causal last_first grid=3 "
      "apart=2 parts=3",
      kBf16);
  // The window lies right of the diagonal in all sequences but the last: nobody sees a key.
  check<ragged(deterministic(masked(k64, Mask::both)), kPacked)>(
      "packed, dim 64, top left, window, deterministic: h2/1 packed=130,65,70/140,75,33:tail=9,9 "
      "d64 bf16 causal_top_left window=5,none last_first",
      kBf16);
  check<ragged(two_plane(masked(k128, Mask::right)), kPacked)>(
      "packed, dim 128, exact dS, causal, delta given, 3 blocks: h2/1 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=3,3 d128 bf16 causal dlse given_delta "
      "grid=3",
      kExact);
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
  check<ragged(k64, kKeys)>(
      "key lengths, dim 64: b3 h2/1 q150 k200 lengths=200,0,77 d64 bf16 grid=2", kBf16);
  check<ragged(masked(k128, Mask::right), kKeys)>(
      "key lengths, dim 128, causal, rows that see nothing: b3 h4/2 q150 k200 lengths=200,0,77 "
      "d128 bf16 causal",
      kBf16);
  check<ragged(masked(k128, Mask::both), kKeys)>(
      "key lengths, dim 128, window: b3 h2/1 q150 k200 lengths=200,0,77 d128 bf16 window=60,29",
      kBf16);
  check<ragged(split(masked(k64, Mask::right), 256), kKeys)>(
      "key lengths, dim 64, causal, 2 parts, chunks of 256: b3 h2/1 q300 k200 lengths=200,0,77 d64 "
      "bf16 causal grid=3 parts=2",
      kBf16);
  check<ragged(two_plane(k64), kKeys)>(
      "key lengths, dim 64, exact dS: b3 h2/1 q150 k200 lengths=200,0,77 d64 bf16", kExact);
}

/// Chunks of more rows than two places for conversions hold.
void check_chunks() {
  check<chunks(staged(narrow(dims(masked(k128, Mask::right), 80, 80)), 3, 3, 1), 192)>(
      "dim 72, causal, chunks of 192: b3 h2 s130 d72 bf16 causal grid=2", kBf16);
  check<chunks(narrow(dims(masked(half(k128), Mask::right), 80, 80)), 256)>(
      "dim 80, causal, fp16, chunks of 256: b2 h4/2 s250 d80 f16 causal grid=3", kFp16);
  check<chunks(staged(masked(k64, Mask::right), 3, 2, 2), 512)>(
      "dim 64, causal, chunks of 512: b1 h6 s600 d64 bf16 causal grid=3", kBf16);
  check<chunks(split(masked(k128, Mask::right), 128), 256)>(
      "dim 128, causal, 2 parts, chunks of 256: b2 h4/2 s300 d128 bf16 causal grid=3 "
      "section_heads=2 parts=2",
      kBf16);
  check<chunks(staged(ragged(k64, Lengths::packed), 3, 2, 1), 512)>(
      "packed, dim 64, chunks of 512: h4 packed=70,1,0,129,600,0/33,90,5,129,300,40:tail=25,25 d64 "
      "bf16 grid=2",
      kBf16);
}

}  // namespace

int main() {
  check<k64>("dim 64: b1 h2/1 q150 k200 d64 bf16", kBf16);
  check<masked(k64, Mask::right)>("dim 64, causal, 3 blocks: b1 h2/1 s300 d64 bf16 causal grid=3",
                                  kBf16);
  check<hiding(masked(k64, Mask::right))>(
      "dim 64, rows that see nothing: b1 h2/1 q300 k170 d64 bf16 causal", kBf16);
  check<masked(k64, Mask::both)>("dim 64, window: b1 h2/1 s400 d64 bf16 window=100,50", kBf16);
  check<with_softcap(masked(k64, Mask::right))>(
      "dim 64, softcap: b1 h2/1 q150 k200 d64 bf16 causal softcap=2 dlse", kBf16);
  check<with_alibi(masked(k64, Mask::right))>(
      "dim 64, ALiBi: b1 h2/1 q150 k200 d64 bf16 causal alibi", kBf16);
  check<deterministic(masked(k64, Mask::right))>(
      "dim 64, deterministic, 3 blocks: b2 h4/2 s300 d64 bf16 causal last_first grid=3 "
      "section_heads=2",
      kBf16);
  check<half(k64)>("dim 40, fp16, dLSE, batch 2: b2 h4/2 q70 k200 d40 f16 dlse grid=2", kFp16);
  check<k64>("dim 64, one query: b1 h2/1 q1 k300 d64 bf16", kBf16);
  check<k128>("dim 128, 2 blocks: b2 h4/2 q150 k200 d128 bf16 grid=2 section_heads=2 apart=2",
              kBf16);
  check<masked(k128, Mask::right)>("dim 128, causal: b1 h2/1 q200 k300 d128 bf16 causal dlse",
                                   kBf16);
  check<masked(k128, Mask::both)>("dim 128, window: b1 h2/1 s300 d128 bf16 window=60,0", kBf16);
  check<plain(with_softcap(masked(k128, Mask::right)))>(
      "dim 128, softcap: b1 h2/1 q150 k200 d128 bf16 causal softcap=2", kBf16);
  check<plain(with_alibi(k128))>("dim 128, ALiBi: b1 h2/1 q150 k200 d128 bf16 alibi", kBf16);
  check<deterministic(k128)>("dim 128, deterministic, 3 blocks: b1 h4/2 q150 k400 d128 bf16 grid=3",
                             kBf16);
  check<dims(masked(k128, Mask::right), 96, 96)>(
      "dim 96, causal: b1 h2/1 q150 k200 d96 bf16 causal", kBf16);
  check<staged(masked(k64, Mask::right), 3, 2, 2)>(
      "dim 64, causal, three stages of Q, 3 blocks: b1 h4/2 q700 k600 d64 bf16 causal_top_left "
      "grid=3",
      kBf16);
  check<staged(dims(masked(k128, Mask::right), 96, 96), 3, 3, 1)>(
      "dim 96, causal, more stages: b1 h4/2 s500 d96 bf16 causal grid=3", kBf16);
  check<dims(k128, 64, 128)>("dims 64, 128: b1 h2/1 q150 k200 d64 dv128 bf16", kBf16);
  check<dims(k128, 128, 64)>("dims 128, 64: b1 h2/1 q150 k200 d128 dv64 bf16", kBf16);
  check<narrow(dims(k128, 80, 64))>("dims 72, 40: b1 h2/1 q150 k200 d72 dv40 bf16", kBf16);
  check<narrow(dims(masked(k128, Mask::right), 80, 80))>(
      "dim 80, causal, 2 blocks: b1 h4/2 s300 d80 bf16 causal grid=2", kBf16);
  check<narrow(dims(deterministic(k128), 96, 80))>(
      "dims 96, 80, deterministic: b1 h2/1 q150 k300 d96 dv80 bf16", kBf16);
  check<hiding(split(masked(k64, Mask::right), 256))>(
      "dim 64, causal, 3 parts, chunks of 256: b1 h4/2 q700 k600 d64 bf16 causal grid=3 "
      "section_heads=2 parts=3",
      kBf16);
  check<split(k128, 128)>("dim 128, 2 parts: b2 h2/1 q200 k300 d128 bf16 grid=2 parts=2", kBf16);
  check<narrow(split(dims(k128, 96, 96), 128))>(
      "dim 96, 2 parts: b1 h2/1 q150 k200 d96 bf16 dlse parts=2", kBf16);
  check<hiding(two_plane(masked(k128, Mask::both)))>(
      "dim 128, exact dS, rows at both ends that see nothing: b1 h2/1 q300 k100 d128 bf16 "
      "window=-130,179",
      kExact);
  check<masked(k64, Mask::right)>(
      "dim 64, causal, GQA: b1 h4/2 q500 k300 d64 bf16 causal_top_left grid=3", kBf16);
  check<with_softcap(masked(k64, Mask::both))>(
      "dim 64, window, softcap: b1 h2/1 s300 d64 bf16 window=100,50 softcap=2", kBf16);
  check<with_alibi(masked(half(k64), Mask::right))>(
      "dim 64, ALiBi, fp16: b1 h2/1 q300 k200 d64 f16 window=none,150 alibi", kFp16);
  check<deterministic(masked(k128, Mask::right))>(
      "dim 128, causal, deterministic: b1 h2/1 s300 d128 bf16 causal last_first grid=3", kBf16);
  check<split(dims(k128, 128, 64), 128)>(
      "dims 128, 64, 3 parts: b2 h2/1 q200 k300 d128 dv64 bf16 grid=2 section_heads=2 parts=3",
      kBf16);
  // A key head's query heads in several jobs; sections end inside a group.
  check<split(masked(k128, Mask::right), 128)>(
      "dim 128, causal, 2 sharers of 4 heads, 3 blocks: b1 h8/2 q200 k300 d128 bf16 causal grid=3 "
      "section_heads=3 sharers=2",
      kBf16);
  check<deterministic(split(masked(k64, Mask::right), 256))>(
      "dim 64, causal, 3 sharers, deterministic, 3 blocks: b2 h6/2 s300 d64 bf16 causal last_first "
      "grid=3 sharers=3",
      kBf16);
  check<two_plane(k64)>("dim 64, exact dS, 2 blocks: b1 h2 q150 k200 d64 bf16 grid=2", kExact);
  check<two_plane(masked(k128, Mask::right))>(
      "dim 128, exact dS, causal, GQA: b2 h4/2 q150 k200 d128 bf16 causal grid=3", kExact);
  check<two_plane(k64)>(
      "dim 64, exact dS, 3 keys, delta given: b1 h2/1 q150 k3 d64 bf16 dlse given_delta grid=2",
      kExact);
  check<two_plane(with_softcap(half(k64)))>(
      "dim 64, exact dS, softcap, fp16: b1 h2/1 q150 k200 d64 f16 softcap=2 dlse", 6e-4);
  // Conversions, and right after them tiles of keys that no query sees.
  check<masked(k128, Mask::both)>(
      "dim 128, hidden keys first: b4 h1 q128 k300 d128 bf16 window=32,27 apart=2", kBf16);
  check<masked(k64, Mask::both)>(
      "dim 64, hidden keys first: b4 h1 q128 k300 d64 bf16 window=32,27 apart=2", kBf16);
  check<deterministic(masked(k128, Mask::right))>(
      "dim 128, hidden keys, deterministic: b4 h1 q200 k400 d128 bf16 causal_top_left last_first "
      "apart=2",
      kBf16);
  check_ragged();
  check_chunks();
  return failures == 0 ? 0 : 1;
}
