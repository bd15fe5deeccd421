/// Random small problems: sizes, masks, strides and types that no list of cases names together.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "harness/case.h"
#include "harness/case_draws.h"
#include "harness/draw.h"

namespace tilewise {
namespace {

/// Few rows, any number, and what lies around the edges of tiles.
std::int64_t length(Draw& draw) {
  switch (draw.between(0, 3)) {
    case 0:
      return draw.percent(30) ? 1 : draw.between(1, 8);
    case 1:
      return draw.one_of<std::int64_t>({16, 32, 64, 80, 112, 128, 192, 256}) + draw.between(-1, 1);
    default:
      return draw.between(1, 300);
  }
}

/// Any head dim in [begin, end], most of them multiples of 8, which the copy engine needs.
std::int64_t head_dim(Draw& draw, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = draw.between(begin, end);
  return draw.percent(50) ? dim : (dim + 7) / 8 * 8;
}

}  // namespace

void draw_type(std::uint64_t seed, std::int64_t index, Draw& draw, Case& c) {
  constexpr std::int64_t kTogether = 512, kTypes = 3, kWide = 128, kMostDim = 256;
  const std::int64_t type = draw.between(0, kTypes - 1);
  Draw of_type(seed, -1 - (index / kTogether * kTypes + type));  // draws that no problem has
  c.dtype = of_type.one_of({DType::bfloat16, DType::bfloat16, DType::float16, DType::float32});
  if (type == 0) {
    c.head_dim = of_type.percent(60) ? of_type.one_of<std::int64_t>({192, 256, 256})
                                     : head_dim(of_type, kWide + 1, kMostDim);
  } else {
    c.head_dim = of_type.percent(60)
                     ? of_type.one_of<std::int64_t>({8, 16, 32, 40, 64, 64, 96, 104, 128, 128})
                     : head_dim(of_type, 1, kWide);
  }
  c.head_dim_v = of_type.percent(75) ? c.head_dim : head_dim(of_type, 1, kMostDim);
}

namespace {

enum class MaskForm : std::uint8_t {
  none,
  causal,
  top_left,
  window,
  causal_window,
  top_left_window,
  hidden,
  causal_hidden,
  blocks,
};
constexpr std::int64_t kMaskForms = 9;

enum class Source : std::uint8_t { equal, own, lengths, few_queries, packed, packed_own, paged };
constexpr std::int64_t kSources = 7;

bool is_packed(Source source) { return source == Source::packed || source == Source::packed_own; }

void draw_heads(Draw& draw, Case& c) {
  c.heads_k = draw.between(1, 3);
  c.heads_q = c.heads_k * draw.one_of<std::int64_t>({1, 1, 1, 1, 2, 3, 4, 4, 5, 7, 8, 16});
  if (draw.percent(1)) {
    c.heads_q = 0;
    c.heads_k = draw.between(0, 2);
  }
}

/// Fewer heads until there are at most `most` pairs.
void bound_pairs(Case& c, std::int64_t pairs_of_head, std::int64_t most) {
  while (c.heads_q * pairs_of_head > most && c.heads_q > 1) {
    if (c.heads_q > c.heads_k) {
      c.heads_q = c.heads_q / c.heads_k / 2 * c.heads_k;
      c.heads_q = std::max(c.heads_q, c.heads_k);
    } else {
      c.heads_q = c.heads_k = 1;
    }
  }
}

void draw_packed(Draw& draw, Source source, std::int64_t most, Case& c) {
  PackedCase packed;
  const std::int64_t count = draw.between(1, 4);
  std::int64_t pairs = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t q = draw.percent(15) ? 0 : length(draw);
    const std::int64_t k = source == Source::packed ? q : draw.percent(15) ? 0 : length(draw);
    if (n > 0 && pairs + q * k > most) break;
    pairs += q * k;
    packed.q_lengths.push_back(q);
    packed.k_lengths.push_back(k);
  }
  if (draw.percent(25)) {
    packed.tail_q = draw.between(0, 5);
    packed.tail_k = draw.between(0, 5);
  }
  packed.wide_offsets = draw.percent(25);
  packed.give_max = draw.percent(25);
  c.batch = static_cast<std::int64_t>(packed.q_lengths.size());
  c.seq_q = packed.tail_q;
  c.seq_k = packed.tail_k;
  for (const std::int64_t n : packed.q_lengths) c.seq_q += n;
  for (const std::int64_t n : packed.k_lengths) c.seq_k += n;
  c.packed = std::move(packed);
  bound_pairs(c, pairs, most);
}

/// Heads and lengths, from the source given.
void draw_sizes(Draw& draw, Source source, Case& c) {
  const std::int64_t most = c.head_dim + c.head_dim_v > 256 ? kMostPairs / 2 : kMostPairs;
  draw_heads(draw, c);
  if (is_packed(source)) return draw_packed(draw, source, most, c);
  c.batch = draw.between(1, 3);
  const bool few = source == Source::few_queries || source == Source::paged;
  c.seq_q = few ? draw.between(1, 8) : length(draw);
  c.seq_k = source == Source::equal ? c.seq_q : few ? draw.between(1, 1000) : length(draw);
  if (source == Source::paged) {
    c.page_size = draw.one_of<std::int64_t>({1, 7, 16, 64});
    c.seq_k = (c.seq_k + c.page_size - 1) / c.page_size * c.page_size;
    c.backward = false;
  }
  if (c.batch * c.heads_q * c.seq_q * c.seq_k > most) c.batch = 1;
  bound_pairs(c, c.seq_q * c.seq_k, most);
  if (source == Source::equal || source == Source::own) return;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    c.key_lengths.push_back(draw.percent(25)   ? c.seq_k
                            : draw.percent(20) ? draw.between(0, std::min<std::int64_t>(c.seq_k, 1))
                                               : draw.between(0, c.seq_k));
  }
}

