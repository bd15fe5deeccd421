/// fwd_sm90 on the emulator, against the formulas in float64: masks, softcap, ALiBi, packed heads,
/// key lengths, packed sequences, split keys, Dv beside D. The host side is the library's own.
#include "cuda/kernels/fwd_sm90.cuh"

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "cuda/kernels/fwd_sm90_fill.h"
#include "cuda/kernels/fwd_sm90_tiles.h"
#include "cuda/kernels/fwd_sm90_unit.h"
#include "wgmma.h"

namespace tilewise::fwd_sm90 {
alignas(1024) unsigned char memory[256 * 1024];
}

namespace {

using namespace tilewise;
using fwd_sm90::Args;
using fwd_sm90::Config;
using fwd_sm90::Lengths;
using fwd_sm90::Mask;
using fwd_sm90::Modification;
using Bits = unsigned short;

constexpr Bits kNan = 0x7fff;
int failures = 0;

struct Case {
  const char* name;
  int dim, dim_v, heads_q, heads_k;
  std::vector<int> queries, keys;  ///< of each batch entry or sequence
  bool packed = false, lengths = false;
  Causal causal = Causal::none;
  std::int64_t left = Problem::kUnbounded, right = Problem::kUnbounded;
  double softcap = 0.0;
  bool alibi = false;
  float amplitude = 1.0F;
  int tail = 0;                  ///< packed: rows behind the last sequence
  int block_m = 0, block_n = 0;  ///< of the tile to take, 0: any
  int splits = 1;
};

// The configs of the cases below: the kernel is a template.
constexpr Config tile64(int warpgroups, Mask mask) {
  Config c;
  c.head_dim = c.head_dim_v = 64;
  c.warpgroups = warpgroups;
  c.block_n = 128;
  c.stages = c.value_stages = warpgroups == 1 ? 4 : 3;
  c.ping_pong = c.skip_blocks = warpgroups > 1;
  c.dynamic = true;
  c.mask = mask;
  c.chain_tiles = warpgroups > 1 && mask != Mask::both;
  c.q_buffers = c.chain_tiles ? 2 : 1;
  c.trust_maxima = true;
  c.values_first = warpgroups > 1;
  return c;
}
constexpr Config modified(Config c, Modification modification) {
  c.modification = modification;
  c.values_first = false;
  c.trust_maxima = modification != Modification::general;
  return c;
}
constexpr Config with(Config c, Lengths lengths, bool pack_heads, bool split) {
  c.lengths = lengths;
  c.pack_heads = pack_heads;
  c.split = split;
  c.chain_tiles = c.values_first = false;
  c.q_buffers = 1;
  return c;
}
constexpr Config tile128(Mask mask, int head_dim) {
  Config c;
  c.trust_maxima = true;
  c.head_dim = head_dim;
  c.warpgroups = 3;
  c.block_n = 80;
  c.ping_pong = mask == Mask::none;
  c.dynamic = mask != Mask::none;
  c.mask = mask;
  return c;
}
constexpr Config tile192x64() {
  Config c = tile128(Mask::both, 128);
  c.block_n = 64;
  c.stages = c.value_stages = 4;
  c.q_by_need = true;
  return c;
}
constexpr Config tile128x128(Mask mask) {
  Config c;
  c.trust_maxima = true;
  c.lazy_rescale = c.skip_blocks = false;
  c.dynamic = mask != Mask::none;
  c.mask = mask;
  return c;
}
constexpr Config tile256(Mask mask) {
  Config c;
  c.trust_maxima = true;
  c.head_dim = c.head_dim_v = 256;
  c.block_n = 80;
  c.own_o = false;
  c.dynamic = mask != Mask::none;
  c.mask = mask;
  return c;
}
constexpr Config tile128x64() {
  Config c = tile256(Mask::both);
  c.block_n = 64;
  c.stages = 3;
  c.ping_pong = false;
  c.q_by_need = true;
  return c;
}
/// At dim 64, not modified.
constexpr Config halved(Config c) {
  c.halve_cut = true;
  if (c.mask == Mask::both) c.q_buffers = 2;
  return c;
}
constexpr Config kConfigs[] = {
    modified(tile64(3, Mask::right), Modification::alibi),
    modified(tile64(3, Mask::none), Modification::alibi),
    modified(tile64(3, Mask::both), Modification::softcap),
    halved(modified(tile64(3, Mask::right), Modification::softcap)),
    modified(tile64(3, Mask::right), Modification::general),
    with(tile64(1, Mask::right), Lengths::packed, true, false),
    with(tile64(1, Mask::both), Lengths::packed, false, false),
    with(tile64(1, Mask::right), Lengths::packed, true, true),
    with(tile64(3, Mask::right), Lengths::packed, false, false),
    with(tile64(3, Mask::none), Lengths::packed, false, false),
    with(tile64(3, Mask::both), Lengths::keys, true, false),
    with(tile64(1, Mask::none), Lengths::keys, true, true),
    tile64(3, Mask::none),
    halved(tile64(3, Mask::right)),
    halved(tile64(3, Mask::both)),
    tile128x64(),
    tile128(Mask::both, 128),
    tile192x64(),
    tile128(Mask::right, 128),
    tile128(Mask::right, 64),
    tile128x128(Mask::both),
    modified(tile256(Mask::right), Modification::alibi),
};

template <std::size_t kIndex = 0>
void run_kernel(const Config& config, const Args& args) {
  if constexpr (kIndex == std::size(kConfigs)) {
    std::printf("no config {%s}\n", cuda::fwd_sm90_unit(config).config.c_str());
    ++failures;
  } else if (!(config == kConfigs[kIndex])) {
    run_kernel<kIndex + 1>(config, args);
  } else {
    const unsigned grid = std::min(args.tiles, 5);
    emulator::grid_size.x = grid;
    emulator::shared_base = fwd_sm90::memory;
    std::memset(fwd_sm90::memory, 0xff, sizeof(fwd_sm90::memory));
    for (unsigned block = 0; block < grid; ++block) {
      emulator::run_block(block, 128 * (config.warpgroups + 1),
                          [&] { fwd_sm90::kernel<kConfigs[kIndex]>(args); });
    }
  }
}

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

Bits narrow(float x) { return static_cast<Bits>(tile::pack<tile::Element::bf16>(x, 0.0F)); }
float wide(Bits x) { return tile::widen<tile::Element::bf16>(x); }

/// A (B, S, H, D) tensor of random values, with its logical axes (B, H, S, D): columns of a wider
/// one whose others are NaN.
struct Rows {
  std::vector<Bits> data;
  int heads, rows, dim, pitch;
  Rows(int batch, int heads_, int rows_, int dim_, float amplitude, std::mt19937& random)
      : heads(heads_), rows(rows_), dim(dim_), pitch((dim + 7) / 8 * 8 + 8) {
    std::normal_distribution<float> normal;
    data.assign(static_cast<std::size_t>(batch) * heads * rows * pitch, kNan);
    for (std::size_t i = 0; i < data.size() && amplitude > 0.0F; ++i) {
      if (static_cast<int>(i % pitch) < dim) data[i] = narrow(amplitude * normal(random));
    }
  }
  Bits* at(int b, int h, int i) {
    return &data[((static_cast<std::size_t>(b) * rows + i) * heads + h) * pitch];
  }
  Tensor tensor(int batch) {
    Tensor t = Tensor::bshd(data.data(), DType::bfloat16, batch, rows, heads, pitch,
                            {DeviceType::cuda, 0});
    t.sizes[3] = dim;
    return t;
  }
  bool is_intact_around() const {
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (static_cast<int>(i % pitch) >= dim && data[i] != kNan) return false;
    }
    return true;
  }
};

