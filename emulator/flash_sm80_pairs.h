/// Gradients of bias and sinks on the emulator. The kernels and the truth are included before.
#pragma once

#include <array>

namespace {

/// Which axes of (Hq, Sq, Sk) a bias has; along the others it broadcasts.
using Axes = std::array<bool, 3>;

/// A gradient of that shape by the formulas.
std::vector<double> summed(const Shape& s, const std::vector<double>& dlogits, const Axes& axes) {
  const int rows = axes[1] ? s.seq_q : 1, keys = axes[2] ? s.seq_k : 1;
  std::vector<double> sums(static_cast<std::size_t>((axes[0] ? s.heads_q : 1) * rows * keys));
  for (int h = 0; h < s.heads_q; ++h) {
    for (int i = 0; i < s.seq_q; ++i) {
      for (int j = 0; j < s.seq_k; ++j) {
        const int head = axes[0] ? h : 0, row = axes[1] ? i : 0, key = axes[2] ? j : 0;
        sums[(head * rows + row) * keys + key] += dlogits[(h * s.seq_q + i) * s.seq_k + j];
      }
    }
  }
  return sums;
}

/// What bwd_convert makes of sums in fragment order.
void convert_parts(const bwd_dbias_sm80::Args& a, int rows, int keys, int parts) {
  bwd_convert::Args args;
  args.count = 1;
  bwd_convert::Source& source = args.sources[0];
  source.sums = a.sums, source.parts = parts, source.to = a.dbias;
  source.heads = a.axes.heads, source.rows = rows, source.cols = keys;
  source.padded_rows = a.padded_rows, source.padded = a.padded_keys;
  source.items = static_cast<long long>(a.axes.heads) * a.padded_rows / 16 * a.padded_keys;
  const auto blocks =
      static_cast<unsigned>((source.items + bwd_convert::kThreads - 1) / bwd_convert::kThreads);
  run_grid(blocks, bwd_convert::kThreads, bwd_dbias_sm80::shared,
           [&] { bwd_convert::kernel<bwd_convert::Config{bwd_convert::Type::float32}>(args); });
}

template <bwd_sm80::Config kConfig>
std::vector<float> emulated_dbias(const Shape& s, const bwd_sm80::Args& pass, const Axes& axes,
                                  int parts) {
  const int rows = axes[1] ? s.seq_q : 1, keys = axes[2] ? s.seq_k : 1;
  std::vector<float> dbias(static_cast<std::size_t>((axes[0] ? s.heads_q : 1) * rows * keys),
                           std::numeric_limits<float>::quiet_NaN());
  bwd_dbias_sm80::Args a;
  a.pass = pass;
  a.dbias = {dbias.data(), 0, axes[0] ? rows * keys : 0, axes[1] ? keys : 0, axes[2] ? 1 : 0};
  a.batch = 1;
  const auto blocks = [](int count, int block) { return (count + block - 1) / block; };
  if (axes[0]) a.axes.heads = s.heads_q;
  if (axes[1]) a.axes.rows = blocks(s.seq_q, kConfig.shape.block_m);
  if (axes[2]) a.axes.keys = blocks(s.seq_k, kConfig.shape.block_n);
  a.parts = parts, a.padded_rows = blocks(rows, 16) * 16, a.padded_keys = blocks(keys, 8) * 8;
  std::vector<float> sums(
      static_cast<std::size_t>(parts * a.axes.heads * a.padded_rows * a.padded_keys),
      std::numeric_limits<float>::quiet_NaN());
  a.sums = sums.data();
  // In one part the kernel writes the bias's own type, which may be half as wide.
  std::vector<Bits> halves(dbias.size(), kPoison);
  const bool is_half = parts == 1 && kConfig.pairs.bias != tile::BiasType::float32;
  if (is_half) a.dbias.data = halves.data();
  run_grid(static_cast<unsigned>(a.axes.heads * a.axes.rows * a.axes.keys * parts),
           kConfig.shape.warps * 32, bwd_dbias_sm80::shared,
           [&] { bwd_dbias_sm80::kernel<kConfig>(a); });
  if (parts > 1) convert_parts(a, rows, keys, parts);
  for (std::size_t i = 0; is_half && i < halves.size(); ++i) {
    dbias[i] = kConfig.pairs.bias == tile::BiasType::bf16 ? widened<Element::bf16>(halves[i])
                                                          : widened<Element::fp16>(halves[i]);
  }
  return dbias;
}

/// How far a gradient in the bias's type is rounded, relative to the largest.
double bias_rounding(tile::BiasType type) {
  return type == tile::BiasType::bf16 ? 0x1p-8 : type == tile::BiasType::fp16 ? 0x1p-11 : 0.0;
}
/// Parts of the next gradient of a bias: one and three by turns.
int dbias_parts = 1;

/// Errors relative to the largest value: sums over whole rows nearly cancel.
template <bwd_sm80::Config kConfig>
void check_bias_and_sinks(const char* name, const Shape& s, const Truth& t,
                          const bwd_sm80::Args& pass, double bound) {
  double worst = 0.0;
  dbias_parts = 4 - dbias_parts;  // other than in the call before
  for (const Axes& axes :
       {Axes{true, true, true}, Axes{false, true, true}, Axes{true, false, true},
        Axes{true, true, false}, Axes{true, false, false}, Axes{false, true, false},
        Axes{false, false, true}, Axes{false, false, false}}) {
    dbias_parts = 4 - dbias_parts;
    if (pass.sinks == nullptr && !axes[2]) continue;  // 0 but for rounding
    const std::vector<float> got = emulated_dbias<kConfig>(s, pass, axes, dbias_parts);
    const double off = error(summed(s, t.dlogits, axes), got);
    const double rounding = dbias_parts == 1 ? bias_rounding(kConfig.pairs.bias) : 0.0;
    const double share = off / (bound + rounding);
    worst = std::isnan(share) || std::isnan(worst) ? NAN : std::max(worst, share);
  }
  expect(name, "dbias", worst * bound, bound);
  if (pass.sinks == nullptr) return;
  std::vector<float> dsinks(static_cast<std::size_t>(s.heads_q), tile::infinity());
  bwd_sinks::Args a;
  a.lse2 = pass.lse2, a.lse2_low = pass.lse2_low, a.delta = pass.delta;
  a.sinks = pass.sinks, a.sinks_h = 1, a.d_sinks = dsinks.data(), a.d_sinks_h = 1;
  a.batch = 1, a.heads = s.heads_q, a.seq_q = s.seq_q, a.rows_q = pass.rows_q;
  run_grid(static_cast<unsigned>(s.heads_q), bwd_sinks::kThreads, bwd_sinks::shared,
           [&] { bwd_sinks::kernel<bwd_sinks::Config{.low = kConfig.keeps_low()}>(a); });
  expect(name, "dsink", error(t.dsinks, dsinks), bound);
}

}  // namespace
