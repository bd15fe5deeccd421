/// Packed sequences on the emulator: fwd_sm80, the two passes of the backward and the one, with
/// what stands around them (pack_rows, bwd_delta, bwd_convert, combine), against the formulas in
/// float64. Empty sequences, rows behind the last one (NaN in the inputs).
#include "cuda/kernels/bwd_sm80/keys.cuh"
#include "cuda/kernels/bwd_sm80/queries.cuh"
#include "cuda/kernels/fwd_sm80/kernel.cuh"
#include "cuda/kernels/rows/convert.cuh"
#include "cuda/kernels/rows/delta.cuh"
#include "cuda/kernels/rows/pack.cuh"
#include "flash_sm80_configs.h"
#include "flash_sm80_grids.h"
#include "flash_sm80_slices.h"

namespace {

/// Rows of one side of the sequences.
struct Side {
  std::vector<int> lengths;
  int tail = 0;
  std::vector<int> offsets = {0};
  std::vector<long long> wide_offsets = {0};
  int total = 0;

  Side(std::vector<int> of, int behind) : lengths(std::move(of)), tail(behind) {
    for (const int length : lengths) {
      offsets.push_back(offsets.back() + length);
      wide_offsets.push_back(offsets.back());
    }
    total = offsets.back() + tail;
  }
  int count() const { return static_cast<int>(lengths.size()); }
  int blocks(int rows) const { return total / rows + count() + 1; }
  int chunk(int b) const { return offsets[b] / tile::kScaleRows + b; }
  tile::Sequences sequences(bool wide) const {
    const void* data = wide ? static_cast<const void*>(wide_offsets.data()) : offsets.data();
    return {data, 1, wide, count(), total};
  }
};

/// Problems of several lengths, beside each other.
struct Batch {
  Shape shape;
  Side q, k;
  std::vector<Truth> truths;

  template <class Round>
  Batch(const Shape& s, const Side& queries, const Side& keys, Round round)
      : shape(s), q(queries), k(keys) {
    for (int b = 0; b < q.count(); ++b) {
      Shape one = s;
      one.seq_q = q.lengths[b], one.seq_k = k.lengths[b], one.first_pair = b * s.heads_q;
      truths.push_back(make_truth(one, round));
    }
  }

  /// (heads, rows, width) of a member of the truths; `from(b)` is the sequence's first row.
  template <class Element, class From, class Get>
  std::vector<Element> laid_out(const Side& side, int heads, int rows, int width, Element rest,
                                From from, Get get) const {
    std::vector<Element> all(static_cast<std::size_t>(heads * rows * width), rest);
    for (int b = 0; b < side.count(); ++b) {
      const auto& values = get(truths[b]);
      const int length = side.lengths[b];
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < length * width; ++i) {
          all[(h * rows + from(b)) * width + i] =
              static_cast<Element>(values[h * length * width + i]);
        }
      }
    }
    return all;
  }
  template <class Element, class Get>
  std::vector<Element> side_by_side(const Side& side, int heads, int width, Element rest,
                                    Get get) const {
    return laid_out(
        side, heads, side.total, width, rest, [&](int b) { return side.offsets[b]; }, get);
  }
};

/// What a mask leaves that hides every second square of 128 x 128 of each sequence, as
/// tile_lists makes it.
struct Squares {
  Formula formula;
  std::vector<unsigned> bits;

  static bool shows(int i, int j) { return (i / 128 + j / 128) % 2 == 0; }
  Squares(const Shape& s, const Side& queries, const Side& keys) {
    formula.score = [](int, int, int, double x) -> Formula::Score { return {x, 1.0}; };
    formula.visible = [](int, int i, int j) { return shows(i, j); };
    formula.lists = [this, s, queries, keys](int rows, int columns, bool of_keys) {
      return of_keys ? tiles(s, queries, keys, columns, rows, true)
                     : tiles(s, queries, keys, rows, columns, false);
    };
  }