Problem make_problem(const Case& c) {
  Problem p;
  p.device = {DeviceType::cuda, 0};
  p.dtype = DType::bfloat16;
  p.batch = static_cast<int>(c.keys.size());
  p.heads_q = c.heads_q;
  p.heads_k = c.heads_k;
  p.seq_q = *std::max_element(c.queries.begin(), c.queries.end());
  p.seq_k = *std::max_element(c.keys.begin(), c.keys.end());
  p.head_dim = c.dim;
  p.head_dim_v = c.dim_v;
  p.packed = c.packed;
  p.scale64 = 1.0 / std::sqrt(c.dim);
  p.scale = static_cast<float>(p.scale64);
  p.softcap = c.softcap;
  p.causal = c.causal;
  p.left = c.left;
  p.right = c.causal == Causal::bottom_right ? std::min<std::int64_t>(c.right, 0) : c.right;
  return p;
}

double slope(const Case& c, int h) { return std::exp2(-8.0 * (h + 1) / c.heads_q); }

/// One row: what is wrong with it goes to `o_error` and `lse_error` (relative to its bound).
struct Row {
  int batch, head, q_row, k_row, i, queries, keys;  ///< q_row, k_row: of the tensors; i: position
};
void compare(const Case& c, const Row& at, Rows& q, Rows& k, Rows& v, Rows& o, float lse,
             double& o_error, double& lse_error) {
  const Problem p = make_problem(c);
  const int head_k = at.head / (c.heads_q / c.heads_k);
  const KeyRange seen = p.visible_keys({0, at.queries, 0, at.keys}, at.i);
  std::vector<double> s;
  double largest = 1.0;
  for (auto j = seen.begin; j < seen.end; ++j) {
    double x = 0.0;
    for (int d = 0; d < c.dim; ++d) {
      x += static_cast<double>(wide(q.at(at.batch, at.head, at.q_row)[d])) *
           wide(k.at(at.batch, head_k, at.k_row + static_cast<int>(j))[d]);
    }
    x *= p.scale64;
    if (c.softcap != 0.0) x = c.softcap * std::tanh(x / c.softcap);
    if (c.alibi) x -= slope(c, at.head) * std::fabs(at.i + at.keys - at.queries - double(j));
    s.push_back(x);
    largest = std::max(largest, std::fabs(x));
  }
  const double m = s.empty() ? 0.0 : *std::max_element(s.begin(), s.end());
  double l = 0.0;
  for (double& x : s) l += x = std::exp(x - m);
  const Bits* got = o.at(at.batch, at.head, at.q_row);
  for (int d = 0; d < c.dim_v; ++d) {
    double x = 0.0;
    for (std::size_t j = 0; j < s.size(); ++j) {
      x += s[j] / l * wide(v.at(at.batch, head_k, at.k_row + static_cast<int>(seen.begin + j))[d]);
    }
    const double off = std::fabs(x - wide(got[d]));
    o_error = std::isnan(off) ? 1e9 : std::max(o_error, off);
  }
  if (s.empty()) {
    if (lse != -std::numeric_limits<float>::infinity()) lse_error = 1e9;
  } else {
    const double off = std::fabs(m + std::log(l) - lse) / (1e-5 * largest);
    lse_error = std::isnan(off) ? 1e9 : std::max(lse_error, off);
  }
}

