/// Cases of fwd_sm90 that the seed draws: form of the mask, modification of the scores, source of
/// the lengths, packing of the heads, evenly and apart. Those are checked of which a tile's config
/// is compiled.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "fwd_sm90_truth.h"

namespace {

struct DrawnCase {
  std::string name;
  Case c;
};

int between(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

void draw_mask(std::mt19937& random, DrawnCase& drawn) {
  Case& c = drawn.c;
  const int form = between(random, 0, 5), most = *std::max_element(c.keys.begin(), c.keys.end());
  constexpr const char* kNames[] = {"all",    "causal",        "top-left",
                                    "window", "causal window", "top-left window"};
  drawn.name += kNames[form];
  if (form % 3 == 1) c.causal = Causal::bottom_right;
  if (form % 3 == 2) c.causal = Causal::top_left;
  if (form < 3) return;
  c.causal = form == 4 ? Causal::bottom_right : form == 5 ? Causal::top_left : Causal::none;
  c.left = between(random, -5, most);
  c.right = between(random, -5, most / 2);
}

void draw_modification(std::mt19937& random, DrawnCase& drawn) {
  const int form = between(random, 0, 3);
  constexpr const char* kNames[] = {"", ", softcap", ", alibi", ", softcap, alibi"};
  drawn.name += kNames[form];
  if (form % 2 == 1)
    drawn.c.softcap = std::vector{1e-3, 1.5, 9.0, 30.0, 1e12}[between(random, 0, 4)];
  drawn.c.alibi = form >= 2;
  // One that is not positive, or tiny, makes the modification a general one.
  if (between(random, 0, 2) > 0) return;
  drawn.c.scale = std::vector{-0.2, -1e-20, 1e-31, 1e-20, 0.5}[between(random, 0, 4)];
  drawn.name += ", scale " + std::to_string(drawn.c.scale);
}

void draw_lengths(std::mt19937& random, DrawnCase& drawn) {
  Case& c = drawn.c;
  const int source = between(random, 0, 4);
  constexpr const char* kNames[] = {
      "equal: ", "dense: ", "lengths: ", "few, lengths: ", "packed: "};
  drawn.name += kNames[source];
  c.packed = source == 4;
  c.lengths = source == 2 || source == 3;
  const int count = c.packed ? between(random, 1, 4) : between(random, 1, 2);
  const int q = source == 3 ? between(random, 1, 6) : between(random, 1, 260);
  const int k = source == 0 ? q : between(random, 1, source == 3 ? 900 : 400);
  for (int b = 0; b < count; ++b) {
    c.queries.push_back(c.packed ? between(random, 0, 260) : q);
    c.keys.push_back(c.packed || c.lengths ? between(random, 0, k) : k);
  }
  // A dense problem is as long as its longest entry.
  if (c.lengths) c.keys[0] = k;
  if (c.packed) c.queries[0] = std::max(c.queries[0], 1), c.keys[0] = std::max(c.keys[0], 1);
  if (c.packed) c.tail = between(random, 0, 9);
  if (source == 3 || c.packed) c.splits = std::vector{1, 1, 3}[between(random, 0, 2)];
}

DrawnCase draw_case(std::mt19937& random) {
  DrawnCase drawn;
  Case& c = drawn.c;
  c.dim = c.dim_v = std::vector{64, 64, 64, 40, 128, 256}[between(random, 0, 5)];
  c.heads_k = between(random, 1, 2);
  c.heads_q = c.heads_k * std::vector{1, 1, 2, 4, 5}[between(random, 0, 4)];
  draw_lengths(random, drawn);
  draw_mask(random, drawn);
  draw_modification(random, drawn);
  if (c.splits > 1) drawn.name += ", parts";
  return drawn;
}

/// Checks `wanted` of the cases that the seed draws; a failure where too few have a config.
template <const auto& kConfigs>
void check_drawn(int wanted) {
  std::mt19937 random(static_cast<unsigned>(emulator::seed));
  int checked = 0;
  for (int tries = 0; checked < wanted && tries < 60 * wanted; ++tries) {
    DrawnCase drawn = draw_case(random);
    drawn.c.name = drawn.name.c_str();
    checked += check<kConfigs>(drawn.c, true) ? 1 : 0;
  }
  if (checked == wanted) return;
  std::printf("FAILED drawn cases: %d of %d have a config\n", checked, wanted);
  ++failures;
}

}  // namespace
