/// The cases of decode_sm90 on the emulator, those that the seed draws, and the configs of both.
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

const std::vector<int> kKeys = {300, 0, 1, 64, 65, 130};
const Case kCases[] = {
    {.name = "trees of 40 nodes over pages of 16",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 4,
     .heads_k = 2,
     .queries = 40,
     .keys = {300, 40, 75},
     .page = 16,
     .causal = Causal::bottom_right,
     .tree = true},
    {.name = "side by side, no lengths, one part",
     .dim = 128,
     .dim_v = 128,
     .keys = {190, 190},
     .lengths = false,
     .part = 192},
    {.name = "side by side, no lengths, parts",
     .dim = 128,
     .dim_v = 128,
     .heads_k = 1,
     .keys = {300, 300},
     .lengths = false},
    {.name = "pages of 16, parts", .dim = 128, .dim_v = 128, .keys = kKeys, .page = 16},
    {.name = "pages of 1",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 4,
     .heads_k = 1,
     .keys = kKeys,
     .page = 1,
     .part = 128},
    {.name = "pages of 7, dims of 40 and 56, two queries",
     .dim = 40,
     .dim_v = 56,
     .heads_q = 6,
     .queries = 2,
     .keys = kKeys,
     .page = 7,
     .causal = Causal::bottom_right,
     .part = 128},
    {.name = "pages of 256, shared, window, causal queries",
     .queries = 3,
     .keys = {300, 257, 600, 2},
     .page = 256,
     .causal = Causal::bottom_right,
     .left = 70,
     .shared = true},
    {.name = "pages of 8 left of a window are none",
     .heads_q = 4,
     .queries = 2,
     .keys = {301, 1, 90, 640},
     .page = 8,
     .causal = Causal::bottom_right,
     .left = 33,
     .part = 64},
    {.name = "pages of 1 left of a window are none",
     .heads_q = 4,
     .queries = 2,
     .keys = {301, 1, 90, 640},
     .page = 1,
     .causal = Causal::bottom_right,
     .left = 33,
     .part = 64},
    {.name = "softcap, ALiBi, 32 rows",
     .heads_q = 10,
     .queries = 4,
     .keys = {200, 3, 129},
     .page = 32,
     .causal = Causal::bottom_right,
     .softcap = 3.0,
     .alibi = true},
    {.name = "a scale below 0, sinks",
     .heads_q = 3,
     .heads_k = 1,
     .keys = {200, 0, 129},
     .sinks = true,
     .scale = -0.2},
    {.name = "a stride of 0, softcap",
     .heads_q = 3,
     .heads_k = 1,
     .keys = {200, 77},
     .softcap = 2.0,
     .expanded = true},
    {.name = "pages of 32, dims of 80 and 96", .dim = 80, .dim_v = 96, .keys = kKeys, .page = 32},
    {.name = "sinks in parts", .keys = kKeys, .page = 64, .sinks = true},
    {.name = "64 rows and more than a tile of them",
     .heads_q = 6,
     .heads_k = 1,
     .queries = 15,
     .keys = {200, 14, 129},
     .causal = Causal::top_left,
     .part = 128},
    {.name = "many parts, shared by groups",
     .keys = {1300, 0, 70, 641},
     .page = 16,
     .shares = true},
    {.name = "parts of the same number, shared by groups",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 4,
     .heads_k = 1,
     .keys = {700, 700},
     .lengths = false,
     .shares = true},
    {.name = "parts that only some row tiles see",
     .heads_q = 4,
     .heads_k = 1,
     .queries = 40,
     .keys = {300, 100},
     .causal = Causal::bottom_right,
     .left = 10},
    {.name = "more entries than lanes",
     .heads_q = 2,
     .heads_k = 1,
     .keys = std::vector<int>(70, 17),
     .page = 16},
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