 private:
  /// Rows of `block` that each have a bit for `step` of the other side.
  tile::TileLists tiles(const Shape& s, const Side& queries, const Side& keys, int block, int step,
                        bool of_keys) {
    const std::vector<int>& own = of_keys ? keys.lengths : queries.lengths;
    const std::vector<int>& others = of_keys ? queries.lengths : keys.lengths;
    const int rows = (*std::max_element(own.begin(), own.end()) + block - 1) / block;
    const int words = (*std::max_element(others.begin(), others.end()) + 32 * step - 1) / step / 32;
    bits.assign(own.size() * rows * 2 * words, 0);
    for (int b = 0; b < queries.count(); ++b) {
      for (int row = 0; row < rows; ++row) {
        for (int c = 0; c < 32 * words; ++c) {
          bool seen = false, hidden = false;
          for (int n = 0; n < block * step; ++n) {
            const int x = row * block + n / step, y = c * step + n % step;
            const int i = of_keys ? y : x, j = of_keys ? x : y;
            if (i >= queries.lengths[b]) continue;
            const bool ahead = s.causal && j > i + keys.lengths[b] - queries.lengths[b];
            const bool shown = j < keys.lengths[b] && !ahead && shows(i, j);
            (shown ? seen : hidden) = true;
          }
          const int half = hidden ? words : 0;
          if (seen) bits[(b * rows + row) * 2 * words + half + c / 32] |= 1U << (c % 32);
        }
      }
    }
    return {.bits = bits.data(), .rows = rows, .words = words, .list_b = 1};
  }
};

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// A float32 operand as pack_rows makes it of packed sequences.
template <class Get>
Planes<2> chunked_planes(const Batch& batch, const Side& side, int heads, int width, Get get) {
  const int dim = batch.shape.dim, rows = side.blocks(tile::kScaleRows) * tile::kScaleRows;
  const auto chunk = [&](int b) { return side.chunk(b) * tile::kScaleRows; };
  Planes<2> planes(batch.laid_out(side, heads, rows, dim, 0.0F, chunk, get), dim, width, rows,
                   heads);
  const std::vector<float> there = batch.laid_out(side, heads, rows, dim, kNan, chunk, get);
  for (int r = 0; r < heads * rows; ++r) {
    if (there[r * dim] == there[r * dim]) continue;
    std::fill_n(planes.data.begin() + r * 2 * width, 2 * width, kPoison);
  }
  return planes;
}

/// 16-bit rows of packed sequences as pack_rows copies them.
struct Copied {
  std::vector<Bits> data;
  tile::View view;
  template <Element kElement>
  Copied(const Rows<kElement>& from, const Side& side, int heads, int dim, int width, bool wide) {
    const int blocks = side.blocks(tile::kScaleRows), rows = blocks * tile::kScaleRows;
    data.assign(static_cast<std::size_t>(heads) * rows * width, kPoison);
    pack_rows::RaggedArgs ragged;
    pack_rows::Args& a = ragged.args;
    ragged.sequences[0] = side.sequences(wide);
    pack_rows::Source& s = a.sources[a.count++];
    s.from = {from.view.data, 0, from.view.stride_h, from.view.stride_s, 1};
    s.to = data.data();
    s.heads = heads, s.rows = rows, s.cols = dim, s.padded = width, s.blocks = blocks;
    constexpr pack_rows::Config kConfig = {.from_float = false, .planes = 1, .ragged = true};
    run_grid(heads * blocks, pack_rows::kThreads, fwd_sm80::shared,
             [&] { pack_rows::kernel<kConfig>(ragged); });
    view = {data.data(), 0, static_cast<long long>(rows) * width, width};
  }
};