/// Queries and keys of the longest entry.
std::array<std::int64_t, 2> longest(const Case& c) {
  if (!c.packed) return {c.seq_q, c.seq_k};
  return {std::ranges::max(c.packed->q_lengths), std::ranges::max(c.packed->k_lengths)};
}

/// One edge in eight lies beyond an end, by a little or by more than 32 bits hold.
std::int64_t window_edge(Draw& draw, std::int64_t most) {
  if (!draw.percent(12)) return draw.between(-5, most);
  return draw.one_of<std::int64_t>({most + 1, 2 * most, -most - 1, std::int64_t{1} << 31,
                                    std::int64_t{1} << 40, -(std::int64_t{1} << 40)});
}

void draw_window(Draw& draw, Case& c) {
  const std::int64_t most = std::max<std::int64_t>(longest(c)[1], 1);
  if (draw.percent(80)) c.window.left = window_edge(draw, most);
  if (draw.percent(60) || !c.window.left) c.window.right = window_edge(draw, most);
}

/// A mask with whole rows hidden has a dO there that is not finite: CONTRACT 3.
void draw_hidden(Draw& draw, Case& c) {
  MaskCase mask{.axes = {!c.packed && draw.percent(50), draw.percent(50), true, true}};
  const std::int64_t rows = longest(c)[0],
                     row = draw.between(0, std::max<std::int64_t>(rows, 1) - 1);
  if (draw.percent(30) && !c.packed) {
    mask.hide.push_back({.kind = Region::Kind::rows, .begin = row, .end = row});
    c.pokes.push_back({.tensor = 'o',
                       .begin = {0, 0, row, 0},
                       .end = {-1, -1, row, -1},
                       .value = draw.one_of({HUGE_VAL, -HUGE_VAL, std::nan("")})});
  }
  if (mask.hide.empty() || draw.percent(50)) {
    mask.hide.push_back(
        {.kind = Region::Kind::some, .fraction = draw.one_of({0.1, 0.3, 0.9, 1.0})});
  }
  c.mask = std::move(mask);
}

