/// The cases of decode_sm90 that the seed draws, and the configs of these and of the written ones.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "decode_sm90_truth.h"

namespace {

constexpr Config config(int dim, int row_warps, int box_rows, bool paged, bool modified) {
  Config c;
  c.head_dim = c.head_dim_v = dim;
  c.row_warps = row_warps;
  c.stages = dim == 128 ? 3 : row_warps == 4 ? 7 : 6;
  c.box_rows = box_rows;
  c.whole_rows = box_rows > 0;
  c.paged = paged;
  c.modified = modified;
  return c;
}
constexpr Config by_panels(Config c) {
  c.whole_rows = false;
  return c;
}
constexpr Config with_tree(Config c) {
  c.tree = true;
  return c;
}
constexpr Config kConfigs[] = {
    with_tree(config(64, 4, 16, true, false)),
    config(128, 1, 64, false, false),
    config(128, 1, 16, true, false),
    config(128, 1, 0, true, false),
    by_panels(config(128, 1, 32, true, false)),
    config(64, 1, 0, true, false),
    config(64, 1, 16, true, false),
    config(64, 1, 64, true, false),
    config(64, 1, 64, false, false),
    config(64, 2, 0, true, false),
    config(64, 2, 16, true, false),
    config(64, 2, 64, false, false),
    config(64, 4, 0, true, false),
    config(64, 4, 32, true, false),
    config(64, 4, 64, false, false),
    config(64, 1, 0, false, true),
    config(64, 1, 64, false, true),
    config(64, 1, 16, true, true),
    config(64, 2, 32, true, true),
    config(64, 4, 16, true, true),
};

/// Lengths, pages, windows and parts that nobody thought of.
Case drawn_case(std::mt19937& random) {
  const auto any = [&](std::initializer_list<int> of) { return of.begin()[random() % of.size()]; };
  Case c{.name = "drawn",
         .dim = 64,
         .dim_v = 64,
         .heads_q = any({1, 4, 8, 12}),
         .heads_k = 1,
         .queries = any({1, 1, 2, 5, 9, 20})};
  c.heads_k = c.heads_q % 4 == 0 ? any({1, 2}) : 1;
  for (int b = any({1, 2, 5}); b > 0; --b)
    c.keys.push_back(any({0, 1, 3, 63, 64, 65, 127, static_cast<int>(random() % 420)}));
  c.page = any({0, 0, 1, 5, 16, 32, 48, 64, 256});
  c.lengths = c.page > 0 || c.keys.size() > 1 || c.keys[0] == 0;
  c.part = any({64, 64, 128, 192, 1 << 20});
  c.causal = any({0, 1}) == 0   ? Causal::none
             : any({0, 3}) == 0 ? Causal::top_left
                                : Causal::bottom_right;
  if (any({0, 1}) == 0) c.left = any({0, 5, 64, 150, -4});
  if (any({0, 1, 2}) == 0) c.right = any({0, 7, 80, -9});
  c.softcap = any({0, 0, 0, 3});
  c.alibi = any({0, 0, 0, 1}) == 1;
  c.sinks = any({0, 0, 1}) == 1;
  c.shares = any({0, 1}) == 1;
  return c;
}
std::string text_of(const Case& c) {
  std::string text = "drawn h" + std::to_string(c.heads_q) + "/" + std::to_string(c.heads_k) +
                     " q" + std::to_string(c.queries) + " page " + std::to_string(c.page) +
                     " part " + std::to_string(c.part) + " causal " +
                     std::to_string(static_cast<int>(c.causal)) + " left " +
                     std::to_string(c.left) + " right " + std::to_string(c.right) + " keys";
  for (const int n : c.keys) text += " " + std::to_string(n);
  return text;
}

}  // namespace
