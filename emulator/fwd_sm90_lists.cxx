/// fwd_sm90 with block lists on the emulator, against the formulas in float64: blocks as large as
/// tiles, larger and smaller, under masks and lengths, lists of heads and of batch entries, entries
/// out of order, repeated and of no block.
#include "fwd_sm90_lines.h"

namespace {

constexpr Config kConfigs[] = {
    listed(64, 128, Lists::whole, Mask::none),
    listed(64, 128, Lists::whole, Mask::right),
    listed_alone(64, Mask::none),
    with(listed(64, 64, Lists::parts, Mask::both), Lengths::keys, false, false),
    listed(128, 128, Lists::whole, Mask::right),
    listed(128, 64, Lists::parts, Mask::none),
    modified(listed(128, 64, Lists::parts, Mask::right, false), Modification::alibi),
    with(listed_alone(64, Mask::right), Lengths::packed, false, false),
    with(listed(128, 128, Lists::whole, Mask::none), Lengths::packed, false, false),
    listed(256, 64, Lists::parts, Mask::none),
    modified(listed(64, 128, Lists::whole, Mask::none), Modification::softcap),
    listed(256, 64, Lists::whole, Mask::none),
    with(listed(64, 64, Lists::whole, Mask::right), Lengths::keys, true, false),
    with(listed(128, 64, Lists::whole, Mask::none), Lengths::packed, true, false),
    listed_alone(128, Mask::none),
    listed(64, 64, Lists::parts, Mask::none),
    listed_alone(64, Mask::right),
    with(listed_alone(64, Mask::both), Lengths::keys, false, false),
};

}  // namespace

int main(int, char** argv) {
  check_lines<kConfigs>(argv[1]);
  return failures == 0 ? 0 : 1;
}