void draw_mask(Draw& draw, MaskForm form, Case& c) {
  switch (form) {
    case MaskForm::none:
      return;
    case MaskForm::causal:
    case MaskForm::causal_window:
    case MaskForm::causal_hidden:
      c.causal = Causal::bottom_right;
      break;
    case MaskForm::top_left:
    case MaskForm::top_left_window:
      c.causal = Causal::top_left;
      break;
    case MaskForm::blocks:
      if (draw.percent(50)) c.causal = Causal::bottom_right;
      c.blocks = BlocksCase{.block_q = draw.one_of<std::int64_t>({16, 64, 128}),
                            .block_k = draw.one_of<std::int64_t>({16, 32, 64, 128}),
                            .per_batch = draw.percent(50),
                            .per_head = draw.percent(50),
                            .density = draw.one_of({0.2, 0.6, 1.0}),
                            .full_flags = draw.percent(50)};
      return;
    default:
      break;
  }
  if (form == MaskForm::window || form == MaskForm::causal_window ||
      form == MaskForm::top_left_window) {
    draw_window(draw, c);
  }
  if (form == MaskForm::hidden || form == MaskForm::causal_hidden) draw_hidden(draw, c);
}

/// One in four hides elements or rows, or is so negative somewhere that float32 keeps nothing of a
/// score beside it.
void draw_bias(Draw& draw, Case& c) {
  BiasCase bias{
      .axes = {!c.packed && draw.percent(50), draw.percent(50), draw.percent(50), true},
      .dtype = draw.one_of({DType::float32, DType::float32, DType::bfloat16, DType::float16})};
  if (draw.percent(25)) {
    BiasCase::Override huge{.value = draw.one_of({-1e9, -1e30, -HUGE_VAL}),
                            .lowest = draw.percent(30)};
    if (huge.lowest) huge.value = 0.0;
    if (draw.percent(50)) huge.region = {.kind = Region::Kind::some, .fraction = 0.5};
    bias.overrides.push_back(huge);
  }
  c.bias = std::move(bias);
}

/// A bias that spreads the scores of a row: by its fill, or by faint first keys, of which a row's
/// sum begins with almost nothing.
void spread_bias(Draw& draw, std::int64_t keys, BiasCase& bias) {
  bias.fill.scale = draw.one_of({1.0, 1.0, 4.0, 20.0});
  const std::int64_t faint = std::min<std::int64_t>(64, keys / 2);
  if (!draw.percent(30) || faint == 0) return;
  bias.fill = {Fill::Kind::zeros, 0.0, 0.0};
  bias.overrides.insert(bias.overrides.begin(),
                        {.value = draw.one_of({-8.3, -11.5, 12.0}),
                         .region = {.kind = Region::Kind::keys, .end = faint - 1}});
}

/// Values that only the kernels' arguments follow: any value, most of them odd. Each variant has
/// its own.
void draw_values(Draw& draw, bool general, Case& c) {
  if (c.softcap > 0.0) c.softcap = draw.one_of({2.0, 15.0, 50.0, 1e-30, 1e-3, 1e6, 1e12, 1e37});
  if (c.sinks) {
    c.sinks = draw.one_of<Fill>({{},
                                 {.scale = 20.0},
                                 {Fill::Kind::zeros, 0.0, -HUGE_VAL},
                                 {Fill::Kind::zeros, 0.0, 300.0},
                                 {Fill::Kind::zeros, 0.0, -1e30}});
  }
  if (c.bias) spread_bias(draw, c.seq_k, *c.bias);
  // A scale that is not positive, or tiny, has kernels of its own.
  if (general) {
    c.scale = draw.one_of({0.0, -0.3, -1.0, -1e-20, 1e-31, -1e-31, 1e-38});
  } else if (draw.percent(20)) {
    c.scale = draw.one_of({1.0, 0.05, 1e-20, 2e-30});
  }
}

}  // namespace

void draw_scores(Draw& draw, Draw& of_values, Case& c) {
  const std::int64_t form = draw.between(0, 8);
  const bool has_bias = form == 3 || form == 7;
  if (form == 1 || form == 6) c.softcap = 15.0;
  if (form == 2 || form == 6)
    c.alibi = draw.one_of({Case::Alibi::per_head, Case::Alibi::per_batch, Case::Alibi::negative});
  if (has_bias) draw_bias(draw, c);
  if (form == 4 || form == 7) c.sinks = Fill{};
  if (form == 5) {
    c.dropout = {.p = draw.one_of({0.3, 0.3, 0.999, 1.0}),
                 .seed = static_cast<std::uint64_t>(draw.between(0, 1000000))};
  }
  if (form == 8) {
    c.score_mod = draw.one_of({Case::ScoreModKind::distance, Case::ScoreModKind::wave});
  }
  draw_values(of_values, draw.percent(20), c);
  // A sink's gradient reads delta of hidden rows too.
  if (c.sinks) c.pokes.clear();
  c.deterministic = draw.percent(30);
  if (dtype_bytes(c.dtype) == 2 && draw.percent(10)) c.precision = Precision::refined;
}

