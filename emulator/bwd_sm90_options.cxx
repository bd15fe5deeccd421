/// bwd_sm90 with bool masks, dropout and biases on the emulator, against the formulas in float64.
#include "bwd_sm90_configs.h"
#include "bwd_sm90_drawn.h"

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

constexpr Added kOfPairs = {
    .type = DType::bfloat16, .by_batch = true, .pitch = 8, .hidden = 0.2, .shift = -3.3895e38F};
constexpr Added kShared = {.type = DType::bfloat16, .by_head = false, .pitch = 8};
constexpr Added kOfKeys = {
    .type = DType::float16, .by_batch = true, .by_head = false, .by_query = false, .pitch = 8};
constexpr Added kOfAll = {.type = DType::bfloat16, .by_head = false, .pitch = 8, .hidden = 0.99};

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
      "dim 64, a bias of every pair, one row of least",
      {.batch = 2,
       .heads_q = 4,
       .heads_k = 2,
       .seq_k = 332,
       .alibi = false,
       .d_lse = true,
       .blocks = 2,
       .bias = &kOfPairs},
      kBf16);
  check<summed(biased(half(split(masked(k128, Mask::right), 128)), tile::BiasType::bf16, true))>(
      "dim 128, a bias of all heads and its gradient, causal, 2 parts",
      {.heads_q = 4,
       .seq_q = 200,
       .seq_k = 300,
       .dim = 128,
       .dim_v = 128,
       .high = 101,
       .blocks = 2,
       .parts = 2,
       .bias = &kShared},
      kFp16);
  check<biased(half(split(masked(k128, Mask::right), 128)), tile::BiasType::fp16, false)>(
      "dim 128, a bias of keys, causal, 2 parts",
      {.batch = 2,
       .heads_q = 2,
       .seq_q = 300,
       .seq_k = 300,
       .dim = 128,
       .dim_v = 128,
       .high = 1,
       .blocks = 2,
       .parts = 2,
       .bias = &kOfKeys},
      kFp16);
  check<biased(dropping(deterministic(k128)), tile::BiasType::bf16, true)>(
      "dim 128, a bias, dropout, deterministic",
      {.heads_q = 2, .seq_k = 260, .dim = 128, .dim_v = 128, .dropout = 0.2, .bias = &kOfAll},
      kBf16);
  check<biased(two_plane(with_alibi(masked(k64, Mask::right))), tile::BiasType::bf16, true)>(
      "dim 64, a bias and alibi, exact dS, causal", {.high = 51, .alibi = true, .bias = &kOfAll},
      kExact);
}

void check_dropout() {
  check<dropping(k64)>("dim 64, dropout",
                       {.batch = 2,
                        .heads_q = 4,
                        .heads_k = 2,
                        .seq_q = 300,
                        .seq_k = 332,
                        .blocks = 2,
                        .dropout = 0.3},
                       kBf16);
  check<dropping(masked(k128, Mask::right))>(
      "dim 128, dropout, causal",
      {.seq_q = 300, .seq_k = 300, .dim = 128, .dim_v = 128, .high = 1, .dropout = 0.5}, kBf16);
  check<dropping(shown(deterministic(k128)))>("dim 128, dropout, a mask, deterministic, 3 blocks",
                                              {.heads_q = 4,
                                               .heads_k = 2,
                                               .seq_k = 400,
                                               .dim = 128,
                                               .dim_v = 128,
                                               .blocks = 3,
                                               .shows = {.density = 0.6},
                                               .dropout = 0.2},
                                              kBf16);
  check<dropping(split(masked(k128, Mask::right), 128))>("dim 128, dropout, causal, 3 parts",
                                                         {.heads_q = 4,
                                                          .heads_k = 2,
                                                          .seq_q = 700,
                                                          .seq_k = 600,
                                                          .dim = 128,
                                                          .dim_v = 128,
                                                          .high = -100 + 1,
                                                          .blocks = 3,
                                                          .parts = 3,
                                                          .dropout = 0.2},
                                                         kBf16);
  check<dropping(two_plane(masked(k64, Mask::right)))>(
      "dim 64, dropout, exact dS, causal", {.high = 51, .given_delta = true, .dropout = 0.4},
      kExact);
  check<dropping(ragged(masked(k64, Mask::right), Lengths::packed))>(
      "dim 64, dropout, packed, causal",
      {.heads_q = 4,
       .heads_k = 2,
       .high = 1,
       .queries = {70, 1, 0, 129, 200, 0},
       .keys = {33, 90, 5, 129, 300, 40},
       .tail = 25,
       .blocks = 3,
       .dropout = 0.3},
      kBf16);
}

