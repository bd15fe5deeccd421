/// fwd_sm80, bwd_sm80 and bwd_dq_sm80 on the emulator, against the formulas in float64: odd
/// lengths, GQA, masks, operands of different widths, poisoned shared memory and outputs.
#include "flash_sm80_checks.h"

namespace {

/// Bias and mask of one kind, in the kernels of both directions.
template <tile::PairKind kKind>
void check_pairs(const char* name, const Shape& s) {
  check_forward<fwd_sm80::Config{.positional = true, .pairs = kKind}>(name, s);
  check_backward<with_pairs(kSmall, kKind), with_pairs(kSecondPass, kKind), Delta::p>(
      name, s, kBf16, kExact);
}
void check_kinds_of_pairs() {
  using tile::BiasType;
  const Shape odd = {.seq_q = 100, .seq_k = 71, .causal = true, .pairs = true, .first = 1};
  const Shape even = {.seq_q = 70, .seq_k = 150, .causal = true, .pairs = true, .first = 2};
  const Shape alike = {
      .seq_q = 100, .seq_k = 150, .causal = true, .pairs = true, .alike = true, .first = 3};
  const Shape masked = {
      .seq_q = 100, .seq_k = 71, .causal = true, .pairs = true, .biased = false, .first = 5};
  check_pairs<tile::PairKind{BiasType::bf16, true, true}>("bf16 bias, mask, odd", odd);
  check_pairs<tile::PairKind{BiasType::bf16, false, true}>("bf16 bias of -inf, even", even);
  check_pairs<tile::PairKind{BiasType::fp16, true, true}>("fp16 bias, mask, alike", alike);
  check_pairs<tile::PairKind{BiasType::float32, true, true}>("bias, mask, alike", alike);
  check_pairs<tile::PairKind{BiasType::float32, false, true}>("bias of -inf, odd", odd);
  check_pairs<tile::PairKind{BiasType::none, true, true}>("mask", masked);
  check_pairs<tile::PairKind{BiasType::float32, true, false}>("bias, mask, any strides", odd);
  check_pairs<tile::PairKind{BiasType::fp16, false, false}>("fp16 bias, any strides", even);
  check_pairs<tile::PairKind{BiasType::none, true, false}>("mask, any strides", masked);
  check_forward<fwd_sm80::Config{
      .shape = {.block_m = 16, .block_n = 128, .key_warps = 4, .stages = 1, .q_in_registers = true},
      .pairs = {BiasType::bf16, true, true}}>("key warps, pairs", even);
  // The smallest fragments: 16 keys.
  constexpr tile::PairKind kAny = {BiasType::float32, true, false};
  check_float<with_pairs(kFloatWideKeys, kAny), with_pairs(kFloatWideQueries, kAny)>(
      "float32, dim 136, any strides", {.seq_q = 40, .seq_k = 70, .dim = 136, .pairs = true}, true,
      2e-6);
  check_backward<with_pairs(kWide), with_pairs(kSecondPass), Delta::p>("crossed, pairs", even,
                                                                       kBf16, kExact);
}

/// Every way in which rows and keys lie in fragments.
void check_dropout() {
  const Shape some = {.seq_q = 100, .seq_k = 150, .causal = true, .dropout = 0.3};
  const Shape wide = {.seq_q = 70, .seq_k = 140, .dim = 104, .causal = true, .dropout = 0.3};
  const Shape hidden = {.seq_q = 100, .seq_k = 70, .causal = true, .pairs = true, .dropout = 0.5};
  check_forward<fwd_sm80::Config{
      .shape = {.q_in_registers = true}, .positional = true, .dropout = true}>("forward, dropout",
                                                                               some);
  check_forward<fwd_sm80::Config{.positional = true, .split = true, .dropout = true}>(
      "forward, dropout, three parts", some);
  constexpr fwd_sm80::Config kSharedRows = {
      .shape = {.block_m = 32, .block_n = 128, .key_warps = 2, .q_in_registers = true},
      .positional = true,
      .dropout = true};
  check_forward<kSharedRows>("forward, dropout, two warps a row", some);
  constexpr fwd_sm80::Config kFloat = {
      .form = {.element = Element::fp16, .planes = 2, .scaled = true},
      .shape = {.block_m = 64, .block_n = 16, .stages = 1},
      .positional = true,
      .dropout = true};
  check_forward<kFloat>("forward, dropout, float32", some, kExact);
  check_forward<fwd_sm80::Config{.positional = true, .pairs = kPairs, .dropout = true}>(
      "forward, dropout, bias, mask", hidden);
  check_forward<fwd_sm80::Config{.dropout = true}>("forward, all dropped", {.dropout = 1.0});
  constexpr Gradient kOnePass = with_dropout(kSmall), kFirst = with_dropout(kFirstPass);
  constexpr Gradient kSecond = with_dropout(kSecondPass), kCrossed = with_dropout(kWide);
  check_backward<kOnePass, kOnePass>("one pass, dropout", some, kBf16, kExact);
  check_backward<kFirst, kSecond, Delta::p>("two passes, dropout", some, kBf16, kBf16);
  check_backward<kCrossed, kCrossed>("one pass, dim 104, dropout", wide, kBf16, kExact);
  check_backward<with_pairs(kOnePass), with_pairs(kSecond), Delta::p>(
      "one pass, dropout, bias, mask", hidden, kBf16, kExact);
  check_backward<kOnePass, kOnePass>("one pass, all dropped", {.dropout = 1.0}, 0.0, 0.0);
  constexpr Gradient kKeys = with_dropout(kFloatKeys), kQueries = with_dropout(kFloatQueries);
  check_float<kKeys, kQueries>("float32, dropout", some, true, 2e-6);
  check_float<with_pairs(kKeys), with_pairs(kQueries)>("float32, dropout, bias, mask", hidden, true,
                                                       2e-6);
  check_float<with_parts(kKeys), with_parts(kQueries)>("float32, dropout, three parts", some, false,
                                                       2e-6);
}

}  // namespace

