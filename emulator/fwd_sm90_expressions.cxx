/// fwd_sm90 with score functions and masks of the caller's own on the emulator, against the
/// interpreter of their programs.
#include "fwd_sm90_lines.h"
#include "mask_maps.h"

namespace {

constexpr Config slanted(Config c, int sample) {
  if (!c.leans()) c = modified(c, Modification::alibi);
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
    with_sample(listed(64, 128, Lists::whole, Mask::right), samples::kPlaced),
    with_sample(listed(64, 128, Lists::whole, Mask::both), samples::kPlaced),
    with_sample(with(listed(64, 128, Lists::whole, Mask::right), Lengths::keys, false, false),
                samples::kPlaced),
    slanted(tile64(3, Mask::none), 4),
    slanted(tile64(3, Mask::right), 4),
    slanted(leaning(tile128(Mask::right, 128)), 4),
};

}  // namespace

int main(int, char** argv) {
  const auto maps = [](int sample, const tile::Captures& captures) {
    if (sample == samples::kPlaced) return map_of<samples::kPlaced + 1>(captures);
    return sample == 1 ? map_of<2>(captures) : map_of<4>(captures);
  };
  check_lines<kConfigs>(argv[1], maps);
  return failures == 0 ? 0 : 1;
}