template <fwd_sm80::Config kConfig>
void check_forward(const char* name, const Shape& s, const Side& q_side, const Side& k_side,
                   bool wide, double bound) {
  constexpr Element kElement = kConfig.form.element;
  constexpr int kWidth = kConfig.head_dim, kParts = kConfig.split ? 2 : 1;
  const Batch b(s, q_side, k_side, [](float x) {
    return kConfig.form.scaled ? x : widened<kElement>(narrow<kElement>(x));
  });
  const auto get_q = [](const Truth& t) -> const auto& { return t.q; };
  const auto get_k = [](const Truth& t) -> const auto& { return t.k; };
  const auto get_v = [](const Truth& t) -> const auto& { return t.v; };
  const int dim = s.dim, heads = s.heads_q, total = b.q.total;
  const Rows<kElement> q(b.side_by_side(b.q, heads, dim, kNan, get_q), dim, dim, total);
  const Rows<kElement> k(b.side_by_side(b.k, s.heads_k, dim, kNan, get_k), dim, dim, b.k.total);
  const Rows<kElement> v(b.side_by_side(b.k, s.heads_k, dim, kNan, get_v), dim, dim, b.k.total);
  const Copied k_copied(k, b.k, s.heads_k, dim, kWidth, wide);
  const Planes<2> q_planes = chunked_planes(b, b.q, heads, kWidth, get_q);
  const Planes<2> k_planes = chunked_planes(b, b.k, s.heads_k, kWidth, get_k);
  const Planes<2> v_planes = chunked_planes(b, b.k, s.heads_k, kWidth, get_v);
  fwd_sm80::RaggedArgs ragged;
  fwd_sm80::Args& a = ragged.args;
  ragged.queries = b.q.sequences(wide), ragged.keys = b.k.sequences(wide);
  fill_shape(a, s);
  a.q = q.view, a.k = k_copied.view, a.v = v.view;
  a.cols_q = a.cols_v = dim, a.cols_k = kWidth;
  ragged.chunked_k = true;
  if (kConfig.form.scaled) {
    a.q = q_planes.view, a.k = k_planes.view, a.v = v_planes.view;
    a.q_scale = q_planes.scales.data(), a.k_scale = k_planes.scales.data();
    a.v_scale = v_planes.scales.data();
    a.q_scale_blocks = q_planes.blocks, a.k_scale_blocks = k_planes.blocks;
    a.cols_q = a.cols_v = kWidth;
    ragged.chunked_q = ragged.chunked_v = true;
  }
  std::vector<Bits> o(static_cast<std::size_t>(heads * total * dim), kPoison);
  std::vector<float> got(o.size(), kNan), lse(static_cast<std::size_t>(heads * total), kNan);
  a.o = kConfig.form.scaled ? view4(got, total, dim) : view4(o, total, dim);
  a.lse = lse.data(), a.lse_h = total, a.lse_s = 1;
  std::vector<float> part_o(static_cast<std::size_t>(kParts * heads * total * kWidth), kNan);
  std::vector<float> part_rows(static_cast<std::size_t>(2 * kParts * heads * total), kNan);
  if (kConfig.split) {
    a.o = view4(part_o, total, kWidth), a.o_vectors = true, a.o_split = heads * total * kWidth;
    a.lse = part_rows.data(), a.lse_split = heads * total, a.keys_per_split = kConfig.shape.block_n;
  }
  a.order = order(b.q.blocks(kConfig.shape.block_m), heads, kParts);
  if constexpr (kConfig.listed())
    a.lists = s.formula->lists(kConfig.shape.block_m, kConfig.shape.block_n, false);
  const fwd_sm80::Args whole = a;
  for (int i = 0; i < kConfig.slices; ++i) {
    if (kConfig.slices > 1) a = cuda::fwd_tiles::slice_of(whole, i, kConfig);
    run_grid(static_cast<long long>(a.order.blocks) * heads * kParts, kConfig.shape.warps * 32,
             fwd_sm80::shared, [&] { fwd_sm80::kernel<kConfig>(ragged); });
  }
  a = whole;
  if (kConfig.split)
    merge_parts<kWidth>(s, total, kParts, part_o, part_rows, view4(got, total, dim), lse.data());
  for (std::size_t i = 0; !kConfig.form.scaled && !kConfig.split && i < o.size(); ++i) {
    got[i] = widened<kElement>(o[i]);
  }
  const auto get_o = [](const Truth& t) -> const auto& { return t.o; };
  const auto get_lse = [](const Truth& t) -> const auto& { return t.lse; };
  expect(name, "O", error(b.side_by_side(b.q, heads, dim, 0.0, get_o), got), bound);
  expect(name, "LSE", lse_error(b.side_by_side(b.q, heads, 1, kNothing, get_lse), lse), 1e-5);
}

