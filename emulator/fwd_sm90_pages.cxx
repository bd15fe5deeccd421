/// fwd_sm90 with K and V in pages on the emulator, against the formulas in float64: pages larger
/// and smaller than a tile, than a box, than eight rows, of no power of two; masks, lengths, parts
/// of the keys, packed heads, packed queries.
#include "fwd_sm90_lines.h"

namespace {

constexpr auto kRows = fwd_sm90::PageCopies::rows;
constexpr Config kConfigs[] = {
    paged(with(tile64(3, Mask::right), Lengths::keys, false, false)),
    paged(with(tile64(1, Mask::none), Lengths::keys, true, true)),
    paged(with(tile64(1, Mask::none), Lengths::keys, true, false), kRows),
    paged(with(tile64(1, Mask::right), Lengths::keys, true, true), kRows),
    paged(with(tile128x128(Mask::both), Lengths::keys, true, false)),
    paged(with(tile128x128(Mask::both), Lengths::keys, true, false), kRows),
    paged(with(tile128(Mask::right, 128), Lengths::keys, false, false)),
    paged(with(tile256(Mask::right), Lengths::keys, true, false)),
    paged(with(tile64(1, Mask::right), Lengths::packed, true, true), kRows),
    paged(with_tree(with(tile64(1, Mask::right), Lengths::packed, true, true))),
    paged(with(tile64(3, Mask::both), Lengths::packed, false, false)),
    paged(with(modified(tile64(1, Mask::both), Modification::alibi), Lengths::keys, false, true)),
    paged(
        with(modified(tile64(3, Mask::right), Modification::softcap), Lengths::keys, false, false)),
};

}  // namespace

int main(int, char** argv) {
  check_lines<kConfigs>(argv[1]);
  return failures == 0 ? 0 : 1;
}
