#include <algorithm>
#include <cmath>

#include "harness/case_captures.h"
#include "harness/case_text.h"

namespace tilewise {
namespace {

using namespace case_text;

std::string axes_text(const Axes& axes, bool packed) {
  constexpr std::string_view kLetters = "bhqk";
  std::string text;
  for (std::size_t n = packed ? 1 : 0; n < 4; ++n) {
    text += text.empty() ? "" : ",";
    text += axes[n] ? kLetters[n] : '1';
  }
  return text;
}

std::string view_text(View view) {
  return view == Layout::bhsd ? "" : ":" + std::string(name(kLayouts, view));
}

std::string mask_text(const MaskCase& mask, bool packed) {
  std::string text = axes_text(mask.axes, packed);
  for (const Region& hidden : mask.hide) text += ":" + region(hidden);
  return text + view_text(mask.view);
}

std::string bias_text(const BiasCase& bias, bool packed) {
  std::string text = axes_text(bias.axes, packed);
  if (bias.dtype != DType::float32) text += ":" + std::string(name(kDTypes, bias.dtype));
  if (bias.fill != Fill{}) text += ":" + fill(bias.fill);
  for (const BiasCase::Override& over : bias.overrides) {
    text += ":" + (over.lowest ? "min" : number(over.value)) + "@" + region(over.region);
  }
  return text + view_text(bias.view);
}

std::string blocks_text(const BlocksCase& blocks) {
  return std::to_string(blocks.block_q) + "," + std::to_string(blocks.block_k) + ":" +
         (blocks.per_batch ? "b," : "1,") + (blocks.per_head ? "h" : "1") + ":" +
         number(blocks.density) + (blocks.full_flags ? ":full" : "") +
         (blocks.dense_row >= 0 ? ":row=" + std::to_string(blocks.dense_row) : "");
}

std::string packed_text(const PackedCase& packed) {
  std::string text = integers(packed.q_lengths);
  if (packed.k_lengths != packed.q_lengths) text += "/" + integers(packed.k_lengths);
  if (packed.tail_q != 0 || packed.tail_k != 0) {
    text += ":tail=" + integers({packed.tail_q, packed.tail_k});
  }
  return text + (packed.wide_offsets ? ":int64" : "") + (packed.give_max ? ":max" : "");
}

std::string poke_text(const Poke& poke) {
  std::string text(1, poke.tensor);
  for (std::size_t n = 0; n < 4; ++n) {
    text += n == 0 ? ":" : ",";
    if (poke.begin[n] == 0 && poke.end[n] == -1) {
      text += "*";
    } else {
      text += std::to_string(poke.begin[n]);
      if (poke.end[n] != poke.begin[n]) text += "-" + std::to_string(poke.end[n]);
    }
  }
  return text + ":" + number(poke.value);
}

std::string window_text(const Window& window) {
  const auto side = [](const std::optional<std::int64_t>& bound) {
    return bound ? std::to_string(*bound) : std::string("none");
  };
  return side(window.left) + "," + side(window.right);
}

std::string sizes_text(const Case& c) {
  std::string text;
  if (c.packed) {
    text = "packed=" + packed_text(*c.packed);
  } else {
    text = "b" + std::to_string(c.batch);
  }
  text += " h" + std::to_string(c.heads_q);
  if (c.heads_k != c.heads_q) text += "/" + std::to_string(c.heads_k);
  if (!c.packed) {
    if (c.seq_q == c.seq_k) {
      text += " s" + std::to_string(c.seq_q);
    } else {
      text += " q" + std::to_string(c.seq_q) + " k" + std::to_string(c.seq_k);
    }
  }
  text += " d" + std::to_string(c.head_dim);
  if (c.head_dim_v != c.head_dim) text += " dv" + std::to_string(c.head_dim_v);
  return text + " " + std::string(name(kDTypes, c.dtype));
}

std::string fills_text(const Case& c) {
  std::string text;
  if (c.q == c.k && c.q == c.v) {
    if (c.q != Fill{}) text += " fill=" + fill(c.q);
  } else {
    if (c.q != Fill{}) text += " q=" + fill(c.q);
    if (c.k != Fill{}) text += " k=" + fill(c.k);
    if (c.v != Fill{}) text += " v=" + fill(c.v);
  }
  std::string d_o;
  if (c.d_o_layout != Layout::bhsd) d_o = layout_name(c.d_o_layout);
  if (c.d_o != Fill{}) d_o += (d_o.empty() ? "" : ":") + fill(c.d_o);
  if (!d_o.empty()) text += " do=" + d_o;
  if (!c.beyond_nan) text += " beyond=" + fill(c.beyond);
  for (const Poke& poke : c.pokes) text += " poke=" + poke_text(poke);
  return text;
}

/// What may be seen, and the scale.
std::string masks_text(const Case& c) {
  std::string text;
  if (c.causal != Causal::none) {
    text += c.causal == Causal::top_left ? " causal_top_left" : " causal";
  }
  if (c.window.left || c.window.right) text += " window=" + window_text(c.window);
  if (c.mask) text += " mask=" + mask_text(*c.mask, c.packed.has_value());
  if (!c.mask_expression.empty()) text += " mask_expr='" + c.mask_expression + "'";
  if (c.blocks) text += " blocks=" + blocks_text(*c.blocks);
  if (!c.key_lengths.empty() && !c.packed) text += " lengths=" + integers(c.key_lengths);
  if (c.page_size != 0) text += " paged=" + std::to_string(c.page_size);
  if (c.scale) text += " scale=" + number(*c.scale);
  return text;
}

std::string scores_text(const Case& c) {
  std::string text;
  if (c.softcap != 0.0) text += " softcap=" + number(c.softcap);
  if (c.alibi != Case::Alibi::none) {
    text += c.alibi == Case::Alibi::per_head    ? " alibi"
            : c.alibi == Case::Alibi::per_batch ? " alibi=bh"
                                                : " alibi=neg";
  }
  if (c.bias) text += " bias=" + bias_text(*c.bias, c.packed.has_value());
  if (c.sinks) text += *c.sinks == Fill{} ? " sink" : " sink=" + fill(*c.sinks);
  if (c.score_mod != Case::ScoreModKind::none) {
    text += " mod=" + std::string(name(kScoreMods, c.score_mod));
  }
  if (!c.score_expression.empty()) text += " score='" + c.score_expression + "'";
  if (!c.captures.empty()) text += " captures='" + captures_text(c.captures) + "'";
  if (c.dropout.p != 0.0) text += " dropout=" + number(c.dropout.p);
  return text;
}

std::string dropout_bits_text(const Case& c) {
  std::string text;
  if (c.dropout.seed != 0) {
    text += " seed=" + std::to_string(c.dropout.seed);
  }
  if (c.dropout.offset != 0) {
    text += " offset=" + std::to_string(c.dropout.offset);
  }
  return text;
}

}  // namespace

std::string format_case(const Case& c) {
  std::string text = sizes_text(c);
  if (c.rank3) text += " rank3";
  text += masks_text(c) + scores_text(c) + dropout_bits_text(c);
  if (c.deterministic) text += " deterministic";
  if (c.precision == Precision::tf32) text += " tf32";
  if (c.precision == Precision::refined) text += " refined";
  if (c.layout != Layout::bhsd) text += " layout=" + std::string(layout_name(c.layout));
  text += fills_text(c);
  if (!c.lse) text += " nolse";
  if (c.d_lse) text += " dlse";
  if (!c.backward) text += " pass=fwd";
  if (!c.forward) text += " pass=bwd";
  if (c.invalid) text += " expect=invalid";
  if (c.finite_only) text += " expect=finite";
  if (!c.id.empty()) text += " id=" + c.id;
  return text;
}

std::string mask_field(const Case& c) {
  std::string text;
  if (c.packed) text += " packed=" + packed_text(*c.packed);
  text += masks_text(c) + scores_text(c);
  if (c.d_lse) text += " dlse";
  if (text.empty()) return "none";
  bool quoted = false;
  for (char& letter : text) {
    if (letter == '\'') quoted = !quoted;
    if (!quoted && letter == ' ') letter = '+';
  }
  return text.substr(1);
}

std::string words_of_mask_field(std::string_view field) {
  if (field == "none") return "";
  std::string text(field);
  bool quoted = false;
  for (std::size_t n = 1; n < text.size(); ++n) {
    if (text[n - 1] == '\'') quoted = !quoted;
    // Not the sign of an exponent.
    if (!quoted && text[n - 1] == '+' && text[n] >= 'a' && text[n] <= 'z') text[n - 1] = ' ';
  }
  return text;
}

std::string_view layout_name(Layout layout) { return name(kLayouts, layout); }

}  // namespace tilewise
