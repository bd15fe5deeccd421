/// fwd_sm80, bwd_sm80 and bwd_dq_sm80 with block lists on the emulator, against the formulas in
/// float64: blocks as large as tiles, larger and smaller, under masks, lists of heads, entries out
/// of order, repeated and of no block, rows that list nothing, keys that nobody lists.
#include "flash_sm80_checks.h"
//
#include <list>

#include "block_lists.h"

namespace {

/// A shape whose scores a list hides, and the list in tiles.
struct Listed {
  Shape shape;
  Formula formula;
  BlockLists blocks;
  std::list<MadeLists> made;

  Listed(const Shape& s, const Blocks& of)
      : shape(s), blocks(of, 1, s.heads_q, s.seq_q, s.seq_k, [s](int, int i, int j) {
          return !s.causal || j <= i + s.seq_k - s.seq_q;
        }) {
    formula.score = [](int, int, int, double x) -> Formula::Score { return {x, 1.0}; };
    formula.visible = [this, of](int h, int i, int j) { return blocks.has(of, 0, h, i, j); };
    formula.lists = [this, of](int rows, int keys, bool of_keys) {
      Problem p;
      p.batch = 1, p.heads_q = shape.heads_q, p.heads_k = shape.heads_k;
      p.seq_q = shape.seq_q, p.seq_k = shape.seq_k;
      if (shape.causal) p.causal = Causal::bottom_right, p.right = 0;
      blocks.give(p, of);
      const MadeLists& lists =
          made.emplace_back(p, wanted_lists(rows, keys, tile::Lists::parts, of_keys));
      return of_keys ? lists.of_keys : lists.of_queries;
    };
    shape.formula = &formula;
  }
};

constexpr fwd_sm80::Config listed(fwd_sm80::Config config) {
  config.lists = tile::Lists::parts;
  return config;
}
constexpr Gradient listed(Gradient config) {
  config.lists = tile::Lists::parts;
  return config;
}

void check_forwards() {
  constexpr fwd_sm80::Config kPlain =
      listed({.shape = {.q_in_registers = true}, .positional = true});
  const Listed causal({.seq_q = 300, .seq_k = 333, .causal = true},
                      {.q = 32, .k = 32, .by_head = true, .full = true});
  check_forward<kPlain>("forward, blocks of 32, causal", causal.shape);
  const Listed large({.seq_q = 400, .seq_k = 300},
                     {.q = 256, .k = 128, .density = 0.6, .by_head = true, .mangled = true});
  check_forward<listed({.shape = {.q_in_registers = true}})>("forward, blocks of 256 x 128",
                                                             large.shape);
  const Listed narrow({.seq_q = 70, .seq_k = 600}, {.q = 16, .k = 16, .by_head = true});
  check_forward<listed(
      {.shape = {.block_m = 32, .block_n = 128, .key_warps = 2, .q_in_registers = true}})>(
      "forward, keys of two warps, blocks of 16", narrow.shape);
  constexpr fwd_sm80::Config kFloat =
      listed({.form = {.element = Element::fp16, .planes = 2, .scaled = true},
              .shape = {.stages = 1},
              .positional = true});
  const Listed wide({.seq_q = 200, .seq_k = 180, .causal = true},
                    {.q = 64, .k = 16, .by_head = true, .full = true});
  check_forward<kFloat>("forward, float32, blocks of 64 x 16", wide.shape, kExact);
  const Listed hidden({.seq_q = 150, .seq_k = 200, .causal = true, .pairs = true, .dropout = 0.3},
                      {.q = 32, .k = 64, .by_head = true});
  check_forward<listed({.positional = true, .pairs = kPairs, .dropout = true})>(
      "forward, bias, mask, sinks, dropout", hidden.shape);
  const Listed nothing({.seq_q = 150, .seq_k = 200}, {.q = 128, .k = 128, .density = 0.0});
  check_forward<listed(fwd_sm80::Config{})>("forward, nothing listed", nothing.shape);
}

void check_backwards() {
  constexpr Gradient kOne = listed(kSmall), kFirst = listed(kFirstPass);
  constexpr Gradient kSecond = listed(kSecondPass), kCrossed = listed(kWide);
  const Listed causal({.heads_q = 4, .heads_k = 2, .seq_q = 300, .seq_k = 333, .causal = true},
                      {.q = 32, .k = 32, .by_head = true, .full = true});
  check_backward<kOne, kOne>("one pass, blocks of 32, causal", causal.shape, kBf16, kExact);
  check_backward<kFirst, kSecond, Delta::p>("two passes, blocks of 32, causal", causal.shape, kBf16,
                                            kBf16);
  const Listed large({.seq_q = 400, .seq_k = 300},
                     {.q = 256, .k = 128, .density = 0.6, .by_head = true, .mangled = true});
  check_backward<kOne, kSecond, Delta::p>("one pass, blocks of 256 x 128", large.shape, kBf16,
                                          kExact);
  const Listed narrow({.seq_q = 200, .seq_k = 180, .dim = 104}, {.q = 64, .k = 16, .full = true});
  check_backward<kCrossed, kCrossed>("one pass, dim 104, blocks of 64 x 16", narrow.shape, kBf16,
                                     kExact);
  const Listed wide({.seq_q = 200, .seq_k = 180, .causal = true},
                    {.q = 16, .k = 64, .by_head = true, .full = true});
  check_float<listed(kFloatKeys), listed(kFloatQueries)>("float32, blocks of 16 x 64", wide.shape,
                                                         true, 2e-6);
  const Listed hidden({.seq_q = 100, .seq_k = 150, .causal = true, .pairs = true},
                      {.q = 32, .k = 32, .density = 0.7, .by_head = true});
  check_backward<with_pairs(kOne), with_pairs(kSecond), Delta::p>("one pass, bias, mask, sinks",
                                                                  hidden.shape, kBf16, kExact);
  const Listed shifted({.heads_q = 1,
                        .seq_q = 60,
                        .seq_k = 90,
                        .causal = true,
                        .pairs = true,
                        .alike = true,
                        .shift = -1e30F},
                       {.q = 32, .k = 32, .density = 0.7, .by_head = true});
  check_backward<with_pairs(kOne), with_pairs(kSecond), Delta::p>("one pass, shifted rows",
                                                                  shifted.shape, kBf16, kExact);
  const Listed dropped({.seq_q = 100, .seq_k = 150, .causal = true, .dropout = 0.3},
                       {.q = 32, .k = 32, .density = 0.7, .by_head = true});
  check_backward<with_dropout(kOne), with_dropout(kSecond), Delta::p>("one pass, dropout",
                                                                      dropped.shape, kBf16, kExact);
  const Listed nothing({.seq_q = 150, .seq_k = 200}, {.q = 128, .k = 128, .density = 0.0});
  check_backward<kFirst, kSecond, Delta::p>("two passes, nothing listed", nothing.shape, 0.0, 0.0);
}

}  // namespace

int main() {
  emulator::checks_races = true;
  check_forwards();
  check_backwards();
  return failures == 0 ? 0 : 1;
}
