/// fwd_sm90 with score functions and masks of the caller's own on the emulator, against the
/// interpreter of their programs.
#include "fwd_sm90_check.h"
#include "mask_maps.h"

namespace {

constexpr Config slanted(Config c, int sample) {
  c = modified(c, Modification::alibi);
  c.expressions = samples::expressions_of(sample, false);
  return c;
}
constexpr Config kConfigs[] = {
    with_sample(tile64(3, Mask::right), 0),
    with_sample(tile64(3, Mask::none), 0),
    with_sample(modified(tile64(3, Mask::none), Modification::general), 0),
    with_sample(tile64(3, Mask::none), 1),
    with_sample(with(tile64(3, Mask::both), Lengths::packed, false, false), 2),
    with_sample(tile128(Mask::right, 128), 3),
    with_sample(with(tile64(1, Mask::none), Lengths::keys, false, true), 3),
    with_sample(listed(64, 128, Lists::whole, Mask::none), 1),
    with_sample(with(listed(64, 128, Lists::whole, Mask::none), Lengths::packed, false, false), 1),
    with_sample(listed(64, 64, Lists::parts, Mask::right, false), 0),
    with_sample(listed(128, 128, Lists::whole, Mask::right), 3),
    slanted(tile64(3, Mask::none), 4),
    slanted(tile64(3, Mask::right), 4),
};

const Case kCases[] = {
    {.name = "slopes by head, causal",
     .heads_k = 1,
     .queries = {250, 250},
     .keys = {333, 333},
     .causal = Causal::bottom_right,
     .sample = 0},
    {.name = "slopes by head on both sides, maxima that outgrow every block",
     .queries = {150, 150},
     .keys = {900, 900},
     .sample = 0},
    {.name = "slopes by head, beside a softcap",
     .queries = {150},
     .keys = {333},
     .softcap = 9.0,
     .sample = 0},
    {.name = "softcap, floors, documents", .queries = {200}, .keys = {390}, .sample = 1},
    {.name = "a table, hidden infinities, packed sequences, window",
     .queries = {70, 1, 0, 129, 200},
     .keys = {33, 90, 5, 129, 300},
     .packed = true,
     .left = 60,
     .right = 10,
     .block_m = 192,
     .sample = 2},
    {.name = "what grows evenly with i and j",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 2,
     .heads_k = 2,
     .queries = {200},
     .keys = {580},
     .sample = 4},
    {.name = "the same, causal",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 1,
     .heads_k = 1,
     .queries = {150},
     .keys = {410},
     .causal = Causal::bottom_right,
     .sample = 4},
    {.name = "sums over lanes, 192 x 80, causal",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 1,
     .heads_k = 1,
     .queries = {250},
     .keys = {300},
     .causal = Causal::bottom_right,
     .sample = 3},
    {.name = "sums over lanes, key lengths, split keys",
     .heads_q = 7,
     .heads_k = 1,
     .queries = {1, 1, 1},
     .keys = {390, 17, 200},
     .lengths = true,
     .block_m = 64,
     .splits = 3,
     .sample = 3},
    {.name = "softcap, floors, documents, a block list with full blocks",
     .queries = {390, 390},
     .keys = {390, 390},
     .blocks = {.q = 128, .k = 128, .density = 0.8, .full = true},
     .sample = 1},
    {.name = "slopes by head, causal, a list of blocks of 64",
     .queries = {300, 300},
     .keys = {300, 300},
     .causal = Causal::bottom_right,
     .blocks = {.q = 64, .k = 64, .by_head = true, .full = true},
     .sample = 0},
    {.name = "softcap, floors, a map of documents",
     .heads_k = 1,
     .queries = {530, 530},
     .keys = {601, 601},
     .sample = 1},
    {.name = "softcap, floors, a map of documents in packed sequences",
     .heads_q = 1,
     .heads_k = 1,
     .queries = {0, 33, 513},
     .keys = {5, 40, 601},
     .packed = true,
     .tail = 3,
     .sample = 1},
    {.name = "sums over lanes, a map of chosen blocks, causal",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 1,
     .heads_k = 1,
     .queries = {520},
     .keys = {640},
     .causal = Causal::bottom_right,
     .sample = 3},
};

}  // namespace

int main() {
  const auto maps = [](int sample, const tile::Captures& captures) {
    return sample == 1 ? map_of<2>(captures) : map_of<4>(captures);
  };
  for (const Case& c : kCases) check<kConfigs>(c, false, maps);
  return failures == 0 ? 0 : 1;
}
