/// Checks of fwd_sm80, bwd_sm80 and bwd_dq_sm80 on the emulator against the formulas in float64.
#pragma once

#include "cuda/kernels/bwd_sm80/bias.cuh"
#include "cuda/kernels/bwd_sm80/keys.cuh"
#include "cuda/kernels/bwd_sm80/queries.cuh"
#include "cuda/kernels/fwd_sm80/kernel.cuh"
#include "cuda/kernels/rows/convert.cuh"
#include "cuda/kernels/rows/sinks.cuh"
#include "flash_sm80_configs.h"
#include "flash_sm80_grids.h"
#include "flash_sm80_slices.h"

namespace {

using namespace tilewise;
using tile::Element;

/// The bound of sums over many pairs, which nearly cancel.
constexpr double kSums = 5e-5;

}  // namespace

#include "flash_sm80_pairs.h"

namespace {

/// Calls launch(parameters of the kernel): with the captured tensors where it has expressions.
template <auto kConfig, class Args, class Launch>
void with_captures(const Shape& s, const Args& args, Launch launch) {
  if constexpr (kConfig.expressions.any()) {
    launch(tile::Expressed<Args>{args, s.formula->captures});
  } else {
    launch(args);
  }
}

template <auto kConfig, class Args>
void give_lists(const Shape& s, Args& args, bool of_keys) {
  if constexpr (kConfig.listed())
    args.lists = s.formula->lists(kConfig.shape.block_m, kConfig.shape.block_n, of_keys);
}

tile::TileOrder order(int rows, int block, int heads, bool last_first, int parts = 1) {
  return {static_cast<unsigned>((rows + block - 1) / block), static_cast<unsigned>(parts),
          static_cast<unsigned>(heads), 1, last_first};
}

/// O is of the operands' type, or float32 when they have scale factors or the keys are split.
template <fwd_sm80::Config kConfig>
void check_forward(const char* name, const Shape& s, double bound = 1.2e-2) {
  constexpr Element kElement = kConfig.form.element;
  constexpr int kWidth = kConfig.slices * kConfig.head_dim_v;
  const Truth t = make_truth(
      s, [](float x) { return kConfig.form.scaled ? x : widened<kElement>(narrow<kElement>(x)); });
  const Rows<kElement> q(t.q, s.dim, s.dim, s.seq_q), v(t.v, s.dim, s.dim, s.seq_k);
  const Rows<kElement> k(t.k, s.dim, kConfig.head_dim, s.seq_k);
  using Packed = Planes<kConfig.form.planes>;
  const Packed q_planes(t.q, s.dim, kConfig.head_dim, s.seq_q, s.heads_q);
  const Packed k_planes(t.k, s.dim, kConfig.head_dim, s.seq_k, s.heads_k);
  const Packed v_planes(t.v, s.dim, kWidth, s.seq_k, s.heads_k);
  std::vector<Bits> o(t.o.size(), kPoison);
  std::vector<float> got(t.o.size(), kNan), lse(t.lse.size(), kNan);
  fwd_sm80::Args a;
  a.q = q.view, a.k = k.view, a.v = v.view;
  a.cols_q = a.cols_v = s.dim;
  a.cols_k = kConfig.head_dim;
  if (kConfig.form.scaled) {
    a.q = q_planes.view, a.k = k_planes.view, a.v = v_planes.view;
    a.q_scale = q_planes.scales.data(), a.k_scale = k_planes.scales.data();
    a.v_scale = v_planes.scales.data();
    a.q_scale_blocks = q_planes.blocks, a.k_scale_blocks = k_planes.blocks;
    a.cols_q = kConfig.head_dim, a.cols_v = kWidth;
  }
  fill_shape(a, s);
  a.seq_q = s.seq_q, a.seq_k = s.seq_k;
  a.o = view4(o, s.seq_q, s.dim), a.o_vectors = s.dim % 8 == 0;
  if (kConfig.form.scaled) a.o = view4(got, s.seq_q, s.dim);
  a.lse = lse.data(), a.lse_h = s.seq_q, a.lse_s = 1;
  Pairs pairs(s, kConfig.pairs);
  a.pairs = pairs.tensors, a.sinks = sinks_of(s), a.sinks_h = 1;
  constexpr int kParts = kConfig.split ? 3 : 1;
  const int rows = s.heads_q * s.seq_q;
  std::vector<float> part_o(static_cast<std::size_t>(kParts * rows * kWidth), kNan);
  std::vector<float> part_rows(static_cast<std::size_t>(2 * kParts * rows), kNan);
  if (kConfig.split) {
    a.o = view4(part_o, s.seq_q, kWidth), a.o_vectors = true, a.o_split = rows * kWidth;
    a.lse = part_rows.data(), a.lse_split = rows, a.keys_per_split = kConfig.shape.block_n;
  }
  a.order = order(s.seq_q, kConfig.shape.block_m, s.heads_q, true, kParts);
  give_lists<kConfig>(s, a, false);
  const auto run = [&](const fwd_sm80::Args& args) {
    with_captures<kConfig>(s, args, [&](const auto& all) {
      run_grid(a.order.blocks * a.order.heads * kParts, kConfig.shape.warps * 32, fwd_sm80::shared,
               [&] { fwd_sm80::kernel<kConfig>(all); });
    });
  };
  if constexpr (kConfig.slices > 1) {
    for (int i = 0; i < kConfig.slices; ++i) run(cuda::fwd_tiles::slice_of(a, i, kConfig));
  } else {
    run(a);
  }
  if (kConfig.split) {
    merge_parts<kWidth>(s, s.seq_q, kParts, part_o, part_rows, view4(got, s.seq_q, s.dim),
                        lse.data());
  }
  for (std::size_t i = 0; !kConfig.form.scaled && !kConfig.split && i < o.size(); ++i) {
    got[i] = widened<kElement>(o[i]);
  }
  expect(name, "O", error(t.o, got), bound);
  // Logits are a few units; operands of one plane are rounded to 11 bits.
  const double unit = std::max(1.0, std::fabs(static_cast<double>(s.shift)));
  expect(name, "LSE", lse_error(t.lse, lse) / unit,
         kConfig.form.scaled && kConfig.form.planes == 1 ? 3e-3 : 1e-5);
}

/// What bwd_delta makes.
struct Statistics {
  int rows_q;
  std::vector<float> lse2, delta, low;
  template <class Round>
  Statistics(const Shape& s, const Truth& t, Round round)
      : rows_q((s.seq_q + tile::kScaleRows - 1) / tile::kScaleRows * tile::kScaleRows) {
    const auto count = static_cast<std::size_t>(s.heads_q * rows_q);
    lse2.assign(count, tile::infinity());
    delta.assign(count, 0.0F);
    low.assign(count, 0.0F);
    for (int h = 0; h < s.heads_q; ++h) {
      for (int i = 0; i < s.seq_q; ++i) {
        const int row = h * s.seq_q + i, at = h * rows_q + i;
        auto lse = static_cast<float>(t.lse[row]);
        // A forward may be a unit in the last place off, more than all that is left of the logits.
        if (s.shift != 0.0F) lse = std::nextafter(lse, i % 2 == 0 ? 0.0F : lse);
        if (lse == -tile::infinity()) continue;
        lse2[at] = std::max(lse * tile::kLog2e, tile::kLowest);
        for (int d = 0; d < s.dim; ++d) {
          delta[at] += round(static_cast<float>(t.o[row * s.dim + d])) * t.d_o[row * s.dim + d];
        }
      }
    }
  }
};

bwd_sm80::Args backward_args(const Shape& s, Statistics& rows) {
  bwd_sm80::Args a;
  a.lse2 = rows.lse2.data(), a.lse2_low = rows.low.data(), a.delta = rows.delta.data();
  a.rows_q = rows.rows_q;
  fill_shape(a, s);
  a.seq_q = s.seq_q, a.seq_k = s.seq_k, a.head_dim = s.dim;
  return a;
}

constexpr Gradient at_column(Gradient config, int column) {
  config.output.column = column;
  return config;
}
constexpr Gradient with_gradients(Gradient config, bwd_sm80::Gradients gradients) {
  config.output.gradients = gradients;
  return config;
}
/// Runs a kernel in the launches of a gradient's columns.
template <Gradient kConfig, int kDim, int kColumn, class Run>
void in_slices(const bwd_sm80::Args& a, Run run) {
  constexpr Gradient kSlice = at_column(kConfig, kColumn);
  run.template operator()<kSlice>(cuda::bwd_tiles::from_column(a, kSlice));
  if constexpr (kColumn + kConfig.output.columns < kDim)
    in_slices<kConfig, kDim, kColumn + kConfig.output.columns>(a, run);
}

template <Gradient kKeys>
void run_keys(const Shape& s, const bwd_sm80::Args& a) {
  const auto run = [&]<Gradient kConfig>(const bwd_sm80::Args& args) {
    with_captures<kConfig>(s, args, [&](const auto& all) {
      run_grid(a.order.blocks * a.order.heads * a.order.splits, kConfig.shape.warps * 32,
               bwd_sm80::shared, [&] { bwd_sm80::kernel<kConfig>(all); });
    });
  };
  if constexpr (kKeys.output.columns > 0) {
    using bwd_sm80::Gradients;
    in_slices<with_gradients(kKeys, Gradients::keys), kKeys.head_dim, 0>(a, run);
    in_slices<with_gradients(kKeys, Gradients::values), kKeys.head_dim_v, 0>(a, run);
  } else {
    run.template operator()<kKeys>(a);
  }
}
template <Gradient kQueries>
void run_queries(const Shape& s, const bwd_sm80::Args& a) {
  const auto run = [&]<Gradient kConfig>(const bwd_sm80::Args& args) {
    with_captures<kConfig>(s, args, [&](const auto& all) {
      run_grid(a.order.blocks * a.order.heads * a.order.splits, kConfig.shape.warps * 32,
               bwd_dq_sm80::shared, [&] { bwd_dq_sm80::kernel<kConfig>(all); });
    });
  };
  if constexpr (kQueries.output.columns > 0) {
    in_slices<kQueries, kQueries.head_dim, 0>(a, run);
  } else {
    run.template operator()<kQueries>(a);
  }
}

/// What delta is made of: O as it is or as the input's type holds it, or P.
enum class Delta { exact_o, rounded_o, p };

/// kKeys: bwd_sm80, with dQ or, when kQueries is another config, without.
template <Gradient kKeys, Gradient kQueries, Delta kDelta = Delta::exact_o>
double check_backward(const char* name, const Shape& s, double bound, double dq_bound) {
  constexpr Element kElement = kKeys.form.element;
  const auto rounded = [](float x) { return widened<kElement>(narrow<kElement>(x)); };
  const Truth t = make_truth(s, rounded);
  const int width = kKeys.head_dim;
  // K and V as packed rows, Q and dO as the caller's: their widths differ.
  const Rows<kElement> q(t.q, s.dim, s.dim, s.seq_q), k(t.k, s.dim, width, s.seq_k);
  const Rows<kElement> v(t.v, s.dim, width, s.seq_k), d_o(t.d_o, s.dim, s.dim, s.seq_q);
  Statistics rows(s, t, [&](float o) { return kDelta == Delta::exact_o ? o : rounded(o); });
  bwd_sm80::Args a = backward_args(s, rows);
  a.q = q.view, a.k = k.view, a.v = v.view, a.d_o = d_o.view;
  a.cols_q = a.cols_o = s.dim;
  a.cols_k = a.cols_v = width;
  std::vector<Bits> dq(t.dq.size(), kPoison), dk(t.dk.size(), kPoison), dv(t.dv.size(), kPoison);
  a.dq = view4(dq, s.seq_q, s.dim), a.dk = view4(dk, s.seq_k, s.dim);
  a.dv = view4(dv, s.seq_k, s.dim);
  std::vector<float> sums(static_cast<std::size_t>(s.heads_q * rows.rows_q * width));
  a.dq_sum = sums.data();
  Pairs pairs(s, kKeys.pairs);
  a.pairs = pairs.tensors, a.sinks = sinks_of(s), a.sinks_h = 1;
  if constexpr (kDelta == Delta::p) {
    a.order = order(s.seq_q, kQueries.shape.block_m, s.heads_q, true);
    give_lists<kQueries>(s, a, false);
    with_captures<kQueries>(s, a, [&](const auto& all) {
      run_grid(a.order.blocks * a.order.heads, kQueries.shape.warps * 32, bwd_dq_sm80::shared,
               [&] { bwd_dq_sm80::refine<kQueries>(all); });
    });
  }
  a.order = order(s.seq_k, kKeys.shape.block_n, s.heads_k, false);
  give_lists<kKeys>(s, a, true);
  run_keys<kKeys>(s, a);
  const auto floats = [](const std::vector<Bits>& x) {
    std::vector<float> y;
    for (const Bits b : x) y.push_back(widened<kElement>(b));
    return y;
  };
  std::vector<float> got_dq;
  if constexpr (kKeys.output.with_dq) {
    got_dq = from_fragments(sums, s, rows.rows_q, width);
  } else {
    a.order = order(s.seq_q, kQueries.shape.block_m, s.heads_q, true);
    give_lists<kQueries>(s, a, false);
    run_queries<kQueries>(s, a);
    got_dq = floats(dq);
  }
  give_lists<kQueries>(s, a, false);
  if constexpr (kQueries.pairs.bias != tile::BiasType::none)
    check_bias_and_sinks<kQueries>(name, s, t, a, kSums);
  expect(name, "dQ", error(t.dq, got_dq), dq_bound);
  expect(name, "dK", error(t.dk, floats(dk)), bound);
  expect(name, "dV", error(t.dv, floats(dv)), bound);
  return error(t.dq, got_dq);
}

/// Sums of the parts of two passes; `into` becomes what bwd_convert makes of them.
struct PartSums {
  static constexpr int kParts = 3;
  std::vector<float> sums;
  bwd_convert::Source source;
  PartSums(int heads, int padded_rows, int padded, const tile::View4& into, const Shape& s,
           int rows) {
    sums.assign(static_cast<std::size_t>(kParts * heads * padded_rows * padded),
                std::numeric_limits<float>::quiet_NaN());
    source.sums = sums.data(), source.parts = kParts, source.to = into;
    source.heads = heads, source.rows = rows, source.padded_rows = padded_rows;
    source.cols = s.dim, source.padded = padded;
    source.items = static_cast<long long>(heads) * padded_rows / 16 * padded;
  }
};
void add_parts(PartSums& sums, float factor) {
  bwd_convert::Args a;
  a.sources[0] = sums.source, a.count = 1;
  a.sources[0].factor = factor;
  a.sources[0].vectors = a.sources[0].cols % 4 == 0;
  const auto blocks = static_cast<unsigned>((sums.source.items + bwd_convert::kThreads - 1) /
                                            bwd_convert::kThreads);
  run_grid(blocks, bwd_convert::kThreads, bwd_sm80::shared,
           [&] { bwd_convert::kernel<bwd_convert::Config{bwd_convert::Type::float32}>(a); });
}

struct FloatErrors {
  double dq, dv;
};

template <Gradient kKeys, Gradient kQueries>
FloatErrors check_float(const char* name, const Shape& s, bool refine, double bound) {
  const Truth t = make_truth(s, [](float x) { return x; });
  const int width = kKeys.head_dim;
  using Packed = Planes<kKeys.form.planes>;
  const Packed q(t.q, s.dim, width, s.seq_q, s.heads_q), k(t.k, s.dim, width, s.seq_k, s.heads_k);
  const Packed v(t.v, s.dim, width, s.seq_k, s.heads_k);
  const Packed d_o(t.d_o, s.dim, width, s.seq_q, s.heads_q);
  Statistics rows(s, t, [](float o) { return o; });
  bwd_sm80::Args a = backward_args(s, rows);
  a.q = q.view, a.k = k.view, a.v = v.view, a.d_o = d_o.view;
  a.q_scale = q.scales.data(), a.k_scale = k.scales.data(), a.v_scale = v.scales.data();
  a.do_scale = d_o.scales.data();
  a.q_scale_blocks = q.blocks, a.k_scale_blocks = k.blocks;
  a.cols_q = a.cols_k = a.cols_v = a.cols_o = width;
  std::vector<float> dq(t.dq.size(), kNan), dk(t.dk.size(), kNan), dv(t.dv.size(), kNan);
  a.dq = view4(dq, s.seq_q, s.dim), a.dk = view4(dk, s.seq_k, s.dim);
  a.dv = view4(dv, s.seq_k, s.dim);
  Pairs pairs(s, kKeys.pairs);
  a.pairs = pairs.tensors, a.sinks = sinks_of(s), a.sinks_h = 1;
  const tile::TileOrder queries = order(s.seq_q, kQueries.shape.block_m, s.heads_q, true);
  const unsigned query_blocks = queries.blocks * queries.heads;
  if (refine) {
    a.order = queries;
    give_lists<kQueries>(s, a, false);
    with_captures<kQueries>(s, a, [&](const auto& all) {
      run_grid(query_blocks, kQueries.shape.warps * 32, bwd_dq_sm80::shared,
               [&] { bwd_dq_sm80::refine<kQueries>(all); });
    });
  }
  const int parts = kKeys.split ? PartSums::kParts : 1;
  a.queries_per_split = kKeys.shape.block_m, a.keys_per_split = kQueries.shape.block_n;
  a.rows_k = (s.seq_k + kKeys.shape.block_n - 1) / kKeys.shape.block_n * kKeys.shape.block_n;
  a.rows_dq =
      (s.seq_q + kQueries.shape.block_m - 1) / kQueries.shape.block_m * kQueries.shape.block_m;
  PartSums sums_q(s.heads_q, a.rows_dq, width, a.dq, s, s.seq_q);
  PartSums sums_k(s.heads_k, a.rows_k, width, a.dk, s, s.seq_k);
  PartSums sums_v(s.heads_k, a.rows_k, width, a.dv, s, s.seq_k);
  a.dq_sum = sums_q.sums.data(), a.dk_sum = sums_k.sums.data(), a.dv_sum = sums_v.sums.data();
  a.order = order(s.seq_k, kKeys.shape.block_n, s.heads_k, false, parts);
  give_lists<kKeys>(s, a, true);
  run_keys<kKeys>(s, a);
  a.order = order(s.seq_q, kQueries.shape.block_m, s.heads_q, true, parts);
  give_lists<kQueries>(s, a, false);
  run_queries<kQueries>(s, a);
  if constexpr (kKeys.split) {
    add_parts(sums_q, s.scale);
    add_parts(sums_k, s.scale);
    add_parts(sums_v, 1.0F);
  }
  if constexpr (kQueries.pairs.bias != tile::BiasType::none)
    check_bias_and_sinks<kQueries>(name, s, t, a, std::max(bound, kSums));
  expect(name, "dQ", error(t.dq, dq), bound);
  expect(name, "dK", error(t.dk, dk), bound);
  expect(name, "dV", error(t.dv, dv), bound);
  return {error(t.dq, dq), error(t.dv, dv)};
}

}  // namespace