const cuda::Sm90Tile& pick_tile(const Case& c, const Problem& p) {
  for (const cuda::Sm90Tile& tile : cuda::sm90_tiles(p)) {
    if ((c.block_m == 0 || tile.block_m() == c.block_m) &&
        (c.block_n == 0 || tile.block_n == c.block_n))
      return tile;
  }
  std::abort();
}

/// What combine.cuh does, in plain loops.
void merge(const Case& c, const Args& args, int padded, int rows_q, Rows& o,
           std::vector<float>& lse) {
  for (long row = 0; row < args.part_rows; ++row) {
    double total = 0.0;
    std::vector<double> sum(static_cast<std::size_t>(c.dim_v));
    for (int part = 0; part < args.splits; ++part) {
      const double weight = std::exp(double(args.lse_part[part * args.part_rows + row]));
      if (weight == 0.0) continue;
      total += weight;
      for (int d = 0; d < c.dim_v; ++d) {
        sum[d] += weight * args.o_part[(part * args.part_rows + row) * padded + d];
      }
    }
    const int i = static_cast<int>(row % rows_q), h = static_cast<int>(row / rows_q);
    lse[row] = static_cast<float>(std::log(total));
    for (int d = 0; d < c.dim_v; ++d) {
      o.at(h / c.heads_q, h % c.heads_q, i)[d] =
          narrow(total > 0.0 ? static_cast<float>(sum[d] / total) : 0.0F);
    }
  }
}

std::vector<int> offsets(const std::vector<int>& lengths) {
  std::vector<int> at = {0};
  for (const int n : lengths) at.push_back(at.back() + n);
  return at;
}