void draw_memory(Draw& draw, Case& c) {
  if (draw.percent(60)) {
    c.layout =
        draw.one_of({Layout::bshd, Layout::bshd, Layout::sbhd, Layout::qkv, Layout::transposed,
                     Layout::step2, Layout::padded, Layout::reversed, Layout::expanded});
  }
  const bool can_share = c.seq_q == c.seq_k && c.head_dim == c.head_dim_v && c.page_size == 0;
  if (c.layout == Layout::qkv && !can_share) c.layout = Layout::bshd;
  if (draw.percent(40)) {
    c.d_o_layout =
        draw.one_of({Layout::bshd, Layout::transposed, Layout::padded, Layout::expanded});
  }
  // A row of an expanded dO is every row.
  if (!c.pokes.empty() && c.d_o_layout == Layout::expanded) c.d_o_layout = Layout::bshd;
  c.lse = !draw.percent(10);
  c.d_lse = c.backward && draw.percent(20);
  if (draw.percent(10)) c.q.scale = c.k.scale = draw.one_of({3.0, 0.2});
}

namespace {

/// Some packed cases get pages. Draws of its own keep the other cases what they are.
void draw_pages(std::uint64_t seed, std::int64_t index, Case& c) {
  Draw draw(seed ^ 0x7061676573ULL, index);
  if (!c.packed || c.blocks || c.layout == Layout::expanded || !draw.percent(30)) return;
  c.page_size = draw.one_of<std::int64_t>({1, 7, 16, 64});
  give_pages(c);
  c.backward = c.d_lse = false;
  if (c.layout == Layout::qkv) c.layout = Layout::bshd;
}

}  // namespace

Case random_case(std::uint64_t seed, std::int64_t index, std::int64_t variants) {
  constexpr std::uint64_t kOfSizes = 0x73697A6573ULL;
  const std::int64_t kind = index / variants;
  Draw draw(seed, kind), of_variant(seed ^ kOfSizes, index);
  Case c;
  draw_type(seed, kind, draw, c);
  const auto form = static_cast<MaskForm>(draw.between(0, kMaskForms - 1));
  auto source = static_cast<Source>(draw.between(0, kSources - 1));
  // Block lists of packed sequences: random_list_case().
  if (form == MaskForm::blocks && is_packed(source)) source = Source::lengths;
  Draw& of_sizes = variants > 1 ? of_variant : draw;
  draw_sizes(of_sizes, source, c);
  draw_mask(draw, form, c);
  draw_scores(draw, of_sizes, c);
  draw_memory(draw, c);
  draw_pages(seed, kind, c);
  // Pages that nobody may read would be those that are read.
  if (c.page_size > 0 && c.layout == Layout::expanded) c.layout = Layout::padded;
  return c;
}

Case random_list_case(std::uint64_t seed, std::int64_t index, std::int64_t variants) {
  Case c = random_case(seed, index, variants);
  Draw draw(~seed, index / variants);
  const auto block = [&] {
    return draw.percent(60) ? draw.one_of<std::int64_t>({16, 32, 64, 128, 256})
                            : draw.between(1, draw.percent(50) ? 20 : 320);
  };
  BlocksCase blocks;
  blocks.block_q = block();
  blocks.block_k = draw.percent(50) ? blocks.block_q : block();
  blocks.per_batch = draw.percent(50);
  blocks.per_head = draw.percent(50);
  blocks.density = draw.one_of({1.0, 0.75, 0.5, 0.25, 0.1, 0.03, 0.0});
  blocks.full_flags = draw.percent(50);
  if (draw.percent(15))
    blocks.dense_row = draw.between(0, std::max<std::int64_t>(c.seq_q - 1, 0) / blocks.block_q);
  c.blocks = blocks;
  return c;
}

}  // namespace tilewise