void check_masks() {
  check<shown(k64)>("dim 64, a mask of every pair",
                    {.batch = 2,
                     .heads_q = 4,
                     .heads_k = 2,
                     .seq_q = 300,
                     .seq_k = 332,
                     .shows = {.density = 0.7, .by_batch = true, .by_head = true}},
                    kBf16);
  check<shown(k64)>("dim 64, a mask of keys, NaN in rows that see the sink alone",
                    {.batch = 2,
                     .seq_q = 300,
                     .seq_k = 433,
                     .d_lse = true,
                     .sinks = true,
                     .blocks = 2,
                     .shows = {.density = 1.0, .by_batch = true, .by_query = false}},
                    kBf16);
  check<shown(masked(k64, Mask::right))>("dim 64, a mask that hides nearly all, causal, sinks",
                                         {.seq_q = 300,
                                          .seq_k = 300,
                                          .high = 1,
                                          .sinks = true,
                                          .shows = {.density = 0.01, .transposed = true}},
                                         kBf16);
  check<shown(masked(k128, Mask::both))>("dim 128, a mask, window",
                                         {.seq_q = 300,
                                          .seq_k = 300,
                                          .dim = 128,
                                          .dim_v = 128,
                                          .low = -60,
                                          .high = 11,
                                          .shows = {.density = 0.6, .by_head = true, .pitch = 1}},
                                         kBf16);
  check<shown(deterministic(k128))>("dim 128, a mask of queries, deterministic, 3 blocks",
                                    {.heads_q = 4,
                                     .heads_k = 2,
                                     .seq_k = 400,
                                     .dim = 128,
                                     .dim_v = 128,
                                     .blocks = 3,
                                     .shows = {.density = 0.6, .by_key = false}},
                                    kBf16);
}

void check_masks_with_others() {
  check<shown(two_plane(masked(k128, Mask::right)))>("dim 128, a mask, exact dS, causal",
                                                     {.dim = 128,
                                                      .dim_v = 128,
                                                      .high = 51,
                                                      .given_delta = true,
                                                      .shows = {.density = 0.5, .by_head = true}},
                                                     kExact);
  check<shown(split(masked(k64, Mask::right), 256))>("dim 64, a mask, causal, 3 parts",
                                                     {.heads_q = 4,
                                                      .heads_k = 2,
                                                      .seq_q = 700,
                                                      .seq_k = 600,
                                                      .high = -100 + 1,
                                                      .blocks = 3,
                                                      .parts = 3,
                                                      .shows = {.density = 0.6, .by_head = true}},
                                                     kBf16);
  check<shown(with_softcap(k64))>("dim 64, a mask, softcap",
                                  {.softcap = 2.0F, .shows = {.density = 0.6}}, kBf16);
  check<shown(ragged(k64, Lengths::keys))>(
      "dim 64, a mask, key lengths",
      {.batch = 3, .keys = {200, 0, 77}, .blocks = 2, .shows = {.density = 0.6, .by_batch = true}},
      kBf16);
}

void check_maps() {
  check<mapped(k64)>("dim 64, a map of a mask of every pair",
                     {.batch = 2,
                      .heads_q = 4,
                      .heads_k = 2,
                      .seq_q = 300,
                      .seq_k = 332,
                      .d_lse = true,
                      .sinks = true,
                      .shows = {.density = 0.4, .by_head = true, .square = 128}},
                     kBf16);
  check<mapped(deterministic(masked(k128, Mask::both)))>(
      "dim 128, a map of a mask, window, deterministic, 3 blocks",
      {.seq_q = 300,
       .seq_k = 300,
       .dim = 128,
       .dim_v = 128,
       .low = -190,
       .high = 51,
       .blocks = 3,
       .shows = {.density = 0.6, .by_head = true, .square = 64}},
      kBf16);
  check<mapped(ragged(k64, Lengths::keys))>(
      "dim 64, a map of a mask of keys, key lengths",
      {.batch = 3,
       .seq_q = 200,
       .seq_k = 600,
       .keys = {600, 0, 277},
       .blocks = 2,
       .shows = {.density = 0.8, .by_batch = true, .by_query = false, .square = 128}},
      kBf16);
  check<mapped(masked(k64, Mask::right), Lists::parts)>(
      "dim 64, a block list that a mask narrows, causal",
      {.heads_q = 2,
       .heads_k = 2,
       .seq_q = 400,
       .seq_k = 400,
       .high = 1,
       .list = {.q = 128, .k = 64, .density = 0.7, .full = true},
       .shows = {.density = 0.5, .by_head = true, .square = 128}},
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