/// What bwd_delta makes; `sums` becomes zero.
template <bwd_delta::Type kType, int kPadded, class T>
void run_delta(const Batch& b, std::vector<T>& o, std::vector<T>& d_o, std::vector<float>& lse,
               bool wide, bwd_sm80::Args& to, std::vector<float>& sums, int width) {
  bwd_delta::RaggedArgs ragged;
  bwd_delta::Args& a = ragged.args;
  ragged.queries = b.q.sequences(wide);
  a.o = view4(o, b.q.total, b.shape.dim), a.d_o = view4(d_o, b.q.total, b.shape.dim);
  a.lse = lse.data(), a.lse_h = b.q.total, a.lse_s = 1;
  a.lse2 = const_cast<float*>(to.lse2), a.lse2_low = to.lse2_low, a.delta = to.delta;
  a.clear = sums.data(), a.clear_cols = width;
  a.heads = b.shape.heads_q, a.rows_q = to.rows_q, a.head_dim_v = b.shape.dim;
  a.rows = static_cast<long long>(a.heads) * a.rows_q;
  constexpr bwd_delta::Config kConfig = {.type = kType, .head_dim_v = kPadded, .packed = true};
  const long long threads = a.rows * bwd_delta::lanes(kPadded);
  run_grid((threads + bwd_delta::kThreads - 1) / bwd_delta::kThreads, bwd_delta::kThreads,
           bwd_sm80::shared, [&] { bwd_delta::kernel<kConfig>(ragged); });
}

constexpr Gradient packed(Gradient config) {
  config.packed = true;
  return config;
}
constexpr Gradient listed(Gradient config) {
  config.lists = tile::Lists::whole;
  return config;
}

constexpr Gradient of_slice(Gradient config, bwd_sm80::Gradients gradients, int column) {
  config.output.gradients = gradients;
  config.output.column = column;
  return config;
}
/// Calls run<config>() with the arguments of each launch that a gradient takes.
template <Gradient kConfig, bwd_sm80::Gradients kWhich, int kColumn = 0, class Run>
void in_slices(bwd_sm80::Args& a, Run run) {
  constexpr Gradient kSlice = of_slice(kConfig, kWhich, kColumn);
  const bwd_sm80::Args whole = a;
  a = cuda::bwd_tiles::from_column(whole, kSlice);
  run.template operator()<kSlice>();
  a = whole;
  if constexpr (kConfig.output.columns > 0 && kColumn + kConfig.output.columns < kConfig.head_dim)
    in_slices<kConfig, kWhich, kColumn + kConfig.output.columns>(a, run);
}

/// What refine leaves beside lse2 where that is `off` too large, of every row that sees a key.
void check_low(const char* name, const Batch& b, const bwd_sm80::Args& a, float off) {
  double largest = 0.0;
  for (int n = 0; n < b.q.count(); ++n) {
    for (int row = 0; row < b.shape.heads_q * b.q.lengths[n]; ++row) {
      const int h = row / b.q.lengths[n], i = row % b.q.lengths[n];
      if (b.truths[n].lse[row] == kNothing) continue;
      const float low = a.lse2_low[h * a.rows_q + b.q.chunk(n) * tile::kScaleRows + i];
      largest = std::max(largest, std::fabs(static_cast<double>(low) + off));
    }
  }
  expect(name, "low part of LSE", largest, 1e-3);
}