#include "flash_sm80_shifted.h"

namespace {

void check_forwards() {
  check_forward<fwd_sm80::Config{.shape = {.q_in_registers = true}, .positional = true}>(
      "forward, fully masked rows", {.seq_q = 150, .seq_k = 129, .causal = true});
  check_forward<fwd_sm80::Config{.head_dim = 128, .head_dim_v = 128}>(
      "forward, dim 104", {.seq_q = 33, .seq_k = 200, .dim = 104});
  constexpr fwd_sm80::Config kNarrow = {
      .shape = {.block_m = 32, .block_n = 128, .key_warps = 2, .q_in_registers = true},
      .positional = true};
  check_forward<kNarrow>("forward, keys of two warps",
                         {.seq_q = 150, .seq_k = 129, .causal = true});
  constexpr fwd_sm80::Config kNarrowest = {
      .head_dim = 128,
      .head_dim_v = 128,
      .shape = {.block_m = 16, .block_n = 128, .key_warps = 4, .stages = 1}};
  check_forward<kNarrowest>("forward, keys of four warps", {.seq_q = 33, .seq_k = 200, .dim = 104});
  constexpr fwd_sm80::Config kTf32 = {.form = {.element = Element::fp16, .scaled = true},
                                      .shape = {.block_n = 64, .q_in_registers = true}};
  check_forward<kTf32>("forward, tf32", {.seq_q = 100, .seq_k = 150}, kFp16);
  constexpr fwd_sm80::Config kFloat = {
      .form = {.element = Element::fp16, .planes = 2, .scaled = true},
      .shape = {.stages = 1},
      .positional = true};
  check_forward<kFloat>("forward, float32", {.seq_q = 100, .seq_k = 150, .causal = true}, kExact);
  check_forward<fwd_sm80::Config{.positional = true, .split = true}>(
      "forward, three parts", {.seq_q = 70, .seq_k = 150, .causal = true});
}

void check_backwards() {
  check_backward<kPlain, kPlain>("one pass", {}, kBf16, kBf16);
  check_backward<kSmall, kSmall>("one pass, exact dS", {.causal = true}, kBf16, kExact);
  check_backward<kFirstPass, kSecondPass>("two passes, exact dS", {.causal = true}, kBf16, kBf16);
  check_backward<kWide, kWide>("one pass, dim 104, exact dS",
                               {.seq_q = 70, .seq_k = 140, .dim = 104, .causal = true}, kBf16,
                               kExact);
  check_backward<kWideHalf, kWideHalf>("one pass, dim 104, fp16",
                                       {.seq_q = 70, .seq_k = 140, .dim = 104}, kFp16, kFp16);
  check_backward<kSmallWide, kSmallWide>("one pass, dim 192, 99 KiB", {.dim = 152}, kBf16, kExact);
  const Shape few = {.seq_q = 20, .seq_k = 3};
  const double of_o = check_backward<kSmall, kSecondPass, Delta::rounded_o>(
      "three keys, delta of rounded O", few, kBf16, kBf16);
  const double of_p =
      check_backward<kSmall, kSecondPass, Delta::p>("three keys, delta of P", few, kBf16, kExact);
  expect("delta of P over of O", "dQ", of_p / of_o, 0.02);
  check_float<kFloatKeys, kFloatQueries>("float32", {.seq_q = 100, .seq_k = 70, .causal = true},
                                         true, 2e-6);
  check_float<with_parts(kFloatKeys), with_parts(kFloatQueries)>(
      "float32, three parts", {.seq_q = 100, .seq_k = 150, .dim = 38, .causal = true}, false, 2e-6);
  check_float<kFloatKeys, kFloatQueries>("float32, one key",
                                         {.seq_q = 63, .seq_k = 1, .scale = 1.0F}, true, 1e-7);
}

void check_options() {
  check_dropout();
  check_kinds_of_pairs();
  check_shifted_rows();
  check_faint_keys();
  const Shape hidden = {.seq_q = 100, .seq_k = 70, .causal = true, .pairs = true};
  check_forward<fwd_sm80::Config{.positional = true, .pairs = kPairs}>("forward, bias and mask",
                                                                       hidden);
  constexpr Gradient kPaired = with_pairs(kSmall);
  check_backward<kPaired, with_pairs(kSecondPass), Delta::p>("one pass, bias and mask", hidden,
                                                             kBf16, kExact);
  check_float<with_pairs(kFloatKeys), with_pairs(kFloatQueries)>("float32, bias and mask", hidden,
                                                                 true, 2e-6);
  check_float<with_pairs(kFloatWideKeys), with_pairs(kFloatWideQueries)>(
      "float32, dim 136, bias",
      {.seq_q = 100, .seq_k = 70, .dim = 136, .causal = true, .pairs = true}, true, 2e-6);
  constexpr Gradient kTf32Keys = with_pairs(with_one_plane(kFloatKeys));
  constexpr Gradient kTf32Queries = with_pairs(with_one_plane(kFloatQueries));
  check_float<kTf32Keys, kTf32Queries>("tf32, bias and mask", hidden, true, kFp16);
}

void check_exactness() {
  check_float<with_modification(kFloatKeys), with_modification(kFloatQueries)>(
      "float32, scale -3", {.heads_q = 1, .seq_q = 64, .seq_k = 64, .dim = 32, .scale = -3.0F},
      true, 2e-6);
  const Shape huge = {
      .heads_q = 1, .seq_q = 64, .seq_k = 64, .dim = 64, .scale = 0.125F, .amplitude = 10.0F};
  const FloatErrors coarse =
      check_float<kFloatKeys, kFloatQueries>("float32, |LSE| 350", huge, false, 1e-4);
  const FloatErrors refined =
      check_float<kFloatKeys, kFloatQueries>("float32, |LSE| 350, refined", huge, true, 2e-5);
  expect("refine over coarse", "dV", refined.dv / coarse.dv, 0.35);
  const Shape rising = {
      .heads_q = 1, .seq_q = 64, .seq_k = 64, .dim = 32, .scale = 0.177F, .rising = true};
  const FloatErrors apart =
      check_float<kFloatKeys, kFloatQueries>("float32, rising keys", rising, false, 1e-4);
  const FloatErrors together =
      check_float<kFloatKeys, kFloatQueries>("float32, rising keys, refined", rising, true, 2e-5);
  expect("delta of the same P", "dQ", together.dq / apart.dq, 0.2);
}

}  // namespace

int main() {
  emulator::checks_races = true;
  check_forwards();
  check_backwards();
  check_options();
  check_exactness();
  return failures == 0 ? 0 : 1;
}
