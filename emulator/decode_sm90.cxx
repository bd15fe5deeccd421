/// decode_sm90 on the emulator, and combine behind it, against the formulas in float64: pages of
/// any size and order, lengths of 0 and 1, windows that leave pages out, causal queries, softcap,
/// ALiBi, sinks, Dv beside D; what no query may see is NaN, pages that nothing names lie out of
/// bounds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/kernels/decode_sm90/fill.h"
#include "cuda/kernels/decode_sm90/kernel.cuh"
#include "cuda/kernels/rows/combine.cuh"

namespace tilewise::decode_sm90 {
alignas(1024) unsigned char memory[1024];  // names the block's own shared memory
}
namespace tilewise::combine {
alignas(16) unsigned char memory[16];
}

namespace {

using namespace tilewise;
using decode_sm90::Config;
using Bits = unsigned short;

constexpr Bits kNan = 0x7fff;
constexpr int kNoPage = 1 << 28;  ///< reading its rows ends the program
int failures = 0;

struct Case {
  const char* name;
  int dim, dim_v, heads_q, heads_k, queries;
  std::vector<int> keys;
  int page = 0;  ///< rows of a page; 0: K and V side by side
  bool lengths = true;
  Causal causal = Causal::none;
  std::int64_t left = Problem::kUnbounded, right = Problem::kUnbounded;
  double softcap = 0.0;
  bool alibi = false, sinks = false;
  bool shared = false;    ///< all entries begin with one page
  bool expanded = false;  ///< all entries have the first one's keys, by a stride of 0
  double scale = 0.0;
  int part = 64;        ///< keys of a part
  bool shares = false;  ///< combine: groups share the parts of a row
};

Bits narrow(float x) { return static_cast<Bits>(tile::pack<tile::Element::bf16>(x, 0.0F)); }
float wide(Bits x) { return tile::widen<tile::Element::bf16>(x); }

/// A (batch, rows, heads, dim) tensor with axes (B, H, S, D) in rows of `dim` rounded up and 8
/// more.
struct Rows {
  std::vector<Bits> data;
  int heads, rows, dim, pitch;
  Rows(int batch, int heads_, int rows_, int dim_)
      : data(static_cast<std::size_t>(batch) * heads_ * rows_ * (dim_ + 8), kNan),
        heads(heads_),
        rows(rows_),
        dim(dim_),
        pitch(dim_ + 8) {}
  Bits* at(int b, int h, int i) {
    return &data[((static_cast<std::size_t>(b) * rows + i) * heads + h) * pitch];
  }
  void fill(int b, int i, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < dim; ++d) at(b, h, i)[d] = narrow(normal(random));
    }
  }
  Tensor tensor(int batch) {
    Tensor t = Tensor::bshd(data.data(), DType::bfloat16, batch, rows, heads, pitch,
                            {DeviceType::cuda, 0});
    t.sizes[3] = dim;
    return t;
  }
};

double slope(const Case& c, int h) { return std::exp2(-8.0 * (h + 1) / c.heads_q); }
float sink(int h) { return h % 2 == 0 ? 0.5F + static_cast<float>(h) : -3.0F; }

void set_map(tile::TensorMapBytes& to, const cuda::TensorMapSpec& spec) {
  emulator::Box box{};
  box.data = static_cast<unsigned char*>(const_cast<void*>(spec.data));
  box.rank = spec.rank;
  for (int axis = 0; axis < spec.rank; ++axis) {
    box.sizes[axis] = spec.sizes[axis];
    box.strides[axis] = spec.strides[axis];
    box.box[axis] = spec.box[axis];
  }
  std::memcpy(to.bytes, &box, sizeof(box));
}

/// Where key j of an entry lies.
struct Place {
  int batch, row;
};
struct Keys {
  std::vector<int> table;  ///< (B, columns)
  int columns = 0, page = 0;
  bool expanded = false;
  Place at(int b, int j) const {
    if (page == 0) return {expanded ? 0 : b, j};
    return {table[b * columns + j / page], j % page};
  }
};