/// kKeys: bwd_sm80, with dQ (then bwd_convert follows) or without (then bwd_dq_sm80 does).
template <Gradient kKeys, Gradient kQueries>
void check_backward(const char* name, const Shape& s, const Side& q_side, const Side& k_side,
                    bool wide, bool refine, double bound) {
  constexpr Element kElement = kKeys.form.element;
  constexpr int kWidth = kKeys.head_dim;
  constexpr bool kScaled = kKeys.form.scaled;
  const auto rounded = [](float x) { return kScaled ? x : widened<kElement>(narrow<kElement>(x)); };
  const Batch b(s, q_side, k_side, rounded);
  const auto get_q = [](const Truth& t) -> const auto& { return t.q; };
  const auto get_k = [](const Truth& t) -> const auto& { return t.k; };
  const auto get_v = [](const Truth& t) -> const auto& { return t.v; };
  const auto get_d_o = [](const Truth& t) -> const auto& { return t.d_o; };
  const auto get_o = [](const Truth& t) -> const auto& { return t.o; };
  const auto get_lse = [](const Truth& t) -> const auto& { return t.lse; };
  const int dim = s.dim, heads = s.heads_q, total = b.q.total;
  std::vector<float> o = b.side_by_side(b.q, heads, dim, 0.0F, get_o);
  std::vector<float> d_o = b.side_by_side(b.q, heads, dim, kNan, get_d_o);
  std::vector<float> lse = b.side_by_side(b.q, heads, 1, static_cast<float>(kNothing), get_lse);
  const Rows<kElement> q_rows(b.side_by_side(b.q, heads, dim, kNan, get_q), dim, dim, total);
  const Rows<kElement> do_rows(d_o, dim, dim, total);
  const Rows<kElement> k_rows(b.side_by_side(b.k, s.heads_k, dim, kNan, get_k), dim, dim,
                              b.k.total);
  const Rows<kElement> v_rows(b.side_by_side(b.k, s.heads_k, dim, kNan, get_v), dim, dim,
                              b.k.total);
  const Copied q_copied(q_rows, b.q, heads, dim, kWidth, wide);
  const Planes<2> q_planes = chunked_planes(b, b.q, heads, kWidth, get_q);
  const Planes<2> k_planes = chunked_planes(b, b.k, s.heads_k, kWidth, get_k);
  const Planes<2> v_planes = chunked_planes(b, b.k, s.heads_k, kWidth, get_v);
  const Planes<2> do_planes = chunked_planes(b, b.q, heads, kWidth, get_d_o);

  bwd_sm80::RaggedArgs ragged;
  bwd_sm80::Args& a = ragged.args;
  ragged.queries = b.q.sequences(wide), ragged.keys = b.k.sequences(wide);
  fill_shape(a, s);
  a.head_dim = dim;
  a.q = q_copied.view, a.k = k_rows.view, a.v = v_rows.view, a.d_o = do_rows.view;
  a.cols_q = kWidth, a.cols_k = a.cols_v = a.cols_o = dim;
  ragged.chunked_q = true;
  if (kScaled) {
    a.q = q_planes.view, a.k = k_planes.view, a.v = v_planes.view, a.d_o = do_planes.view;
    a.q_scale = q_planes.scales.data(), a.k_scale = k_planes.scales.data();
    a.v_scale = v_planes.scales.data(), a.do_scale = do_planes.scales.data();
    a.q_scale_blocks = q_planes.blocks, a.k_scale_blocks = k_planes.blocks;
    a.cols_k = a.cols_v = a.cols_o = kWidth;
    ragged.chunked_k = ragged.chunked_v = ragged.chunked_o = true;
  }
  a.rows_q = b.q.blocks(tile::kScaleRows) * tile::kScaleRows;
  const std::size_t count = static_cast<std::size_t>(heads) * a.rows_q;
  // What lies behind `low` must stay what it is: sinks have it written for each row.
  std::vector<float> lse2(count, kNan), delta(count, kNan), low((1 + b.q.count()) * count, kNan);
  const std::vector<float> no_sinks(static_cast<std::size_t>(heads), -INFINITY);
  if (refine) a.sinks = no_sinks.data(), a.sinks_h = 1;
  a.lse2 = lse2.data(), a.delta = delta.data(), a.lse2_low = low.data();
  std::vector<float> sums(count * kWidth, kNan);
  a.dq_sum = sums.data();
  run_delta<bwd_delta::Type::float32, kWidth>(b, o, d_o, lse, wide, a, sums, kWidth);

  using Value = std::conditional_t<kScaled, float, Bits>;
  const Value poison = kScaled ? static_cast<Value>(kNan) : static_cast<Value>(kPoison);
  std::vector<Value> dq(static_cast<std::size_t>(heads * total * dim), poison);
  std::vector<Value> dk(static_cast<std::size_t>(s.heads_k * b.k.total * dim), poison), dv = dk;
  a.dq = view4(dq, total, dim), a.dk = view4(dk, b.k.total, dim);
  a.dv = view4(dv, b.k.total, dim);
  const tile::TileOrder queries = order(b.q.blocks(kQueries.shape.block_m), heads);
  const auto give_lists = [&]<Gradient kConfig>(bool of_keys) {
    if constexpr (kConfig.listed())
      a.lists = s.formula->lists(kConfig.shape.block_m, kConfig.shape.block_n, of_keys);
  };
  give_lists.template operator()<kQueries>(false);
  if (refine) {
    a.order = queries;
    // With sinks rows of any config have a low part.
    const float off = kScaled ? 0.0F : 1.0F / 64;
    for (float& x : lse2) x += off;
    a.coarse = -1.0F;
    run_grid(queries.blocks * queries.heads, kQueries.shape.warps * 32, bwd_dq_sm80::shared,
             [&] { bwd_dq_sm80::refine<kQueries>(ragged); });
    if (!kScaled) check_low(name, b, a, off);
    for (float& x : lse2) x -= off;
  }
  a.order = order(b.k.blocks(kKeys.shape.block_n), s.heads_k);
  give_lists.template operator()<kKeys>(true);
  const auto run_keys = [&]<Gradient kConfig>() {
    run_grid(a.order.blocks * a.order.heads, kConfig.shape.warps * 32, bwd_sm80::shared,
             [&] { bwd_sm80::kernel<kConfig>(ragged); });
  };
  using bwd_sm80::Gradients;
  constexpr Gradients kFirst = kKeys.output.columns > 0 ? Gradients::keys : Gradients::both;
  in_slices<kKeys, kFirst>(a, run_keys);
  if constexpr (kKeys.output.columns > 0) in_slices<kKeys, Gradients::values>(a, run_keys);
  if constexpr (kKeys.output.with_dq) {
    bwd_convert::RaggedArgs convert;
    convert.sequences = b.q.sequences(wide);
    bwd_convert::Source& source = convert.args.sources[0];
    convert.args.count = 1;
    source.sums = sums.data(), source.to = a.dq, source.factor = s.scale;
    source.heads = heads, source.rows = total, source.padded_rows = a.rows_q;
    source.cols = dim, source.padded = kWidth;
    source.items = static_cast<long long>(heads) * a.rows_q / 16 * kWidth;
    constexpr bwd_convert::Config kConvert = {.type = bwd_convert::Type::bf16, .packed = true};
    run_grid((source.items + bwd_convert::kThreads - 1) / bwd_convert::kThreads,
             bwd_convert::kThreads, bwd_sm80::shared,
             [&] { bwd_convert::kernel<kConvert>(convert); });
  } else {
    a.order = queries;
    give_lists.template operator()<kQueries>(false);
    in_slices<kQueries, Gradients::both>(a, [&]<Gradient kConfig>() {
      run_grid(queries.blocks * queries.heads, kConfig.shape.warps * 32, bwd_dq_sm80::shared,
               [&] { bwd_dq_sm80::kernel<kConfig>(ragged); });
    });
  }
  const auto floats = [](const std::vector<Value>& x) {
    std::vector<float> y;
    for (const Value v : x) {
      if constexpr (kScaled) {
        y.push_back(v);
      } else {
        y.push_back(widened<kElement>(v));
      }
    }
    return y;
  };
  const auto truth = [&](const Side& side, int of, auto get) {
    return b.side_by_side(side, of, dim, 0.0, get);
  };
  const auto get_dq = [](const Truth& t) -> const auto& { return t.dq; };
  const auto get_dk = [](const Truth& t) -> const auto& { return t.dk; };
  const auto get_dv = [](const Truth& t) -> const auto& { return t.dv; };
  expect(name, "dQ", error(truth(b.q, heads, get_dq), floats(dq)), bound);
  expect(name, "dK", error(truth(b.k, s.heads_k, get_dk), floats(dk)), bound);
  expect(name, "dV", error(truth(b.k, s.heads_k, get_dv), floats(dv)), bound);
  const bool outside = std::any_of(low.begin() + static_cast<long>(count), low.end(),
                                   [](float x) { return x == x; });
  expect(name, "writes behind the rows", outside ? 1.0 : 0.0, 0.5);
}

}  // namespace