void check(const Case& c) {
  std::mt19937 random(11);
  Problem p = make_problem(c);
  std::vector<int> cu_q = offsets(c.queries), cu_k = offsets(c.keys), key_lengths = c.keys;
  const int batch = static_cast<int>(c.keys.size()), entries = c.packed ? 1 : batch;
  const int rows_q = c.packed ? cu_q.back() + c.tail : static_cast<int>(p.seq_q);
  const int rows_k = c.packed ? cu_k.back() + c.tail : static_cast<int>(p.seq_k);
  Rows q(entries, c.heads_q, rows_q, c.dim, c.amplitude, random);
  Rows k(entries, c.heads_k, rows_k, c.dim, c.amplitude, random);
  Rows v(entries, c.heads_k, rows_k, c.dim_v, 1.0F, random);
  Rows o(entries, c.heads_q, rows_q, c.dim_v, 0.0F, random);
  // What lies behind a length must not matter.
  for (int b = 0; b < batch && c.lengths; ++b) {
    for (int j = c.keys[b]; j < rows_k; ++j) {
      for (int h = 0; h < c.heads_k; ++h) {
        std::fill_n(k.at(b, h, j), c.dim, kNan);
        std::fill_n(v.at(b, h, j), c.dim_v, kNan);
      }
    }
  }
  std::vector<float> lse(static_cast<std::size_t>(entries) * c.heads_q * rows_q, NAN), slopes;
  for (int h = 0; h < c.heads_q; ++h) slopes.push_back(static_cast<float>(slope(c, h)));
  p.q = q.tensor(entries);
  p.k = k.tensor(entries);
  p.v = v.tensor(entries);
  p.o = o.tensor(entries);
  p.lse = Tensor::contiguous(lse.data(), DType::float32, {entries, c.heads_q, rows_q}, p.device);
  p.total_q = rows_q;
  p.total_k = rows_k;
  if (c.packed) {
    for (Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse}) t->sizes[0] = batch, t->strides[0] = 0;
    p.cu_seqlens_q = Tensor::contiguous(cu_q.data(), DType::int32, {batch + 1}, p.device);
    p.cu_seqlens_k = Tensor::contiguous(cu_k.data(), DType::int32, {batch + 1}, p.device);
  }
  if (c.lengths)
    p.key_lengths = Tensor::contiguous(key_lengths.data(), DType::int32, {batch}, p.device);
  if (c.alibi) {
    p.alibi_slopes = Tensor::contiguous(slopes.data(), DType::float32, {1, c.heads_q}, p.device);
    p.alibi_slopes.strides[0] = 0;
  }

  if (const std::string why = cuda::sm90_maps_refusal(p); !why.empty()) {
    std::printf("FAILED %s: %s\n", c.name, why.c_str());
    ++failures;
    return;
  }
  const cuda::Sm90Tile& tile = pick_tile(c, p);
  const bool split = c.splits > 1;
  const Config config = cuda::sm90_config(p, tile, split);
  const int shift = cuda::sm90_pack_shift(p, tile);
  Args args;
  cuda::sm90_fill(args, p, config, shift, set_map);
  args.order = cuda::sm90_order(p, config, tile.block_m() >> shift, c.splits);
  args.tiles = args.order.blocks * args.order.heads;
  unsigned long long word = 0x123456789abcdefULL;
  args.counter = {&word, 77};
  std::vector<float> o_part, lse_part;
  if (split) {
    args.splits = c.splits;
    args.part_rows = static_cast<long>(entries) * c.heads_q * rows_q;
    args.blocks_per_split = cuda::sm90_blocks_per_split(p, config.block_n, c.splits);
    o_part.assign(static_cast<std::size_t>(c.splits * args.part_rows * config.head_dim_v), NAN);
    lse_part.assign(static_cast<std::size_t>(c.splits * args.part_rows), NAN);
    args.o_part = o_part.data();
    args.lse_part = lse_part.data();
  }
  run_kernel(config, args);
  if (split) merge(c, args, config.head_dim_v, rows_q, o, lse);

  double o_error = 0.0, lse_error = 0.0;
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < c.heads_q; ++h) {
      for (int i = 0; i < c.queries[b]; ++i) {
        const int entry = c.packed ? 0 : b, q_row = (c.packed ? cu_q[b] : 0) + i;
        compare(c, {entry, h, q_row, c.packed ? cu_k[b] : 0, i, c.queries[b], c.keys[b]}, q, k, v,
                o, lse[(static_cast<std::size_t>(entry) * c.heads_q + h) * rows_q + q_row], o_error,
                lse_error);
      }
    }
  }
  for (int i = 0; i < c.tail; ++i) {  // rows of no sequence: zeros
    for (int h = 0; h < c.heads_q; ++h) {
      for (int d = 0; d < c.dim_v; ++d) {
        if (o.at(0, h, cu_q.back() + i)[d] != 0) o_error = 1e9;
      }
    }
  }
  if (config.dynamic && word != 0) lse_error = 1e9;  // the counter is left as it must be
  if (!o.is_intact_around()) o_error = 1e9;
  // P and O are rounded to bf16: 2^-9 of the largest |V|, about 4, and as much again.
  const bool good = o_error < 0.03 && lse_error < 1.0;
  std::printf("%s %s: O off by %.4f, LSE by %.2f of its bound\n", good ? "ok" : "FAILED", c.name,
              o_error, lse_error);
  failures += good ? 0 : 1;
}

}  // namespace

