/// fwd_sm90 with sinks, bool masks, dropout and biases on the emulator, against the formulas in
/// float64.
#include "fwd_sm90_lines.h"

namespace {

constexpr Config fewer_stages(Config c) {
  c.shape.stages = c.shape.value_stages = 2;
  c.schedule.chain_tiles = false;
  c.shape.q_buffers = 1;
  return c;
}
constexpr Config from_diagonal(Config c) {
  c.schedule.from_diagonal = true;
  return c;
}
/// What a mask leaves, in tiles of 192 x 128.
constexpr Config mapped64(Mask mask) {
  Config c = optioned(tile64(3, mask), false, true);
  c.schedule.chain_tiles = c.schedule.skip_blocks = false;
  c.shape.q_buffers = 1;
  c.lists = Lists::whole;
  return c;
}
/// A bias in boxes: O goes in Q's place.
constexpr Config boxed(Config c, tile::BiasType type = tile::BiasType::bf16) {
  c = biased(c, type, true);
  c.shape.bias_stages = 2;
  c.schedule.chain_tiles = false;
  c.shape.q_buffers = 1;
  c.shape.own_o = false;
  return c;
}
/// By a warp of their own.
constexpr Config apart(Config c) {
  c = boxed(c);
  c.schedule.boxes_apart = true;
  return c;
}
constexpr Config tile192x64(Mask mask) {
  Config c = tile64(3, mask);
  c.head_dim = c.head_dim_v = 128;
  c.shape.block_n = 64;
  c.schedule.dynamic = mask != Mask::none;
  return c;
}
constexpr Config kConfigs[] = {
    boxed(tile64(3, Mask::none)),
    boxed(tile64(3, Mask::right)),
    boxed(tile64(3, Mask::both)),
    boxed(optioned(tile64(3, Mask::right), true, true)),
    boxed(from_diagonal(modified(tile64(3, Mask::none), Modification::general)),
          tile::BiasType::fp16),
    apart(tile192x64(Mask::none)),
    apart(tile192x64(Mask::right)),
    apart(tile192x64(Mask::both)),
    apart(tile128x128(Mask::none)),
    apart(tile128x128(Mask::right)),
    mapped64(Mask::none),
    optioned(with(mapped64(Mask::right), Lengths::packed, false, false), true, true),
    optioned(with(listed(128, 128, Lists::whole, Mask::right), Lengths::keys, false, false), false,
             true),
    with_tree(optioned(tile64(3, Mask::right), false, true)),
    optioned(tile64(3, Mask::none), true, false),
    optioned(tile64(3, Mask::none), false, true),
    optioned(tile128x128(Mask::right), true, true),
    optioned(with(tile64(3, Mask::none), Lengths::dense, true, false), true, false),
    optioned(with(tile64(3, Mask::none), Lengths::dense, true, false), false, true),
    optioned(tile64(3, Mask::right), true, true),
    optioned(with(tile64(3, Mask::right), Lengths::packed, false, false), true, true),
    optioned(with(tile64(1, Mask::none), Lengths::keys, true, true), true, true),
    optioned(tile128(Mask::both, 128), false, true),
    optioned(modified(tile64(3, Mask::none), Modification::softcap), false, true),
    optioned(modified(tile64(3, Mask::right), Modification::alibi), false, true),
    optioned(with_sample(tile64(3, Mask::none), 1), false, true),
    optioned(listed(64, 128, Lists::whole, Mask::none), true, true),
    dropping(tile64(2, Mask::none)),
    dropping(tile128(Mask::right, 128)),
    dropping(tile128x128(Mask::none)),
    dropping(optioned(tile128x128(Mask::right), true, true)),
    dropping(optioned(with(tile64(2, Mask::right), Lengths::packed, false, false), true, true)),
    dropping(with(tile64(1, Mask::none), Lengths::keys, false, true)),
    biased(tile64(3, Mask::none), tile::BiasType::bf16, true),
    biased(from_diagonal(fewer_stages(modified(tile64(3, Mask::none), Modification::general))),
           tile::BiasType::float32, true),
    biased(optioned(tile64(3, Mask::right), true, true), tile::BiasType::bf16, true),
    biased(with(tile64(3, Mask::right), Lengths::packed, false, false), tile::BiasType::bf16,
           false),
    biased(with(tile64(3, Mask::right), Lengths::packed, false, false), tile::BiasType::fp16, true),
    biased(with(tile64(1, Mask::none), Lengths::keys, false, true), tile::BiasType::float32, true),
    biased(tile128(Mask::both, 128), tile::BiasType::float32, false),
    biased(tile128x128(Mask::none), tile::BiasType::bf16, true),
    biased(with_sample(tile64(3, Mask::none), 1), tile::BiasType::bf16, true),
};

}  // namespace

int main(int, char** argv) {
  check_lines<kConfigs>(argv[1]);
  return failures == 0 ? 0 : 1;
}