/// Tables of shuffled pages. What lies past a length, and wholly left of a window, is no page.
Keys make_keys(const Case& c, const Problem& p, int& pages, std::mt19937& random) {
  Keys keys;
  keys.page = c.page;
  keys.expanded = c.expanded;
  const int batch = static_cast<int>(c.keys.size());
  if (c.page == 0) {
    pages = batch;
    return keys;
  }
  keys.columns = static_cast<int>((p.seq_k + c.page - 1) / c.page) + 1;
  keys.table.assign(static_cast<std::size_t>(batch) * keys.columns, kNoPage);
  std::vector<int> order(keys.table.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  pages = static_cast<int>(order.size());
  for (int b = 0; b < batch; ++b) {
    const KeyRange first = p.visible_keys({0, c.queries, 0, c.keys[b]}, 0);
    for (int n = 0; n * c.page < c.keys[b]; ++n) {
      const bool needed = (n + 1) * c.page > first.begin;
      if (needed) keys.table[b * keys.columns + n] = order[b * keys.columns + n];
    }
    if (c.shared && b > 0) keys.table[b * keys.columns] = keys.table[0];
  }
  return keys;
}

template <const auto& kConfigs, std::size_t kIndex = 0>
void run_kernel(const Config& config, const decode_sm90::Args& args) {
  if constexpr (kIndex == std::size(kConfigs)) {
    std::printf("no config {%s}\n", cuda::decode_unit(config).config.c_str());
    ++failures;
  } else if (!(config == kConfigs[kIndex])) {
    run_kernel<kConfigs, kIndex + 1>(config, args);
  } else {
    emulator::run_grid(decode_sm90::memory, 3,
                       32 * (decode_sm90::kProducerWarps + decode_sm90::kWarps),
                       [&] { decode_sm90::kernel<kConfigs[kIndex]>(args); });
  }
}

/// combine, with one group of lanes to a row and with four.
template <int kDim, bool kOwnParts, int kShares>
void merge(const combine::Args& args) {
  constexpr long kRows = combine::kThreads / combine::lanes(kDim) / kShares;
  emulator::run_grid(
      combine::memory, static_cast<unsigned>((args.rows + kRows - 1) / kRows), combine::kThreads,
      [&] {
        combine::kernel<combine::Config{combine::Output::bf16, kDim, kOwnParts, kShares}>(args);
      });
}
template <int kDim>
void merge(const combine::Args& args, bool own_parts, bool shares) {
  if (own_parts) {
    shares ? merge<kDim, true, 4>(args) : merge<kDim, true, 1>(args);
  } else {
    shares ? merge<kDim, false, 4>(args) : merge<kDim, false, 1>(args);
  }
}

/// A row by the formulas, as far as it is off.
void compare(const Case& c, const Problem& p, const Keys& keys, int b, int h, int i, Rows& q,
             Rows& k, Rows& v, const Bits* got, float lse, double& o_error, double& lse_error) {
  const int head_k = h / (c.heads_q / c.heads_k);
  const KeyRange range = p.visible_keys({0, c.queries, 0, c.keys[b]}, i);
  std::vector<double> s;
  double largest = 1.0;
  for (auto j = range.begin; j < range.end; ++j) {
    const Place at = keys.at(b, static_cast<int>(j));
    double x = 0.0;
    for (int d = 0; d < c.dim; ++d) {
      x += static_cast<double>(wide(q.at(b, h, i)[d])) * wide(k.at(at.batch, head_k, at.row)[d]);
    }
    x *= p.scale64;
    if (c.softcap != 0.0) x = c.softcap * std::tanh(x / c.softcap);
    if (c.alibi) x -= slope(c, h) * std::fabs(i + c.keys[b] - c.queries - double(j));
    s.push_back(x);
    largest = std::max(largest, std::fabs(x));
  }
  double m = c.sinks ? sink(h) : s.empty() ? 0.0 : s[0];
  for (const double x : s) m = std::max(m, x);
  double l = c.sinks ? std::exp(sink(h) - m) : 0.0;
  for (double& x : s) l += x = std::exp(x - m);
  for (int d = 0; d < c.dim_v; ++d) {
    double x = 0.0;
    for (std::size_t n = 0; n < s.size(); ++n) {
      const Place at = keys.at(b, static_cast<int>(range.begin + static_cast<long>(n)));
      x += s[n] / l * wide(v.at(at.batch, head_k, at.row)[d]);
    }
    const double off = std::fabs(x - wide(got[d]));
    o_error = std::isnan(off) ? 1e9 : std::max(o_error, off);
  }
  if (l == 0.0) {
    if (lse != -std::numeric_limits<float>::infinity()) lse_error = 1e9;
  } else {
    const double off = std::fabs(m + std::log(l) - lse) / (1e-5 * largest);
    lse_error = std::isnan(off) ? 1e9 : std::max(lse_error, off);
  }
}

Problem make_problem(const Case& c) {
  Problem p;
  p.device = {DeviceType::cuda, 0};
  p.dtype = DType::bfloat16;
  p.batch = static_cast<int>(c.keys.size());
  p.heads_q = c.heads_q;
  p.heads_k = c.heads_k;
  p.seq_q = p.total_q = c.queries;
  p.seq_k = p.total_k = std::max(1, *std::max_element(c.keys.begin(), c.keys.end()));
  p.head_dim = c.dim;
  p.head_dim_v = c.dim_v;
  p.paged = c.page > 0;
  p.page_size = c.page;
  p.scale64 = c.scale != 0.0 ? c.scale : 1.0 / std::sqrt(c.dim);
  p.scale = static_cast<float>(p.scale64);
  p.softcap = c.softcap;
  p.causal = c.causal;
  p.left = c.left;
  p.right = c.causal == Causal::bottom_right ? std::min<std::int64_t>(c.right, 0) : c.right;
  return p;
}

/// False where a drawn case has no compiled config.
template <const auto& kConfigs>
bool check(const Case& c, bool drawn = false) {
  std::mt19937 random(5);
  Problem p = make_problem(c);
  const int batch = static_cast<int>(p.batch);
  int pages = 0;
  Keys keys = make_keys(c, p, pages, random);
  const int rows = c.page > 0 ? c.page : static_cast<int>(p.seq_k);
  Rows q(batch, c.heads_q, c.queries, c.dim), o(batch, c.heads_q, c.queries, c.dim_v);
  Rows k(pages, c.heads_k, rows, c.dim), v(pages, c.heads_k, rows, c.dim_v);
  for (int b = 0; b < batch; ++b) {
    for (int i = 0; i < c.queries; ++i) q.fill(b, i, random);
    // What no query of the entry sees stays NaN, V's rows left of its window too.
    const KeyRange first = p.visible_keys({0, c.queries, 0, c.keys[b]}, 0);
    for (int j = static_cast<int>(first.begin); j < c.keys[b]; ++j) {
      const Place at = keys.at(b, j);
      k.fill(at.batch, at.row, random);
      v.fill(at.batch, at.row, random);
    }
  }
  std::vector<float> lse(static_cast<std::size_t>(p.query_rows()), NAN), slopes, sinks;
  for (int h = 0; h < c.heads_q; ++h) {
    slopes.push_back(static_cast<float>(slope(c, h)));
    sinks.push_back(sink(h));
  }
  std::vector<int> lengths = c.keys;
  p.q = q.tensor(batch), p.k = k.tensor(pages), p.v = v.tensor(pages), p.o = o.tensor(batch);
  p.lse = Tensor::contiguous(lse.data(), DType::float32, {batch, c.heads_q, c.queries}, p.device);
  if (c.expanded) p.k.strides[0] = p.v.strides[0] = 0;
  if (c.lengths)
    p.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {batch}, p.device);
  if (c.page > 0) {
    p.block_table =
        Tensor::contiguous(keys.table.data(), DType::int32, {batch, keys.columns}, p.device);
  }
  if (c.alibi) {
    p.alibi_slopes = Tensor::contiguous(slopes.data(), DType::float32, {1, c.heads_q}, p.device);
    p.alibi_slopes.strides[0] = 0;
  }
  if (c.sinks) p.sinks = Tensor::contiguous(sinks.data(), DType::float32, {c.heads_q}, p.device);

  Hardware machine;
  machine.arch = 90;
  machine.multiprocessors = 132;
  machine.bandwidth_gbps = 4000.0;
  if (const std::string why = cuda::decode_refusal(p, machine); !why.empty()) {
    std::printf("FAILED %s: %s\n", c.name, why.c_str());
    ++failures;
    return true;
  }
  const cuda::DecodeChoice choice = cuda::decode_with_parts(p, c.part, machine);
  const auto* known = std::find(std::begin(kConfigs), std::end(kConfigs), choice.config);
  if (drawn && known == std::end(kConfigs)) return false;
  decode_sm90::Args args;
  cuda::decode_fill(args, p, choice, set_map);
  constexpr unsigned long long kAny = 0x123456789abcdefULL;
  unsigned long long word = kAny;
  args.counter = {&word, 77};
  std::vector<float> o_part(
      static_cast<std::size_t>(args.most_parts * args.part_rows * args.part_columns), NAN);
  std::vector<float> m_part(static_cast<std::size_t>(2 * args.most_parts * args.part_rows), NAN);
  args.o_part = o_part.data();
  args.m_part = m_part.data();
  run_kernel<kConfigs>(choice.config, args);
  double o_error = 0.0, lse_error = 0.0;
  // The counter is left as it must be: where all items run at once nobody asks.
  if (word != 0 && word != kAny) lse_error = 1e9;
  if (args.most_parts > 1) {
    combine::Args merged;
    merged.o = args.o_part;
    merged.m = args.m_part;
    merged.parts = args.most_parts;
    merged.rows = args.part_rows;
    merged.l = args.m_part + merged.parts * merged.rows;
    merged.to = args.o;
    merged.lse_to = args.lse;
    merged.lse_b = args.lse_b, merged.lse_h = args.lse_h, merged.lse_s = args.lse_s;
    merged.heads = c.heads_q;
    merged.seq_q = c.queries;
    merged.head_dim_v = c.dim_v;
    merged.keys = args.keys;
    switch (args.part_columns) {
      case 64:
        merge<64>(merged, c.lengths, c.shares);
        break;
      case 96:
        merge<96>(merged, c.lengths, c.shares);
        break;
      default:
        merge<128>(merged, c.lengths, c.shares);
    }
  }
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < c.heads_q; ++h) {
      for (int i = 0; i < c.queries; ++i) {
        compare(c, p, keys, b, h, i, q, k, v, o.at(b, h, i),
                lse[(static_cast<std::size_t>(b) * c.heads_q + h) * c.queries + i], o_error,
                lse_error);
      }
    }
  }
  for (std::size_t i = 0; i < o.data.size(); ++i) {  // nothing is written beside the rows
    if (static_cast<int>(i % o.pitch) >= o.dim && o.data[i] != kNan) o_error = 1e9;
  }
  // P and O are rounded to bf16: 2^-9 of the largest |V|, about 4, and as much again.
  const bool good = o_error < 0.03 && lse_error < 1.0;
  std::printf("%s %s: %d parts, O off by %.4f, LSE by %.2f of its bound\n", good ? "ok" : "FAILED",
              c.name, args.most_parts, o_error, lse_error);
  failures += good ? 0 : 1;
  return true;
}

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
constexpr Config kConfigs[] = {
    config(128, 1, 64, false, false), config(128, 1, 16, true, false),
    config(128, 1, 0, true, false),   by_panels(config(128, 1, 32, true, false)),
    config(64, 1, 0, true, false),    config(64, 1, 16, true, false),
    config(64, 1, 64, true, false),   config(64, 1, 64, false, false),
    config(64, 2, 0, true, false),    config(64, 2, 16, true, false),
    config(64, 2, 64, false, false),  config(64, 4, 0, true, false),
    config(64, 4, 32, true, false),   config(64, 4, 64, false, false),
    config(64, 1, 0, false, true),    config(64, 1, 64, false, true),
    config(64, 1, 16, true, true),    config(64, 2, 32, true, true),
    config(64, 4, 16, true, true),
};

