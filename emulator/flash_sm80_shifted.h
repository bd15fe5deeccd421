/// Rows that a huge bias shifts, on the emulator. The checks are included before.
#pragma once

namespace {

/// Sums that begin with faint keys. They move neither lse2 nor P.
void check_faint_keys() {
  constexpr tile::PairKind kBias = {tile::BiasType::float32, false, true};
  const Shape s = {.seq_q = 70, .seq_k = 139, .amplitude = 0.1F, .pairs = true, .faint = 64};
  check_backward<with_pairs(kSmall, kBias), with_pairs(kSecondPass, kBias), Delta::p>(
      "faint keys first", s, kBf16, kExact);
}

/// A bias so large that a float32 LSE keeps nothing of the sum over the keys. CONTRACT 3
void check_shifted_rows() {
  constexpr tile::PairKind kBias = {tile::BiasType::float32, false, true};
  constexpr tile::PairKind kBf16Bias = {tile::BiasType::bf16, true, true};
  constexpr fwd_sm80::Config kParts = {.positional = true, .pairs = kBias, .split = true};
  constexpr fwd_sm80::Config kFloat = {
      .form = {.element = Element::fp16, .planes = 2, .scaled = true},
      .shape = {.stages = 1},
      .positional = true,
      .pairs = kBias,
      .split = true};
  for (const float shift : {-1e30F, -1.2345e9F * 0x1p50F, tile::kLowest, 1e30F}) {
    const Shape s = {
        .seq_q = 70, .seq_k = 139, .causal = true, .pairs = true, .alike = true, .shift = shift};
    check_forward<kParts>("shifted rows, three parts", s);
    check_forward<kFloat>("shifted rows, three parts, float32", s, kExact);
    check_backward<with_pairs(kSmall, kBias), with_pairs(kSecondPass, kBias), Delta::p>(
        "shifted rows", s, kBf16, kExact);
    check_float<with_pairs(kFloatKeys, kBias), with_pairs(kFloatQueries, kBias)>(
        "shifted rows, float32", s, true, 2e-6);
  }
  // LSE in float32 keeps some digits of the sum, too few for a sum over rows.
  const Shape sinks = {
      .seq_q = 70, .seq_k = 139, .causal = true, .pairs = true, .alike = true, .shift = 350.0F};
  check_backward<with_pairs(kSmall, kBias), with_pairs(kSecondPass, kBias), Delta::p>(
      "sinks beside logits of 350", sinks, kBf16, 2e-4);
  const Shape half = {.seq_q = 70, .seq_k = 139, .pairs = true, .shift = -0x1p100F};
  check_pairs<kBf16Bias>("shifted rows, bf16 bias, mask", half);
}

}  // namespace