int main() {
  emulator::checks_races = true;
  const Side q({33, 0, 150, 5, 0, 64}, 7), k({50, 20, 129, 0, 0, 64}, 70);
  const Side many({1, 1, 1, 70, 1}, 0), keys({200, 3, 0, 70, 65}, 0);
  const Side none({}, 3), nothing({0, 0}, 1);
  const Shape plain, causal = {.causal = true}, dropped = {.causal = true, .dropout = 0.3};
  using Forward = fwd_sm80::Config;
  constexpr Forward kCut = {.shape = {.q_in_registers = true},
                            .positional = true,
                            .packed = true,
                            .keys = fwd_sm80::Keys::packed};
  constexpr Forward kWhole = {.packed = true, .keys = fwd_sm80::Keys::packed};
  constexpr Forward kShared = {
      .shape = {.block_m = 16, .block_n = 128, .key_warps = 4, .q_in_registers = true},
      .packed = true,
      .keys = fwd_sm80::Keys::packed};
  constexpr Forward kParts = {
      .positional = true, .split = true, .packed = true, .keys = fwd_sm80::Keys::packed};
  constexpr Forward kDrop = {
      .positional = true, .dropout = true, .packed = true, .keys = fwd_sm80::Keys::packed};
  constexpr Forward kFloat = {.form = {.element = Element::fp16, .planes = 2, .scaled = true},
                              .shape = {.stages = 1},
                              .positional = true,
                              .packed = true,
                              .keys = fwd_sm80::Keys::packed};
  check_forward<kCut>("packed", causal, q, k, false, kBf16);
  check_forward<kWhole>("packed, int64", plain, many, keys, true, kBf16);
  check_forward<kWhole>("packed, no sequence", plain, none, none, false, kBf16);
  check_forward<kWhole>("packed, empty sequences", plain, nothing, nothing, false, kBf16);
  check_forward<kShared>("packed, keys of four warps", plain, many, keys, false, kBf16);
  check_forward<kParts>("packed, two parts", causal, many, Side({60, 3, 0, 128, 65}, 0), false,
                        kBf16);
  check_forward<kDrop>("packed, dropout", dropped, q, k, false, kBf16);
  Shape squared = causal;
  const Squares squares(causal, q, k);
  squared.formula = &squares.formula;
  constexpr Forward kMapped = {.positional = true,
                               .packed = true,
                               .keys = fwd_sm80::Keys::packed,
                               .lists = tile::Lists::whole};
  check_forward<kMapped>("packed, a map", squared, q, k, false, kBf16);
  check_forward<kFloat>("packed, float32", causal, q, k, false, kExact);

  constexpr Gradient kFirst = packed(kFirstPass), kSecond = packed(kSecondPass);
  constexpr Gradient kOne = packed(kSmall), kFloatFirst = packed(kFloatKeys);
  constexpr Gradient kFloatSecond = packed(kFloatQueries);
  check_backward<kFirst, kSecond>("packed, two passes", causal, q, k, false, false, kBf16);
  check_backward<kFirst, kSecond>("packed, two passes, delta of P", plain, many, keys, true, true,
                                  kBf16);
  check_backward<kOne, kSecond>("packed, one pass", causal, q, k, true, false, kBf16);
  check_backward<with_dropout(kOne), with_dropout(kSecond)>("packed, one pass, dropout", dropped,
                                                            many, keys, false, true, kBf16);
  check_backward<listed(kOne), listed(kSecond)>("packed, one pass, a map", squared, q, k, false,
                                                false, kBf16);
  // Above 256 columns, in slices, with a map.
  const Side few({9, 0, 140}, 3), long_keys({40, 3, 150}, 5);
  Shape wide = {.heads_q = 1, .dim = 264, .scale = 0.062F, .causal = true};
  const Squares wide_squares(wide, few, long_keys);
  wide.formula = &wide_squares.formula;
  constexpr auto mapped = [](auto config) {
    config.packed = true, config.lists = tile::Lists::whole;
    if constexpr (requires { config.keys; }) config.keys = fwd_sm80::Keys::packed;
    return config;
  };
  check_forward<mapped(kSliced)>("packed, a map, dim 264", wide, few, long_keys, false, kBf16);
  check_backward<mapped(kSlicedKeys), mapped(kSlicedQueries)>("packed, a map, dim 264", wide, few,
                                                              long_keys, false, true, kBf16);
  check_backward<kFirst, kSecond>("packed, no sequence", plain, none, none, false, false, kBf16);
  check_backward<kFloatFirst, kFloatSecond>("packed, float32", causal, q, k, false, true, 2e-6);
  return failures == 0 ? 0 : 1;
}