const std::vector<int> kKeys = {300, 0, 1, 64, 65, 130};
const Case kCases[] = {
    {.name = "side by side, no lengths, one part",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 8,
     .heads_k = 2,
     .queries = 1,
     .keys = {190, 190},
     .lengths = false,
     .part = 192},
    {.name = "side by side, no lengths, parts",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 8,
     .heads_k = 1,
     .queries = 1,
     .keys = {300, 300},
     .lengths = false},
    {.name = "pages of 16, parts",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 8,
     .heads_k = 2,
     .queries = 1,
     .keys = kKeys,
     .page = 16},
    {.name = "pages of 1",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 4,
     .heads_k = 1,
     .queries = 1,
     .keys = kKeys,
     .page = 1,
     .part = 128},
    {.name = "pages of 7, dims of 40 and 56, two queries",
     .dim = 40,
     .dim_v = 56,
     .heads_q = 6,
     .heads_k = 2,
     .queries = 2,
     .keys = kKeys,
     .page = 7,
     .causal = Causal::bottom_right,
     .part = 128},
    {.name = "pages of 256, shared, window, causal queries",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 8,
     .heads_k = 2,
     .queries = 3,
     .keys = {300, 257, 600, 2},
     .page = 256,
     .causal = Causal::bottom_right,
     .left = 70,
     .shared = true},
    {.name = "pages of 8 left of a window are none",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 4,
     .heads_k = 2,
     .queries = 2,
     .keys = {301, 1, 90, 640},
     .page = 8,
     .causal = Causal::bottom_right,
     .left = 33,
     .part = 64},
    {.name = "pages of 1 left of a window are none",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 4,
     .heads_k = 2,
     .queries = 2,
     .keys = {301, 1, 90, 640},
     .page = 1,
     .causal = Causal::bottom_right,
     .left = 33,
     .part = 64},
    {.name = "softcap, ALiBi, 32 rows",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 10,
     .heads_k = 2,
     .queries = 4,
     .keys = {200, 3, 129},
     .page = 32,
     .causal = Causal::bottom_right,
     .softcap = 3.0,
     .alibi = true},
    {.name = "a scale below 0, sinks",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 3,
     .heads_k = 1,
     .queries = 1,
     .keys = {200, 0, 129},
     .sinks = true,
     .scale = -0.2},
    {.name = "a stride of 0, softcap",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 3,
     .heads_k = 1,
     .queries = 1,
     .keys = {200, 77},
     .softcap = 2.0,
     .expanded = true},
    {.name = "pages of 32, dims of 80 and 96",
     .dim = 80,
     .dim_v = 96,
     .heads_q = 8,
     .heads_k = 2,
     .queries = 1,
     .keys = kKeys,
     .page = 32},
    {.name = "sinks in parts",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 8,
     .heads_k = 2,
     .queries = 1,
     .keys = kKeys,
     .page = 64,
     .sinks = true},
    {.name = "64 rows and more than a tile of them",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 6,
     .heads_k = 1,
     .queries = 15,
     .keys = {200, 14, 129},
     .causal = Causal::top_left,
     .part = 128},
    {.name = "many parts, shared by groups",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 8,
     .heads_k = 2,
     .queries = 1,
     .keys = {1300, 0, 70, 641},
     .page = 16,
     .shares = true},
    {.name = "parts of the same number, shared by groups",
     .dim = 128,
     .dim_v = 128,
     .heads_q = 4,
     .heads_k = 1,
     .queries = 1,
     .keys = {700, 700},
     .lengths = false,
     .shares = true},
    {.name = "parts that only some row tiles see",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 4,
     .heads_k = 1,
     .queries = 40,
     .keys = {300, 100},
     .causal = Causal::bottom_right,
     .left = 10},
    {.name = "more entries than lanes",
     .dim = 64,
     .dim_v = 64,
     .heads_q = 2,
     .heads_k = 1,
     .queries = 1,
     .keys = std::vector<int>(70, 17),
     .page = 16},
};

}  // namespace

int main() {
  for (const Case& c : kCases) check<kConfigs>(c);
  const char* seed = std::getenv("TILEWISE_EMULATION_SEED");
  std::mt19937 random(seed == nullptr ? 1U : static_cast<unsigned>(std::atoi(seed)));
  for (int left = 24; left > 0;) {
    Case c = drawn_case(random);
    const std::string name = text_of(c);
    c.name = name.c_str();
    if (check<kConfigs>(c, true)) --left;
  }
  return failures == 0 ? 0 : 1;
}
