/// Random problems of many rows, keys or heads, and few pairs: what small problems never reach.
#include <algorithm>
#include <cmath>
#include <utility>

#include "harness/case.h"
#include "harness/case_draws.h"
#include "harness/draw.h"

namespace tilewise {
namespace {

/// Elements of K and V, and of Q: each is drawn, rounded and compared.
constexpr std::int64_t kMostElements = std::int64_t{1} << 21;

enum class Shape : std::uint8_t {
  window,
  blocks,
  lengths,
  few_queries,
  few_keys,
  short_heads,
  documents
};
constexpr std::int64_t kShapes = 7;

/// About a power of two, as tiles and their edges have it, or any number.
std::int64_t many(Draw& draw, std::int64_t most) {
  const std::int64_t rows = draw.percent(60) ? draw.one_of<std::int64_t>({1024, 2048, 4096, 8192}) +
                                                   (draw.percent(50) ? 0 : draw.between(-70, 70))
                                             : draw.between(1000, 9000);
  return std::clamp<std::int64_t>(rows, 1, most);
}

std::int64_t columns(const Case& c) { return c.head_dim + c.head_dim_v; }

void draw_few_heads(Draw& draw, Case& c) {
  c.heads_k = draw.one_of<std::int64_t>({1, 1, 1, 2});
  c.heads_q = c.heads_k * draw.one_of<std::int64_t>({1, 1, 2, 4});
}

/// Rows and keys of a problem whose mask decides how many pairs there are.
void draw_long(Draw& draw, Case& c) {
  draw_few_heads(draw, c);
  const std::int64_t most = kMostElements / (columns(c) * c.heads_q);
  c.seq_q = many(draw, most);
  c.seq_k = draw.percent(70) ? c.seq_q : many(draw, most);
}

/// A band of as many keys as the pairs allow, on the diagonal or off it.
void draw_band(Draw& draw, Case& c) {
  draw_long(draw, c);
  const std::int64_t width = std::max<std::int64_t>(kMostPairs / (c.seq_q * c.heads_q), 1);
  const std::int64_t left = draw.between(0, width - 1);
  const std::int64_t away = draw.percent(25) ? draw.between(-c.seq_k / 2, c.seq_k / 2) : 0;
  c.window = {left + away, width - 1 - left - away};
}

void draw_blocks(Draw& draw, Case& c) {
  draw_long(draw, c);
  const double all = static_cast<double>(c.seq_q * c.seq_k * c.heads_q);
  BlocksCase blocks{.block_q = draw.one_of<std::int64_t>({64, 64, 128, 128, 256, 48}),
                    .block_k = draw.one_of<std::int64_t>({64, 64, 128, 128, 256, 32})};
  blocks.per_head = draw.percent(50);
  blocks.density = std::min(1.0, static_cast<double>(kMostPairs) / all);
  blocks.full_flags = draw.percent(50);
  if (draw.percent(20) && c.heads_q == 1)
    blocks.dense_row = draw.between(0, (c.seq_q - 1) / blocks.block_q);
  c.blocks = blocks;
}

/// Room for many keys, of which an entry has few.
void draw_lengths(Draw& draw, Case& c) {
  draw_few_heads(draw, c);
  c.batch = draw.between(2, 6);
  const std::int64_t most = kMostElements / (columns(c) * c.heads_q * c.batch);
  c.seq_k = many(draw, most);
  c.seq_q = draw.percent(50) ? many(draw, most) : draw.between(1, 300);
  const std::int64_t of_entry =
      std::clamp<std::int64_t>(kMostPairs / (c.seq_q * c.heads_q * c.batch), 1, c.seq_k);
  for (std::int64_t b = 0; b < c.batch; ++b)
    c.key_lengths.push_back(draw.percent(10) ? 0 : draw.between(1, of_entry));
}

/// Serving: few rows of grouped heads on many keys, half of them in pages.
void draw_few_queries(Draw& draw, bool pages, Case& c) {
  c.heads_k = draw.one_of<std::int64_t>({1, 1, 2, 4});
  c.heads_q = c.heads_k * draw.one_of<std::int64_t>({1, 4, 4, 5, 8, 16});
  c.seq_q = draw.percent(60) ? 1 : draw.between(1, 9);
  c.batch = draw.one_of<std::int64_t>({1, 1, 2, 4, 9});
  const std::int64_t most = std::min(kMostPairs / (c.seq_q * c.heads_q * c.batch),
                                     kMostElements / (columns(c) * c.heads_k * c.batch));
  c.seq_k = draw.percent(50) ? most : draw.between(most / 4, most);
  const bool different = pages || draw.percent(50);
  if (pages) {
    c.page_size = draw.one_of<std::int64_t>({1, 7, 16, 16, 64, 128});
    c.seq_k = (c.seq_k + c.page_size - 1) / c.page_size * c.page_size;
    c.backward = false;
  }
  for (std::int64_t b = 0; different && b < c.batch; ++b)
    c.key_lengths.push_back(draw.percent(40) ? c.seq_k : draw.between(0, c.seq_k));
}

void draw_few_keys(Draw& draw, Case& c) {
  draw_few_heads(draw, c);
  c.seq_q = many(draw, kMostElements / (columns(c) * c.heads_q));
  c.seq_k = draw.between(1, std::max<std::int64_t>(kMostPairs / (c.seq_q * c.heads_q), 1));
}

/// More heads than a GPU has multiprocessors.
void draw_short_heads(Draw& draw, Case& c) {
  c.batch = draw.one_of<std::int64_t>({9, 16, 33, 67});
  c.heads_k = draw.one_of<std::int64_t>({4, 8, 16});
  c.heads_q = c.heads_k * draw.one_of<std::int64_t>({1, 1, 2, 4});
  const std::int64_t heads = c.batch * c.heads_q;
  const double rows = std::sqrt(static_cast<double>(kMostPairs) / static_cast<double>(heads));
  const std::int64_t room = std::max<std::int64_t>(kMostElements / (columns(c) * heads), 1);
  const std::int64_t most = std::clamp<std::int64_t>(static_cast<std::int64_t>(rows), 1, room);
  c.seq_q = draw.percent(50) ? most : draw.between(1, most);
  c.seq_k = draw.percent(70) ? c.seq_q : draw.between(1, most);
}

/// Many short documents, or a few whose pairs a window bounds.
void draw_documents(Draw& draw, bool band, Case& c) {
  draw_few_heads(draw, c);
  PackedCase packed;
  const std::int64_t most = kMostPairs / c.heads_q;
  const std::int64_t rows = kMostElements / (columns(c) * c.heads_q);
  const std::int64_t longest =
      std::min(band ? std::int64_t{4000} : draw.one_of<std::int64_t>({3, 20, 80, 200}), rows);
  const std::int64_t width = draw.between(1, std::clamp<std::int64_t>(most / longest, 1, 64));
  const std::int64_t count = band ? draw.between(1, 4) : draw.between(50, 300);
  std::int64_t pairs = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t q = draw.percent(8) ? 0 : draw.between(1, longest);
    const std::int64_t k = draw.percent(70) ? q : draw.between(0, longest);
    pairs += q * (band ? std::min(k, width) : k);
    if (n > 0 && (pairs > most || std::max(c.seq_q + q, c.seq_k + k) > rows)) break;
    packed.q_lengths.push_back(q);
    packed.k_lengths.push_back(k);
    c.seq_q += q;
    c.seq_k += k;
  }
  packed.wide_offsets = draw.percent(25);
  packed.give_max = draw.percent(25);
  c.batch = static_cast<std::int64_t>(packed.q_lengths.size());
  c.packed = std::move(packed);
  if (band) c.window = {width - 1, 0};
}

void draw_sizes(Draw& draw, Shape shape, bool half, Case& c) {
  switch (shape) {
    case Shape::window:
      return draw_band(draw, c);
    case Shape::blocks:
      return draw_blocks(draw, c);
    case Shape::lengths:
      return draw_lengths(draw, c);
    case Shape::few_queries:
      return draw_few_queries(draw, half, c);
    case Shape::few_keys:
      return draw_few_keys(draw, c);
    case Shape::short_heads:
      return draw_short_heads(draw, c);
    case Shape::documents:
      return draw_documents(draw, half, c);
  }
}

/// A mask beside the shape's own. A bool mask is the same for every row.
void draw_mask(Draw& draw, Case& c) {
  const std::int64_t form = draw.between(0, 9);
  if (form < 3) c.causal = Causal::bottom_right;
  if (form == 3) c.causal = Causal::top_left;
  if (form == 4) {
    c.mask =
        MaskCase{.axes = {false, draw.percent(50), false, true},
                 .hide = {{.kind = Region::Kind::some, .fraction = draw.one_of({0.1, 0.5, 0.9})}}};
  }
  if (form == 5 && !c.window.left) c.window.left = draw.between(0, 300);
}

/// A bias of all pairs would be larger than everything else.
void narrow_bias(Case& c) {
  constexpr std::int64_t kMostOfHead = std::int64_t{1} << 18;
  if (!c.bias) return;
  c.bias->axes[0] = c.bias->axes[1] = false;
  if (c.seq_q * c.seq_k > kMostOfHead) c.bias->axes[2] = false;
}

Case draw_case(std::uint64_t seed, std::int64_t index, std::int64_t variants, Shape shape,
               Draw& draw) {
  constexpr std::uint64_t kOfSizes = 0x7370617273ULL;
  Draw of_variant(seed ^ kOfSizes, index);
  Draw& of_sizes = variants > 1 ? of_variant : draw;
  Case c;
  draw_type(seed, index / variants, draw, c);
  const bool half = draw.percent(50);
  draw_sizes(of_sizes, shape, half, c);
  draw_mask(draw, c);
  draw_scores(draw, of_sizes, c);
  narrow_bias(c);
  draw_memory(draw, c);
  if (c.page_size > 0 && c.layout == Layout::expanded) c.layout = Layout::padded;
  return c;
}

}  // namespace

