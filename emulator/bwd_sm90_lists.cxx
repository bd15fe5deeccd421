/// bwd_sm90 with block lists on the emulator, against the formulas in float64: blocks as large as
/// tiles, larger and smaller, under masks and lengths, of heads and of batch entries, rows that
/// list nothing, keys that nobody lists.
#include "bwd_sm90_configs.h"
//
#include "bwd_sm90_lines.h"

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
  check<listed(k64, kParts)>("dim 64: b1 h2 q500 k600 d64 bf16 blocks=128,128:1,h:0.5:full grid=2",
                             kBf16);
  check<listed(masked(k64, Mask::right), kParts)>(
      "dim 64, causal, GQA, lists of all: b2 h4/2 s520 d64 bf16 causal blocks=128,128:b,h:0.5:full "
      "dlse grid=3",
      kBf16);
  check<listed(short_steps(k64), kParts)>(
      "dim 64, blocks of 64, mangled: b1 h2/1 q400 k500 d64 bf16 blocks=64,64:1,h:0.5 mangled",
      kBf16);
  check<ragged(listed(masked(short_steps(k64), Mask::both), kParts), Lengths::keys)>(
      "dim 64, blocks of 16 x 32, lengths, window: b3 h2/1 q200 k260 lengths=260,0,131 d64 bf16 "
      "window=100,30 blocks=16,32:1,h:0.5:full grid=2",
      kBf16);
  check<listed(k128, kParts)>(
      "dim 128, blocks of 256: b1 h2 q600 k900 d128 bf16 blocks=256,256:1,h:0.5 grid=3", kBf16);
  check<listed(masked(k128, Mask::right), kParts)>(
      "dim 128, blocks of 64 x 16, causal: b1 h2/1 s300 d128 bf16 causal blocks=64,16:1,h:0.5:full",
      kBf16);
  check<listed(plain(with_alibi(k128)), kParts)>(
      "dim 128, ALiBi, GQA: b1 h4/2 s300 d128 bf16 alibi blocks=128,128:1,h:0.5", kBf16);
  check<listed(two_plane(k64), kParts)>(
      "dim 64, exact dS, blocks of 32: b1 h2 q150 k200 d64 bf16 blocks=32,128:1,h:0.5 grid=2",
      kExact);
  // dQ was off by 6.4e-4 with a delta from O.
  check<listed(two_plane(half(shown(masked(k64, Mask::right)))), kParts)>(
      "few keys, causal, mask, sinks, delta from P: b2 h3 s8 d16 f16 causal scale=0.25 "
      "blocks=256,128:b,h:0.03:full:row=0 mask=b,1,q,k:some0.9 sink given_delta values=3",
      kFewKeys);
  check<deterministic(listed(masked(k64, Mask::right), kParts))>(
      "dim 64, causal, deterministic: b2 h4/2 s700 d64 bf16 causal blocks=128,128:1,h:0.7 "
      "last_first grid=3",
      kBf16);
  check<deterministic(listed(k128, kParts))>(
      "dim 128, deterministic, blocks of 32: b1 h2 q200 k500 d128 bf16 blocks=32,32:1,h:0.5 grid=3",
      kBf16);
  // A row block of each lists nothing; the second has no queries.
  check<ragged(listed(masked(k128, Mask::right), kParts), Lengths::packed)>(
      "dim 128, packed sequences with a list each, causal, GQA, rows behind the last: h4/2 "
      "packed=90,0,300,40/130,70,200,40:tail=70,70 d128 bf16 causal blocks=64,32:b,h:0.5:full "
      "grid=2",
      kBf16);
  check<deterministic(ragged(listed(k64, kParts), Lengths::packed))>(
      "dim 64, packed sequences, one list, deterministic: h2/1 packed=300,150/200,300 d64 bf16 "
      "blocks=128,64:1,h:0.5 grid=2",
      kBf16);
  check<listed(k64, kParts)>(
      "dim 64, nothing listed: b2 h2/1 s300 d64 bf16 blocks=128,128:1,1:0 grid=3", kBf16);
  check<passing(masked(k64, Mask::right))>(
      "dim 64, half tiles passed over, causal, GQA, mangled: b1 h4/2 q500 k450 d64 bf16 "
      "causal_top_left blocks=64,64:1,h:0.3 mangled grid=2",
      kBf16);
  check<passing(k64)>(
      "dim 64, half tiles passed over, GQA, lists of entries: b2 h4/1 q700 k390 d64 bf16 "
      "blocks=64,64:b,1:0.2 grid=3",
      kBf16);
  check<passing(ragged(masked(k128, Mask::both), Lengths::keys))>(
      "dim 128, half tiles passed over, lengths, window: b3 h2/1 q300 k390 lengths=390,0,131 d128 "
      "bf16 window=150,30 blocks=128,64:1,h:0.3 grid=3",
      kBf16);
  return failures == 0 ? 0 : 1;
}
