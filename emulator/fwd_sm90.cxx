/// fwd_sm90 on the emulator, against the formulas in float64: masks, softcap, ALiBi, packed heads,
/// key lengths, packed sequences, split keys, Dv beside D.
#include "fwd_sm90_drawn.h"
#include "fwd_sm90_lines.h"

namespace {

constexpr Config kConfigs[] = {
    modified(tile64(3, Mask::right), Modification::alibi),
    modified(tile64(3, Mask::none), Modification::alibi),
    modified(tile64(3, Mask::both), Modification::softcap),
    halved(modified(tile64(3, Mask::right), Modification::softcap)),
    modified(tile64(3, Mask::right), Modification::general),
    with(tile64(1, Mask::right), Lengths::packed, true, false),
    with(tile64(1, Mask::both), Lengths::packed, false, false),
    with(tile64(1, Mask::right), Lengths::packed, true, true),
    with(tile64(3, Mask::right), Lengths::packed, false, false),
    with(tile64(3, Mask::none), Lengths::packed, false, false),
    of_documents(with(tile64(3, Mask::right), Lengths::packed, false, false)),
    of_documents(
        with(modified(tile64(3, Mask::both), Modification::alibi), Lengths::packed, false, false)),
    with(tile16x256(), Lengths::packed, false, false),
    with(tile64(3, Mask::both), Lengths::keys, true, false),
    with(tile64(1, Mask::none), Lengths::keys, true, true),
    tile64(3, Mask::none),
    few64(),
    halved(tile64(3, Mask::right)),
    halved(tile64(3, Mask::both)),
    tile128x64(),
    tile128(Mask::both, 128),
    tile192x64(),
    tile128(Mask::right, 128),
    tile128(Mask::right, 64),
    tile128x128(Mask::both),
    modified(tile256(Mask::right), Modification::alibi),
    leaning(tile128(Mask::right, 128)),
    leaning(tile192x64()),
    leaning(with(tile128x128(Mask::right), Lengths::packed, false, false)),
    with(modified(tile64(1, Mask::both), Modification::alibi), Lengths::keys, false, false),
    with(modified(tile64(1, Mask::both), Modification::alibi), Lengths::keys, false, true),
    with(modified(tile64(3, Mask::both), Modification::alibi), Lengths::packed, false, false),
    with(modified(tile64(3, Mask::right), Modification::alibi), Lengths::keys, false, false),
    with(modified(tile128x128(Mask::both), Modification::alibi), Lengths::keys, false, false),
    with(modified(tile128x128(Mask::both), Modification::alibi), Lengths::packed, false, false),
};

}  // namespace

int main(int, char** argv) {
  check_lines<kConfigs>(argv[1]);
  check_drawn<kConfigs>(12);
  return failures == 0 ? 0 : 1;
}