Case random_sparse_case(std::uint64_t seed, std::int64_t index, std::int64_t variants) {
  Draw draw(seed ^ 0x6D616E79ULL, index / variants);
  const auto shape = static_cast<Shape>(draw.between(0, kShapes - 1));
  return draw_case(seed, index, variants, shape, draw);
}

Case random_served_case(std::uint64_t seed, std::int64_t index, std::int64_t variants) {
  Draw draw(seed ^ 0x736572766564ULL, index / variants);
  return draw_case(seed, index, variants, Shape::few_queries, draw);
}

Case random_half_block_case(std::uint64_t seed, std::int64_t index, std::int64_t variants) {
  Draw draw(seed ^ 0x68616C66ULL, index / variants);
  Case c = draw_case(seed, index, variants, Shape::blocks, draw);
  if (c.dtype == DType::float32) c.dtype = DType::bfloat16;
  c.blocks->block_k = 64;
  c.blocks->block_q = 64 * draw.between(1, 4);
  if (c.blocks->dense_row >= 0) c.blocks->dense_row = 0;
  c.mask.reset();
  c.score_mod = Case::ScoreModKind::none;
  c.dropout.p = 0.0;
  return c;
}

Case random_latent_case(std::uint64_t seed, std::int64_t index, std::int64_t variants) {
  constexpr std::int64_t kLatentPairs = kMostPairs / 4;
  Draw draw(seed ^ 0x6C6174656E74ULL, index / variants), of_sizes(~seed, index);
  Case c;
  c.dtype = draw.one_of({DType::bfloat16, DType::bfloat16, DType::float16});
  c.head_dim = 576;
  c.head_dim_v = 512;
  c.layout = Layout::latent;
  c.backward = false;
  c.heads_q = of_sizes.one_of<std::int64_t>({1, 5, 8, 16, 16, 32, 64, 128, 128});
  c.seq_q = of_sizes.percent(60) ? 1 : of_sizes.between(1, 8);
  c.batch = of_sizes.between(1, 5);
  const std::int64_t most =
      std::clamp<std::int64_t>(kLatentPairs / (c.heads_q * c.seq_q * c.batch), 1, 1500);
  c.seq_k = of_sizes.between(1, most);
  if (draw.percent(50)) {
    c.page_size = draw.one_of<std::int64_t>({16, 16, 32, 64, 128});
    c.seq_k = (c.seq_k + c.page_size - 1) / c.page_size * c.page_size;
  }
  const bool different = c.page_size > 0 || draw.percent(50);
  for (std::int64_t b = 0; different && b < c.batch; ++b)
    c.key_lengths.push_back(of_sizes.percent(25) ? c.seq_k : of_sizes.between(0, c.seq_k));
  const std::int64_t mask = draw.between(0, 4);
  if (mask == 1) c.causal = Causal::bottom_right;
  if (mask == 2) c.causal = Causal::top_left;
  if (mask == 3) c.window = {of_sizes.between(0, c.seq_k), of_sizes.between(-5, 5)};
  if (draw.percent(25)) c.sinks = Fill{};
  if (draw.percent(25)) c.scale = of_sizes.one_of({0.05, 0.2, 1e-20});
  c.lse = !draw.percent(15);
  c.deterministic = draw.percent(30);
  return c;
}

}  // namespace tilewise
