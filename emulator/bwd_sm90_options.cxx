/// bwd_sm90 with bool masks, dropout and biases on the emulator, against the formulas in float64.
#include "bwd_sm90_configs.h"
#include "bwd_sm90_drawn.h"
//
#include "bwd_sm90_lines.h"

namespace {

constexpr Config shown(Config c) {
  c.options.mask = true;
  return c;
}

/// What the mask leaves, or that of a caller's list.
constexpr Config mapped(Config c, Lists lists = Lists::whole) {
  c = shown(c);
  c.lists = lists;
  return c;
}

constexpr Config dropping(Config c) {
  c.options.dropout = true;
  if (c.shape.block_m == 128) c.shape.block_m = 64;
  return c;
}

/// `rows`: the bias has one for each query.
constexpr Config biased(Config c, tile::BiasType type, bool rows) {
  c.options.pairs = {.bias = type, .staged = rows};
  c.logits.modified = true;
  if (c.shape.block_m == 128) c.shape.block_m = 64;
  if (c.head_dim > 64 && rows) c.shape.k_stages = 1;
  return c;
}

/// Its gradient is summed too.
constexpr Config summed(Config c) {
  c.sums.bias = true;
  return c;
}

template <Config kConfig>
void check_drawn(const char* name, double bound) {
  constexpr tile::OptionKinds kOptions = kConfig.options;
  ShapeDraws draws(unsigned(kConfig.head_dim + 7 * int(kConfig.mask) + 31 * int(kOptions.bias())));
  for (int n = 0; n < ShapeDraws::count(); ++n) {
    Shape shape = draws.draw(kConfig.mask, kConfig.lengths, kConfig.head_dim, kConfig.head_dim_v);
    shape.alibi = kConfig.logits.alibi;
    shape.given_delta = kConfig.two_plane;
    if (kOptions.mask) shape.shows = draws.mask();
    if (kOptions.dropout) shape.dropout = 0.25;
    if (kOptions.bias()) shape.bias = draws.bias(kOptions.pairs.bias, kOptions.pairs.staged);
    shape.sinks = !kOptions.dropout && draws.percent(30);
    check<kConfig>((std::string(name) + ", drawn " + std::to_string(n)).c_str(), shape, bound);
  }
}

void check_biases() {
  check<summed(biased(k64, tile::BiasType::bf16, true))>(
      "dim 64, a bias of every pair, one row of least: b2 h4/2 q150 k332 d64 bf16 "
      "bias=b,h,q,k:bf16:min@rows5:-inf@some0.2 dlse bias_pitch=8 grid=2",
      kBf16);
  check<summed(biased(half(split(masked(k128, Mask::right), 128)), tile::BiasType::bf16, true))>(
      "dim 128, a bias of all heads and its gradient, causal, 2 parts: b1 h4/1 q200 k300 d128 f16 "
      "causal bias=1,1,q,k:bf16 bias_pitch=8 grid=2 parts=2",
      kFp16);
  check<biased(half(split(masked(k128, Mask::right), 128)), tile::BiasType::fp16, false)>(
      "dim 128, a bias of keys, causal, 2 parts: b2 h2/1 s300 d128 f16 causal bias=b,1,1,k:f16 "
      "bias_pitch=8 grid=2 parts=2",
      kFp16);
  check<biased(dropping(deterministic(k128)), tile::BiasType::bf16, true)>(
      "dim 128, a bias, dropout, deterministic: b1 h2/1 q150 k260 d128 bf16 "
      "bias=1,1,q,k:bf16:-inf@some0.99 dropout=0.2 bias_pitch=8",
      kBf16);
  check<biased(two_plane(with_alibi(masked(k64, Mask::right))), tile::BiasType::bf16, true)>(
      "dim 64, a bias and alibi, exact dS, causal: b1 h2/1 q150 k200 d64 bf16 causal alibi "
      "bias=1,1,q,k:bf16:-inf@some0.99 bias_pitch=8",
      kExact);
}

void check_dropout() {
  check<dropping(k64)>("dim 64, dropout: b2 h4/2 q300 k332 d64 bf16 dropout=0.3 grid=2", kBf16);
  check<dropping(masked(k128, Mask::right))>(
      "dim 128, dropout, causal: b1 h2/1 s300 d128 bf16 causal dropout=0.5", kBf16);
  check<dropping(shown(deterministic(k128)))>(
      "dim 128, dropout, a mask, deterministic, 3 blocks: b1 h4/2 q150 k400 d128 bf16 "
      "mask=1,1,q,k:some0.4 dropout=0.2 grid=3",
      kBf16);
  check<dropping(split(masked(k128, Mask::right), 128))>(
      "dim 128, dropout, causal, 3 parts: b1 h4/2 q700 k600 d128 bf16 causal dropout=0.2 grid=3 "
      "parts=3",
      kBf16);
  check<dropping(two_plane(masked(k64, Mask::right)))>(
      "dim 64, dropout, exact dS, causal: b1 h2/1 q150 k200 d64 bf16 causal dropout=0.4 "
      "given_delta",
      kExact);
  check<dropping(ragged(masked(k64, Mask::right), Lengths::packed))>(
      "dim 64, dropout, packed, causal: h4/2 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=25,25 "
      "d64 bf16 causal dropout=0.3 grid=3",
      kBf16);
}

void check_masks() {
  check<shown(k64)>("dim 64, a mask of every pair: b2 h4/2 q300 k332 d64 bf16 mask=b,h,q,k:some0.3",
                    kBf16);
  check<shown(k64)>(
      "dim 64, a mask of keys, NaN in rows that see the sink alone: b2 h2/1 q300 k433 d64 bf16 "
      "mask=b,1,1,k:some0 sink dlse grid=2",
      kBf16);
  check<shown(masked(k64, Mask::right))>(
      "dim 64, a mask that hides nearly all, causal, sinks: b1 h2/1 s300 d64 bf16 causal "
      "mask=1,1,q,k:some0.99 sink transposed",
      kBf16);
  check<shown(masked(k128, Mask::both))>(
      "dim 128, a mask, window: b1 h2/1 s300 d128 bf16 window=60,10 mask=1,h,q,k:some0.4 "
      "mask_pitch=1",
      kBf16);
  check<shown(deterministic(k128))>(
      "dim 128, a mask of queries, deterministic, 3 blocks: b1 h4/2 q150 k400 d128 bf16 "
      "mask=1,1,q,1:some0.4 grid=3",
      kBf16);
}

void check_masks_with_others() {
  check<shown(two_plane(masked(k128, Mask::right)))>(
      "dim 128, a mask, exact dS, causal: b1 h2/1 q150 k200 d128 bf16 causal mask=1,h,q,k:some0.5 "
      "given_delta",
      kExact);
  check<shown(split(masked(k64, Mask::right), 256))>(
      "dim 64, a mask, causal, 3 parts: b1 h4/2 q700 k600 d64 bf16 causal mask=1,h,q,k:some0.4 "
      "grid=3 parts=3",
      kBf16);
  check<shown(with_softcap(k64))>(
      "dim 64, a mask, softcap: b1 h2/1 q150 k200 d64 bf16 softcap=2 mask=1,1,q,k:some0.4", kBf16);
  check<shown(ragged(k64, Lengths::keys))>(
      "dim 64, a mask, key lengths: b3 h2/1 q150 k200 lengths=200,0,77 d64 bf16 "
      "mask=b,1,q,k:some0.4 grid=2",
      kBf16);
}

void check_maps() {
  check<mapped(k64)>(
      "dim 64, a map of a mask of every pair: b2 h4/2 q300 k332 d64 bf16 mask=1,h,q,k:some0.6 sink "
      "dlse mask_square=128",
      kBf16);
  check<mapped(deterministic(masked(k128, Mask::both)))>(
      "dim 128, a map of a mask, window, deterministic, 3 blocks: b1 h2/1 s300 d128 bf16 "
      "window=190,50 mask=1,h,q,k:some0.4 mask_square=64 grid=3",
      kBf16);
  check<mapped(ragged(k64, Lengths::keys))>(
      "dim 64, a map of a mask of keys, key lengths: b3 h2/1 q200 k600 lengths=600,0,277 d64 bf16 "
      "mask=b,1,1,k:some0.2 mask_square=128 grid=2",
      kBf16);
  check<mapped(masked(k64, Mask::right), Lists::parts)>(
      "dim 64, a block list that a mask narrows, causal: b1 h2 s400 d64 bf16 causal "
      "blocks=128,64:1,1:0.7:full mask=1,h,q,k:some0.5 mask_square=128",
      kBf16);
}

void check_all_drawn() {
  check_drawn<biased(k64, tile::BiasType::bf16, true)>("dim 64, a bias", kBf16);
  check_drawn<biased(two_plane(with_alibi(masked(k64, Mask::right))), tile::BiasType::bf16, true)>(
      "dim 64, a bias and alibi, exact dS, causal", kExact);
  check_drawn<dropping(ragged(masked(k64, Mask::right), Lengths::packed))>(
      "dim 64, dropout, packed, causal", kBf16);
  check_drawn<shown(k64)>("dim 64, a mask", kBf16);
}

}  // namespace

int main() {
  check_biases();
  check_dropout();
  check_masks();
  check_masks_with_others();
  check_maps();
  check_all_drawn();
  return failures == 0 ? 0 : 1;
}
