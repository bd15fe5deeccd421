/// Random small problems: sizes, masks, strides and types that no list of cases names together.
#include <algorithm>
#include <array>
#include <initializer_list>

#include "harness/case.h"
#include "problem/philox.h"

namespace tilewise {
namespace {

/// Scores of all heads of one problem: what the reference takes milliseconds for. Half as many
/// where the head dims pass 128.
constexpr std::int64_t kMostPairs = std::int64_t{1} << 17;

/// The random choices of one problem, one after another.
class Draw {
 public:
  Draw(std::uint64_t seed, std::int64_t index)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        index_(static_cast<std::uint64_t>(index)) {}

  /// In [begin, end].
  std::int64_t between(std::int64_t begin, std::int64_t end) {
    return begin + static_cast<std::int64_t>(word() % static_cast<std::uint64_t>(end - begin + 1));
  }
  bool percent(std::int64_t share) { return between(1, 100) <= share; }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  PhiloxKey key_;
  std::uint64_t index_;
  std::uint32_t count_ = 0;
  PhiloxCounter words_{};

  std::uint32_t word() {
    if (count_ % 4 == 0) {
      words_ = philox4x32_10({static_cast<std::uint32_t>(index_),
                              static_cast<std::uint32_t>(index_ >> 32), count_ / 4, 0x72616E64U},
                             key_);
    }
    return words_[count_++ % 4];
  }
};

/// Few rows, any number, and what lies around the edges of tiles.
std::int64_t length(Draw& draw) {
  switch (draw.between(0, 3)) {
    case 0:
      return draw.between(1, 8);
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

/// Type and head dims: few of them in problems that follow each other, because on a GPU each is a
/// set of kernels to compile. One in three is above 128; one in four has a Dv of its own.
void draw_type(std::uint64_t seed, std::int64_t index, Draw& draw, Case& c) {
  constexpr std::int64_t kTogether = 512, kTypes = 3, kWide = 128, kMostDim = 256;
  const std::int64_t type = draw.between(0, kTypes - 1);
  Draw of_type(seed, -1 - (index / kTogether * kTypes + type));  // draws that no problem has
  c.dtype = of_type.one_of({DType::bfloat16, DType::bfloat16, DType::float16, DType::float32});
  if (type == 0) {
    c.head_dim = of_type.percent(60) ? of_type.one_of<std::int64_t>({192, 256, 256})
                                     : head_dim(of_type, kWide + 1, kMostDim);
  } else {
    c.head_dim = of_type.percent(60) ? of_type.one_of<std::int64_t>({16, 32, 64, 64, 96, 128, 128})
                                     : head_dim(of_type, 1, kWide);
  }
  c.head_dim_v = of_type.percent(75) ? c.head_dim : head_dim(of_type, 1, kMostDim);
}

void draw_sizes(Draw& draw, Case& c) {
  c.batch = draw.between(1, 3);
  c.heads_k = draw.between(1, 3);
  c.heads_q = c.heads_k * draw.one_of<std::int64_t>({1, 1, 1, 2, 3, 4});
  c.seq_q = length(draw);
  c.seq_k = draw.percent(50) ? c.seq_q : length(draw);
  const std::int64_t most = c.head_dim + c.head_dim_v > 256 ? kMostPairs / 2 : kMostPairs;
  while (c.batch * c.heads_q * c.seq_q * c.seq_k > most) {
    c.batch = 1;
    if (c.heads_q > c.heads_k) {
      c.heads_q = c.heads_k;
    } else if (c.heads_k > 1) {
      c.heads_q = c.heads_k = 1;
    } else {
      break;
    }
  }
}

void draw_positions(Draw& draw, Case& c) {
  switch (draw.between(0, 7)) {
    case 0:
    case 1:
    case 2:
      c.causal = Causal::bottom_right;
      break;
    case 3:
      c.causal = Causal::top_left;
      break;
    case 4:
    case 5: {
      if (draw.percent(80)) c.window.left = draw.between(-5, c.seq_k);
      if (draw.percent(60)) c.window.right = draw.between(-5, c.seq_k);
      if (draw.percent(25)) c.causal = Causal::bottom_right;
      break;
    }
    default:
      break;
  }
  if (draw.percent(8)) {
    for (std::int64_t b = 0; b < c.batch; ++b) {
      c.key_lengths.push_back(draw.between(0, c.seq_k));
    }
  }
}

void draw_scores(Draw& draw, Case& c) {
  if (draw.percent(10)) c.softcap = draw.one_of({2.0, 15.0, 50.0});
  if (draw.percent(10)) c.alibi = draw.one_of({Case::Alibi::per_head, Case::Alibi::per_batch});
  if (draw.percent(10)) c.scale = draw.one_of({0.0, 1.0, -0.3, 0.05});
  if (draw.percent(4)) c.sinks = Fill{};
  if (draw.percent(4)) {
    c.dropout = {.p = 0.3, .seed = static_cast<std::uint64_t>(draw.between(0, 1000000))};
  }
  if (draw.percent(4)) {
    c.mask = MaskCase{.axes = {draw.percent(50), draw.percent(50), true, true},
                      .hide = {{.kind = Region::Kind::some, .fraction = 0.3}}};
  }
  if (draw.percent(4)) {
    c.bias = BiasCase{.axes = {draw.percent(50), draw.percent(50), draw.percent(50), true}};
  }
  c.deterministic = draw.percent(30);
}

void draw_memory(Draw& draw, Case& c) {
  if (draw.percent(60)) {
    c.layout =
        draw.one_of({Layout::bshd, Layout::bshd, Layout::sbhd, Layout::qkv, Layout::transposed,
                     Layout::step2, Layout::padded, Layout::reversed, Layout::expanded});
  }
  const bool can_share = c.seq_q == c.seq_k && c.head_dim == c.head_dim_v;
  if (c.layout == Layout::qkv && !can_share) c.layout = Layout::bshd;
  if (draw.percent(40)) {
    c.d_o_layout =
        draw.one_of({Layout::bshd, Layout::transposed, Layout::padded, Layout::expanded});
  }
  c.lse = !draw.percent(10);
  c.d_lse = draw.percent(20);
  if (draw.percent(10)) c.q.scale = c.k.scale = draw.one_of({3.0, 0.2});
}

}  // namespace

Case random_case(std::uint64_t seed, std::int64_t index) {
  Draw draw(seed, index);
  Case c;
  draw_type(seed, index, draw, c);
  draw_sizes(draw, c);
  draw_positions(draw, c);
  draw_scores(draw, c);
  draw_memory(draw, c);
  return c;
}

Case random_list_case(std::uint64_t seed, std::int64_t index) {
  Case c = random_case(seed, index);
  Draw draw(~seed, index);
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
  if (draw.percent(15)) blocks.dense_row = draw.between(0, (c.seq_q - 1) / blocks.block_q);
  c.blocks = blocks;
  return c;
}

}  // namespace tilewise