int main() {
  const std::vector<int> q = {70, 1, 0, 129, 200}, k = {33, 90, 5, 129, 300};
  const Case cases[] = {
      {.name = "alibi, causal",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 1,
       .queries = {250, 250},
       .keys = {333, 333},
       .causal = Causal::bottom_right,
       .alibi = true},
      {.name = "alibi on both sides",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {150},
       .keys = {700},
       .alibi = true},
      {.name = "softcap that bends little, window",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {300},
       .keys = {310},
       .left = 150,
       .right = 20,
       .softcap = 30.0},
      {.name = "softcap that bends much, window",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {300},
       .keys = {310},
       .left = 150,
       .right = 20,
       .softcap = 1.5},
      {.name = "softcap, some blocks bent much, causal",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {300},
       .keys = {500},
       .causal = Causal::bottom_right,
       .softcap = 14.0},
      {.name = "softcap that hardly bends, causal",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {300},
       .keys = {500},
       .causal = Causal::bottom_right,
       .softcap = 50.0},
      {.name = "softcap, a few scores beyond the cubic's bound",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 3,
       .heads_k = 3,
       .queries = {300},
       .keys = {700},
       .causal = Causal::bottom_right,
       .softcap = 34.0},
      {.name = "softcap and alibi, rows without keys",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {200},
       .keys = {150},
       .causal = Causal::bottom_right,
       .softcap = 9.0,
       .alibi = true},
      {.name = "packed sequences and heads, causal",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 8,
       .heads_k = 2,
       .queries = {1, 0, 3, 9, 2},
       .keys = {33, 90, 5, 129, 300},
       .packed = true,
       .causal = Causal::bottom_right,
       .tail = 25,
       .block_m = 64},
      {.name = "packed sequences and heads, split keys, causal",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 8,
       .heads_k = 2,
       .queries = {1, 0, 3, 20, 2},
       .keys = {33, 90, 5, 1000, 300},
       .packed = true,
       .causal = Causal::bottom_right,
       .tail = 25,
       .block_m = 64,
       .splits = 3},
      {.name = "packed sequences, window",
       .dim = 40,
       .dim_v = 40,
       .heads_q = 2,
       .heads_k = 2,
       .queries = q,
       .keys = k,
       .packed = true,
       .left = 60,
       .right = 10,
       .tail = 300,
       .block_m = 64},
      {.name = "packed sequences, tiles of three warpgroups, causal",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {0, 193, 1, 400, 63},
       .keys = {70, 33, 90, 512, 63},
       .packed = true,
       .causal = Causal::bottom_right,
       .tail = 7,
       .block_m = 192},
      {.name = "packed sequences, tiles of three warpgroups",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {192, 384, 0},
       .keys = {130, 0, 5},
       .packed = true,
       .block_m = 192},
      {.name = "key lengths, packed heads, window",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 5,
       .heads_k = 1,
       .queries = {40, 40, 40, 40},
       .keys = {270, 13, 0, 128},
       .lengths = true,
       .left = 100,
       .right = 0},
      {.name = "decode: lengths, seven heads, split keys",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 7,
       .heads_k = 1,
       .queries = {1, 1, 1},
       .keys = {1000, 17, 500},
       .lengths = true,
       .block_m = 64,
       .splits = 4},
      {.name = "scores that outgrow their maxima, one block after another",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {200},
       .keys = {700},
       .amplitude = 6.0F},
      {.name = "the same, causal, 192 x 80",
       .dim = 120,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {250},
       .keys = {500},
       .causal = Causal::bottom_right,
       .amplitude = 5.0F},
      {.name = "the same, 128 x 128, window",
       .dim = 128,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {140},
       .keys = {700},
       .left = 500,
       .right = 100,
       .amplitude = 5.0F,
       .block_m = 128},
      {.name = "window, 192 x 64",
       .dim = 128,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {400},
       .keys = {500},
       .left = 130,
       .right = 0,
       .amplitude = 3.0F,
       .block_m = 192,
       .block_n = 64},
      {.name = "window, 192 x 80",
       .dim = 128,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {400},
       .keys = {400},
       .left = 130,
       .right = 0,
       .block_n = 80},
      {.name = "window, a warpgroup behind the last query where no key is near the first",
       .dim = 128,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {270},
       .keys = {270},
       .left = 7,
       .right = 3,
       .block_m = 128},
      {.name = "window, halves of cut blocks",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {600, 600},
       .keys = {610, 610},
       .left = 150,
       .right = 20,
       .block_m = 192},
      {.name = "window, halves, few keys",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {450, 450},
       .keys = {400, 400},
       .left = 300,
       .right = 0,
       .block_m = 192},
      {.name = "window of one key",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {400, 400},
       .keys = {400, 400},
       .left = 0,
       .right = 0,
       .block_m = 192},
      {.name = "window, halves, maxima outgrown",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {390, 390},
       .keys = {900, 900},
       .left = 500,
       .right = 100,
       .amplitude = 5.0F,
       .block_m = 192},
      {.name = "window, halves, aligned",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {576, 576},
       .keys = {576, 576},
       .left = 255,
       .right = 0,
       .block_m = 192},
      {.name = "window, halves, on both sides",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {576, 576},
       .keys = {640, 640},
       .left = 255,
       .right = 64,
       .block_m = 192},
      {.name = "causal, halves",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {576, 576},
       .keys = {576, 576},
       .causal = Causal::bottom_right,
       .block_m = 192},
      {.name = "causal, halves, more keys",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {300, 300},
       .keys = {500, 500},
       .causal = Causal::bottom_right,
       .amplitude = 2.0F,
       .block_m = 192},
      {.name = "causal, halves, fewer keys",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {500, 500},
       .keys = {300, 300},
       .causal = Causal::bottom_right,
       .amplitude = 2.0F,
       .block_m = 192},
      {.name = "causal, halves, chained",
       .dim = 64,
       .dim_v = 64,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {700, 700},
       .keys = {700, 700},
       .causal = Causal::bottom_right,
       .amplitude = 2.0F,
       .block_m = 192},
      {.name = "window, 192 x 64, one key",
       .dim = 128,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {400, 400},
       .keys = {400, 400},
       .left = 0,
       .right = 0,
       .block_m = 192,
       .block_n = 64},
      {.name = "window, 192 x 64, left of the keys",
       .dim = 128,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {200, 200},
       .keys = {70, 70},
       .left = 30,
       .right = -5,
       .block_m = 192,
       .block_n = 64},
      {.name = "window, 128 x 64",
       .dim = 256,
       .dim_v = 256,
       .heads_q = 2,
       .heads_k = 2,
       .queries = {300, 300},
       .keys = {310, 310},
       .left = 150,
       .right = 20,
       .block_m = 128,
       .block_n = 64},
      {.name = "window, 128 x 64, one key",
       .dim = 256,
       .dim_v = 256,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {300, 300},
       .keys = {300, 300},
       .left = 0,
       .right = 0,
       .block_m = 128,
       .block_n = 64},
      {.name = "window, 128 x 64, maxima outgrown",
       .dim = 256,
       .dim_v = 256,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {260, 260},
       .keys = {500, 500},
       .left = 300,
       .right = 50,
       .amplitude = 5.0F,
       .block_m = 128,
       .block_n = 64},
      {.name = "window, 128 x 64, left of the keys",
       .dim = 256,
       .dim_v = 256,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {200, 200},
       .keys = {70, 70},
       .left = 30,
       .right = -5,
       .block_m = 128,
       .block_n = 64},
      {.name = "values wider than keys",
       .dim = 64,
       .dim_v = 128,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {250},
       .keys = {250},
       .causal = Causal::bottom_right},
      {.name = "alibi at 256",
       .dim = 256,
       .dim_v = 256,
       .heads_q = 1,
       .heads_k = 1,
       .queries = {140},
       .keys = {200},
       .causal = Causal::bottom_right,
       .alibi = true},
  };
  for (const Case& c : cases) check(c);
  return failures == 0 ? 0 : 1;
}
