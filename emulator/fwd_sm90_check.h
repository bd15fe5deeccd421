/// A case of fwd_sm90 on the emulator: its tensors, the kernel, its rows against the formulas. The
/// host side is the library's own.
#pragma once

#include <string>

#include "cuda/kernels/fwd_sm90/fill.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "fwd_sm90_pools.h"
#include "fwd_sm90_truth.h"
#include "tensor_maps.h"

namespace {

const cuda::FwdSm90Tile& pick_tile(const Case& c, const Problem& p) {
  const auto tiles = c.mapped ? cuda::fwd_sm90_masked_tiles(p) : cuda::fwd_sm90_tiles(p);
  for (const cuda::FwdSm90Tile& tile : tiles) {
    if ((c.block_m == 0 || tile.block_m() == c.block_m) &&
        (c.block_n == 0 || tile.shape.block_n == c.block_n))
      return tile;
  }
  std::abort();
}

/// As the copy engine reads one of 16 bits, `rows` queries a box.
inline tile::BiasTiles bias_tiles(Bias& bias, int rows) {
  const long pitch = 2 * bias.pitch, head = pitch * bias.queries;
  const emulator::Box box = {reinterpret_cast<unsigned char*>(bias.narrow.data()),
                             {bias.keys, bias.heads, bias.queries, bias.batch},
                             {0, head, pitch, head * bias.heads},
                             {64, 1, rows, 1},
                             4};
  tile::BiasTiles tiles = {
      .by_batch = bias.batch > 1, .by_head = bias.heads > 1, .by_query = bias.queries > 1};
  std::memcpy(&tiles.map, &box, sizeof(box));
  return tiles;
}

/// What combine.cuh does, in plain loops.
void merge(const Case& c, const Args& args, int padded, int rows_q, Rows& o,
           std::vector<float>& lse) {
  for (long row = 0; row < args.part_rows; ++row) {
    double total = 0.0;
    std::vector<double> sum(static_cast<std::size_t>(c.dim_v));
    for (int part = 0; part < args.splits; ++part) {
      const float* m = args.m_part + part * args.part_rows + row;
      const double weight = std::exp2(double(*m)) * m[args.splits * args.part_rows];
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

/// What `documents` finds (documents.cxx).
struct RowBlocks {
  std::vector<int> blocks;
  int count = 0;

  RowBlocks(const Case& c, int all, int rows) {
    if (c.documents == 0) return;
    const int entry_rows = all / c.documents;
    int begin = 0;
    for (const int length : c.queries) {
      const int entry = begin / entry_rows, from = begin % entry_rows;
      for (int n = 0; n < (length + rows - 1) / rows; ++n)
        blocks.insert(blocks.end(), {n, from, from + length, entry});
      begin += length;
    }
    count = static_cast<int>(blocks.size() / 4);
  }
  /// The kernel knows of no other count.
  DocumentArgs args(const Args& of) const {
    DocumentArgs args{of};
    args.order.blocks = -1;
    args.tiles = -1;
    args.blocks = blocks.data();
    args.count = &count;
    return args;
  }
};

/// Packed tensors as those of `entries` entries.
Problem of_entries(Problem p, int entries) {
  p.total_q = p.total_k = p.total_q / entries;
  for (Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse}) {
    t->sizes[0] = entries;
    t->sizes[2] = p.total_q;
    t->strides[0] = p.total_q * t->strides[2];
  }
  return p;
}

/// A tile of the case whose config is compiled, any of them; null where none is.
template <const auto& kConfigs>
const cuda::FwdSm90Tile* compiled_tile(const Case& c, const Problem& p) {
  for (const cuda::FwdSm90Tile& tile : cuda::fwd_sm90_tiles(p)) {
    const Config config = cuda::fwd_sm90_config(p, tile, c.splits > 1);
    if (std::find(std::begin(kConfigs), std::end(kConfigs), config) != std::end(kConfigs)) {
      return &tile;
    }
  }
  return nullptr;
}

/// What makes a sample's rows of tiles (mask_maps.h).
using MapSample = std::function<RunMap(int sample, const tile::Captures&)>;

/// Where a case's rows lie.
struct Places {
  std::vector<int> cu_q, cu_k, key_lengths;
  int batch, entries, rows_q, rows_k;

  Places(const Case& c, const Problem& p)
      : cu_q(offsets(c.queries)),
        cu_k(offsets(c.keys)),
        key_lengths(c.keys),
        batch(static_cast<int>(c.keys.size())),
        entries(c.packed ? 1 : batch),
        rows_q(c.packed ? cu_q.back() + c.tail : static_cast<int>(p.seq_q)),
        rows_k(c.packed && !p.paged ? cu_k.back() + c.tail : static_cast<int>(p.seq_k)) {}
};

/// What lies behind a length must not matter.
void hide_behind_lengths(const Case& c, const Places& at, Rows& k, Rows& v) {
  for (int b = 0; b < at.batch; ++b) {
    for (int j = c.keys[b]; j < at.rows_k; ++j) {
      for (int h = 0; h < c.heads_k; ++h) {
        std::fill_n(k.at(b, h, j), c.dim, kNan);
        std::fill_n(v.at(b, h, j), c.dim_v, kNan);
      }
    }
  }
}

/// Keys that a bias of keys hides hold NaN. CONTRACT 10
void hide_keys(const Case& c, const Bias& bias, Rows& k) {
  if (c.bias == nullptr || c.bias->by_query || c.packed || c.heads_k != c.heads_q) return;
  for (int b = 0; b < static_cast<int>(c.keys.size()); ++b) {
    for (int h = 0; h < c.heads_k; ++h) {
      for (int j = 0; j < c.keys[b]; ++j)
        if (std::isinf(bias.at(b, h, 0, j))) std::fill_n(k.at(b, h, j), c.dim, kNan);
    }
  }
}

/// Offsets and lengths; packed tensors get a batch axis that does not move.
void give_lengths(const Case& c, Places& at, Problem& p) {
  p.total_q = at.rows_q;
  p.total_k = at.rows_k;
  if (c.packed) {
    for (Tensor* t : {&p.q, &p.o, &p.lse}) t->sizes[0] = at.batch, t->strides[0] = 0;
    p.cu_seqlens_q = Tensor::contiguous(at.cu_q.data(), DType::int32, {at.batch + 1}, p.device);
  }
  if (c.packed && !p.paged) {
    for (Tensor* t : {&p.k, &p.v}) t->sizes[0] = at.batch, t->strides[0] = 0;
    p.cu_seqlens_k = Tensor::contiguous(at.cu_k.data(), DType::int32, {at.batch + 1}, p.device);
  }
  if (c.lengths || p.paged)
    p.key_lengths = Tensor::contiguous(at.key_lengths.data(), DType::int32, {at.batch}, p.device);
}

/// Memory of the parts of split keys.
struct PartSums {
  std::vector<float> o, m;
  PartSums(const Case& c, const Places& at, int padded, Args& args) {
    if (c.splits <= 1) return;
    args.splits = c.splits;
    args.part_rows = static_cast<long>(at.entries) * c.heads_q * at.rows_q;
    o.assign(static_cast<std::size_t>(c.splits * args.part_rows * padded), NAN);
    m.assign(static_cast<std::size_t>(2 * c.splits * args.part_rows), NAN);
    args.o_part = o.data();
    args.m_part = m.data();
  }
};

/// Slopes and sinks of heads.
struct OfHeads {
  std::vector<float> slopes, sinks;
  OfHeads(const Case& c, Problem& p) {
    for (int h = 0; h < c.heads_q; ++h) {
      slopes.push_back(static_cast<float>(slope(c, h)));
      sinks.push_back(sink(h));
    }
    if (c.alibi) {
      p.alibi_slopes = Tensor::contiguous(slopes.data(), DType::float32, {1, c.heads_q}, p.device);
      p.alibi_slopes.strides[0] = 0;
    }
    if (c.sinks) p.sinks = Tensor::contiguous(sinks.data(), DType::float32, {c.heads_q}, p.device);
  }
};

/// The functions of the case's sample; null without one.
std::unique_ptr<samples::Interpreted> give_functions(const Case& c, Problem& p) {
  if (c.sample < 0) return nullptr;
  auto of = std::make_unique<samples::Interpreted>(samples::kSamples[c.sample]);
  p.score_function = of->problem.score_function;
  p.score_affine = of->problem.score_affine;
  p.mask_function = of->problem.mask_function;
  return of;
}

struct Errors {
  double o = 0.0, lse = 0.0;

  void report(const char* name) const {
    // P and O are rounded to bf16: 2^-9 of the largest |V|, about 4, and as much again.
    const bool good = o < 0.03 && lse < 1.0;
    std::printf("%s %s: O off by %.4f, LSE by %.2f of its bound\n", good ? "ok" : "FAILED", name, o,
                lse);
    failures += good ? 0 : 1;
  }
};

/// Rows of no sequence: zeros.
void check_tail(const Case& c, const Places& at, Rows& o, const std::vector<float>& lse,
                Errors& errors) {
  for (int i = 0; i < c.tail; ++i) {
    for (int h = 0; h < c.heads_q; ++h) {
      for (int d = 0; d < c.dim_v; ++d) {
        if (o.at(0, h, at.cu_q.back() + i)[d] != 0) errors.o = 1e9;
      }
      const float last = lse[static_cast<std::size_t>(h) * at.rows_q + at.rows_q - 1];
      if (c.sinks && c.splits <= 1 && !std::isinf(last)) errors.lse = 1e9;
    }
  }
}

/// Calls f(row, its LSE) for the rows of all sequences.
template <class F>
void for_rows(const Case& c, const Places& at, bool paged, const std::vector<float>& lse, F f) {
  for (int b = 0; b < at.batch; ++b) {
    for (int h = 0; h < c.heads_q; ++h) {
      for (int i = 0; i < c.queries[b]; ++i) {
        const int entry = c.packed ? 0 : b, q_row = (c.packed ? at.cu_q[b] : 0) + i;
        const int k_row = c.packed && !paged ? at.cu_k[b] : 0;
        f(Row{entry, h, q_row, k_row, i, c.queries[b], c.keys[b], b},
          lse[(static_cast<std::size_t>(entry) * c.heads_q + h) * at.rows_q + q_row]);
      }
    }
  }
}

/// Whether the case was checked: a drawn one is left out where no tile has a compiled config.
template <const auto& kConfigs>
bool check(const Case& c, bool drawn = false, const MapSample& map_sample = {}) {
  std::mt19937 random(11);
  Problem p = make_problem(c);
  Places at(c, p);
  const int batch = at.batch, entries = at.entries, rows_q = at.rows_q, rows_k = at.rows_k;
  Rows q(entries, c.heads_q, rows_q, c.dim, c.amplitude, random);
  const int entries_k = p.paged ? batch : entries;
  Rows k(entries_k, c.heads_k, rows_k, c.dim, c.amplitude, random);
  Rows v(entries_k, c.heads_k, rows_k, c.dim_v, 1.0F, random);
  Rows o(entries, c.heads_q, rows_q, c.dim_v, 0.0F, random);
  if (c.rising) make_rising(c, q, k);
  if (c.lengths || p.paged) hide_behind_lengths(c, at, k, v);
  std::vector<float> lse(static_cast<std::size_t>(entries) * c.heads_q * rows_q, NAN);
  p.q = q.tensor(entries);
  p.k = k.tensor(entries_k);
  p.v = v.tensor(entries_k);
  p.o = o.tensor(entries);
  p.lse = Tensor::contiguous(lse.data(), DType::float32, {entries, c.heads_q, rows_q}, p.device);
  give_lengths(c, at, p);
  Pools pools(c, k, v, random);
  pools.give(p);
  const OfHeads of_heads(c, p);
  const auto of = give_functions(c, p);
  const auto seen = [&](int b, int i, int j) {
    const KeyRange range = p.visible_keys({0, c.queries[b], 0, c.keys[b]}, i);
    // With functions a block is flagged full where they show all of it.
    const auto shows = [&](int h) {
      return of == nullptr || of->is_visible({b, h, i, j, c.queries[b], c.keys[b], 0.0});
    };
    bool all = j >= range.begin && j < range.end;
    for (int h = 0; h < c.heads_q && all; ++h) all = shows(h);
    return all;
  };
  BlockLists lists(c.blocks, batch, c.heads_q, static_cast<int>(p.seq_q), static_cast<int>(p.seq_k),
                   seen);
  lists.give(p, c.blocks);

  if (const std::string why = cuda::sm90_maps_refusal(p); !why.empty()) {
    std::printf("FAILED %s: %s\n", c.name, why.c_str());
    ++failures;
    return true;
  }
  BoolMask mask(c.shows, batch, c.heads_q, rows_q, static_cast<int>(p.seq_k));
  mask.give(p, c.packed ? 1 : batch, c.heads_q, rows_q, static_cast<int>(p.seq_k));
  Bias bias(c.bias, batch, c.heads_q, rows_q, static_cast<int>(p.seq_k));
  bias.give(p, c.packed ? 1 : batch, c.heads_q, rows_q, static_cast<int>(p.seq_k));
  hide_keys(c, bias, k);
  TreeWords tree(batch, c.tree ? static_cast<int>(p.seq_q) : 0);
  tree.give(p);
  const cuda::FwdSm90Tile* known = drawn ? compiled_tile<kConfigs>(c, p) : &pick_tile(c, p);
  if (known == nullptr) return false;
  const cuda::FwdSm90Tile& tile = *known;
  const bool split = c.splits > 1;
  Config config = cuda::fwd_sm90_config(p, tile, split);
  config.documents = c.documents > 0;
  if (c.sample >= 0) config.expressions = samples::expressions_of(c.sample, false);
  const int shift = cuda::fwd_sm90_pack_shift(p, tile);
  PagedArgs args;
  const bool maps = map_sample && cuda::maps_mask(p);
  const MadeBits bits(p, config.shape.block_n, false);
  cuda::WantedLists wanted = cuda::fwd_sm90_wanted_lists(config, shift);
  if (c.shows_cut >= 0) wanted.shows_cut = c.shows_cut;
  const MadeLists made(p, wanted, maps ? map_sample(c.sample, cuda::captures_of(p)) : RunMap{},
                       bits.bits);
  args.lists = made.of_queries;
  cuda::fwd_sm90_fill(args, c.documents > 0 ? of_entries(p, c.documents) : p, config, shift,
                      set_map);
  args.order = cuda::fwd_sm90_order(p, config, tile.block_m() >> shift, c.splits);
  args.tiles = args.order.blocks * args.order.heads;
  unsigned long long word = 0x123456789abcdefULL;
  args.counter = {&word, 77};
  const PartSums parts(c, at, config.head_dim_v, args);
  tile::Options options = cuda::kernel_options(p, bits.bits);
  if (config.boxes_bias()) options.bias_tiles = bias_tiles(bias, 64);
  const RowBlocks found(c, rows_q, tile.block_m());
  run_kernel<kConfigs>(config, args, cuda::captures_of(p), options, found.args(args));
  if (split) merge(c, args, config.head_dim_v, rows_q, o, lse);

  Errors errors;
  for_rows(c, at, p.paged, lse, [&](const Row& row, float of_row) {
    compare(c, lists, mask, bias, of.get(), row, q, k, v, o, of_row, errors.o, errors.lse);
  });
  check_tail(c, at, o, lse, errors);
  if (config.schedule.dynamic && word != 0) errors.lse = 1e9;  // the counter is left as it must be
  if (!o.is_intact_around()) errors.o = 1e9;
  errors.report(c.name);
  return true;
}

}  // namespace
