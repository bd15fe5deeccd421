/// bwd_sm90 on the emulator, against the formulas in float64: one and several blocks, odd lengths,
/// GQA, masks, softcap, ALiBi, the gradient through LSE, head dims off the tile; poisoned shared
/// memory, workspace and outputs.
#include "cuda/kernels/bwd_sm90.cuh"

#include <algorithm>
#include <limits>
#include <random>

#include "wgmma.h"

namespace tilewise::bwd_sm90 {
alignas(1024) unsigned char memory[256 * 1024];
}

namespace {

using namespace tilewise;
using bwd_sm90::Args;
using bwd_sm90::Config;
using bwd_sm90::Mask;
using tile::Element;
using Bits = unsigned short;

constexpr int kFar = tile::Positions::kFar;
constexpr Bits kPoison = 0x7fff;  // NaN in both types
int failures = 0;

struct Shape {
  int batch = 1, heads_q = 2, heads_k = 1, seq_q = 150, seq_k = 200, dim = 64, dim_v = 64;
  int low = -kFar, high = kFar;  ///< row i sees keys i + low <= j < i + high
  float scale = 0.125F, softcap = 0.0F, amplitude = 1.0F;
  bool alibi = false, d_lse = false, last_first = false;
  bool given_delta = false;
  unsigned blocks = 1;
  int section_heads = 1, apart = 1, parts = 1;
};

/// (B, S, H, D) in memory; `at` is an element.
template <Element kElement>
struct Tensor {
  int heads, seq, dim;
  std::vector<Bits> data;
  Tensor(int batch, int heads_, int seq_, int dim_)
      : heads(heads_),
        seq(seq_),
        dim(dim_),
        data(std::size_t(batch) * heads_ * seq_ * dim_, kPoison) {}
  Bits& at(int b, int h, int s, int d) {
    return data[((std::size_t(b) * seq + s) * heads + h) * dim + d];
  }
  float value(int b, int h, int s, int d) { return tile::widen<kElement>(at(b, h, s, d)); }
  void randomise(std::mt19937& random, float amplitude) {
    std::normal_distribution<float> normal;
    for (Bits& x : data) x = Bits(tile::pack<kElement>(amplitude * normal(random), 0.0F));
  }
  tile::TensorMapBytes map(int batch, int rows) {
    const long row = 2L * heads * dim;
    const emulator::Box box = {reinterpret_cast<unsigned char*>(data.data()),
                               {dim, heads, seq, batch},
                               {0, 2L * dim, row, row * seq},
                               {64, 1, rows, 1},
                               4};
    tile::TensorMapBytes bytes;
    std::memcpy(&bytes, &box, sizeof(box));
    return bytes;
  }
};

/// Sums of the largest error and of the largest value of a gradient.
struct Error {
  double worst = 0.0, largest = 0.0;
  void add(double truth, float got) {
    const double off = std::fabs(truth - double(got));
    worst = std::isnan(off) ? off : std::isnan(worst) ? worst : std::max(worst, off);
    largest = std::max(largest, std::fabs(truth));
  }
  void expect(const char* name, const char* quantity, double bound) const {
    const double relative = worst / std::max(largest, 1e-3);
    const bool good = relative <= bound;
    std::printf("%-36s %-3s %.1e of %.1e%s\n", name, quantity, relative, bound,
                good ? "" : "  FAILED");
    if (!good) ++failures;
  }
};

template <Config kConfig>
struct Check {
  static constexpr Element kElement = kConfig.element;
  Shape s;
  Tensor<kElement> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse, d_lse, slopes, true_delta;
  std::vector<double> true_dq, true_dk, true_dv;

  explicit Check(const Shape& shape)
      : s(shape),
        q(s.batch, s.heads_q, s.seq_q, s.dim),
        k(s.batch, s.heads_k, s.seq_k, s.dim),
        v(s.batch, s.heads_k, s.seq_k, s.dim_v),
        o(s.batch, s.heads_q, s.seq_q, s.dim_v),
        d_o(o),
        dq(q),
        dk(k),
        dv(v) {
    std::mt19937 random(7);
    q.randomise(random, s.amplitude);
    k.randomise(random, s.amplitude);
    v.randomise(random, 1.0F);
    d_o.randomise(random, 1.0F);
    for (int i = 0; i < s.batch * s.heads_q * s.seq_q; ++i)
      d_lse.push_back(0.01F * float(i % 200 - 100));
    for (int h = 0; h < s.heads_q; ++h) slopes.push_back(0.02F * float(h + 1));
    lse.assign(d_lse.size(), 0.0F);
    true_delta = lse;
    true_dq.assign(q.data.size(), 0.0);
    true_dk.assign(k.data.size(), 0.0);
    true_dv.assign(v.data.size(), 0.0);
    for (int b = 0; b < s.batch; ++b) {
      for (int h = 0; h < s.heads_q; ++h) {
        for (int i = 0; i < s.seq_q; ++i) add_row(b, h, i);
      }
    }
  }

  /// One query row: (F1) to (F11), (B1) to (B9).
  void add_row(int b, int h, int i) {
    const int g = h / (s.heads_q / s.heads_k);
    const int begin = std::max(0, i + s.low), end = std::max(begin, std::min(s.seq_k, i + s.high));
    std::vector<double> p(end - begin), gate(end - begin, 1.0);
    double m = -1e300, l = 0.0;
    for (int j = begin; j < end; ++j) {
      double x = 0.0;
      for (int d = 0; d < s.dim; ++d) x += double(q.value(b, h, i, d)) * k.value(b, g, j, d);
      x *= s.scale;
      if (s.softcap != 0.0F) {
        const double t = std::tanh(x / s.softcap);
        gate[j - begin] = 1.0 - t * t;
        x = s.softcap * t;
      }
      if (s.alibi) x -= slopes[h] * std::fabs(double(i + s.seq_k - s.seq_q - j));
      p[j - begin] = x;
      m = std::max(m, x);
    }
    for (double& x : p) l += x = std::exp(x - m);
    const std::size_t row = (std::size_t(b) * s.heads_q + h) * s.seq_q + i;
    lse[row] = p.empty() ? -tile::infinity() : float(m + std::log(l));
    double delta = 0.0;
    for (int d = 0; d < s.dim_v; ++d) {
      double sum = 0.0;
      for (int j = begin; j < end; ++j) sum += p[j - begin] / l * v.value(b, g, j, d);
      o.at(b, h, i, d) = Bits(tile::pack<kElement>(float(sum), 0.0F));
      delta += sum * d_o.value(b, h, i, d);
    }
    if (s.d_lse) delta -= d_lse[row];
    true_delta[row] = float(delta);
    for (int j = begin; j < end; ++j) {
      double dp = 0.0;
      for (int d = 0; d < s.dim_v; ++d) {
        dp += double(d_o.value(b, h, i, d)) * v.value(b, g, j, d);
        true_dv[&v.at(b, g, j, d) - v.data.data()] += p[j - begin] / l * d_o.value(b, h, i, d);
      }
      const double ds = p[j - begin] / l * (dp - delta) * gate[j - begin] * s.scale;
      for (int d = 0; d < s.dim; ++d) {
        true_dq[&q.at(b, h, i, d) - q.data.data()] += ds * k.value(b, g, j, d);
        true_dk[&k.at(b, g, j, d) - k.data.data()] += ds * q.value(b, h, i, d);
      }
    }
  }

  void run(const char* name, double bound) {
    constexpr int kM = kConfig.block_m, kChunk = kConfig.chunk_rows;
    Args a;
    a.q = q.map(s.batch, kM), a.o = o.map(s.batch, kM), a.d_o = d_o.map(s.batch, kM);
    a.k = k.map(s.batch, kConfig.block_n), a.v = v.map(s.batch, kConfig.block_n);
    for (auto* t : {&dq, &dk, &dv}) std::fill(t->data.begin(), t->data.end(), kPoison);
    a.dq = dq.map(s.batch, kChunk), a.dk = dk.map(s.batch, kConfig.split ? kChunk : 64);
    a.dv = dv.map(s.batch, kConfig.split ? kChunk : 64);
    a.heads_q = s.heads_q, a.heads_k = s.heads_k, a.group = s.heads_q / s.heads_k;
    a.seq_q = s.seq_q, a.seq_k = s.seq_k;
    a.rows_q = (s.seq_q + kChunk - 1) / kChunk * kChunk;
    const int key_blocks = (s.seq_k + kConfig.block_n - 1) / kConfig.block_n;
    a.parts = s.parts;
    a.rows_k = (s.seq_k + kChunk - 1) / kChunk * kChunk;  // chunks are whole key blocks in a split
    a.jobs =
        2 * s.batch * s.heads_q * (a.rows_q / kChunk) +
        s.batch * s.heads_k * (key_blocks * s.parts + (kConfig.split ? 2 * a.rows_k / kChunk : 0));
    a.scale = s.scale, a.scale_log2 = s.scale * tile::kLog2e;
    a.offset_factor = kConfig.fold_lse ? -1.0F / s.scale : -tile::kLog2e;
    if (s.softcap != 0.0F) a.scale_cap = s.scale / s.softcap, a.cap_log2 = s.softcap * tile::kLog2e;
    if (s.alibi) a.alibi = slopes.data(), a.alibi_h = 1;
    a.low = s.low, a.high = s.high;
    a.order = {key_blocks, s.batch * s.heads_k, 1, s.section_heads, 1};
    a.lead = a.lag = s.apart;
    a.last_first = s.last_first;
    a.lse_in = lse.data(), a.lse_b = s.heads_q * s.seq_q, a.lse_h = s.seq_q, a.lse_s = 1;
    if (s.d_lse) a.d_lse = d_lse.data(), a.d_lse_b = a.lse_b, a.d_lse_h = s.seq_q, a.d_lse_s = 1;
    if (s.given_delta) {
      a.delta_in = true_delta.data(), a.delta_rows = s.seq_q;
      std::fill(o.data.begin(), o.data.end(), kPoison);
    }
    const std::size_t rows = std::size_t(s.batch) * s.heads_q * a.rows_q;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> offset(rows, nan), delta(rows, nan), sums(rows * kConfig.columns_dq(), nan);
    a.offset = offset.data(), a.delta = delta.data(), a.dq_sum = sums.data();
    const std::size_t key_sums = std::size_t(s.batch) * s.heads_k * a.rows_k * kConfig.columns_dq();
    std::vector<float> dk_sums(key_sums, 0.0F), dv_sums(key_sums, 0.0F);
    a.dk_sum = dk_sums.data(), a.dv_sum = dv_sums.data();
    std::vector<unsigned> counters(1 + 2 * s.batch * s.heads_k + rows / kM * 8, 0);
    a.next_job = counters.data(), a.prepared = a.next_job + 1;
    a.finished = a.prepared + s.batch * s.heads_k, a.turns = a.finished + s.batch * s.heads_k;

    std::vector<std::vector<unsigned char>> shared(s.blocks);
    std::vector<emulator::Block> blocks(s.blocks);
    for (unsigned i = 0; i < s.blocks; ++i) {
      shared[i].assign(256 * 1024, 0xff);
      blocks[i].index = i, blocks[i].threads = kConfig.threads(),
      blocks[i].shared = shared[i].data();
    }
    emulator::shared_name = bwd_sm90::memory;
    emulator::run_together(blocks, [&] { bwd_sm90::kernel<kConfig>(a); });
    compare(name, "dQ", dq, true_dq, bound);
    compare(name, "dK", dk, true_dk, bound);
    compare(name, "dV", dv, true_dv, bound);
  }
  void compare(const char* name, const char* quantity, Tensor<kElement>& got,
               const std::vector<double>& truth, double bound) {
    Error error;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      error.add(truth[i], tile::widen<kElement>(got.data[i]));
    }
    error.expect(name, quantity, bound);
  }
};

template <Config kConfig>
void check(const char* name, const Shape& shape, double bound) {
  Check<kConfig>(shape).run(name, bound);
}

constexpr Config k64 = {.head_dim = 64,
                        .head_dim_v = 64,
                        .block_m = 128,
                        .k_stages = 2,
                        .fold_lse = true,
                        .late_dq = true,
                        .v_registers = true};
constexpr Config k128 = {.block_m = 64, .k_stages = 2, .fold_lse = true, .late_dq = true};

constexpr Config k256 = {.head_dim = 256,
                         .head_dim_v = 256,
                         .block_m = 64,
                         .block_n = 64,
                         .chunk_rows = 64,
                         .fold_lse = true};

constexpr Config masked(Config c, Mask mask) {
  c.mask = mask;
  return c;
}
constexpr Config plain(Config c) {
  c.fold_lse = c.late_dq = c.v_registers = false;
  c.k_stages = 1;
  return c;
}
/// With softcap or ALiBi the scores cannot start from -LSE; at dim 64 the rest stays.
constexpr Config with_softcap(Config c) {
  c.fold_lse = false;
  c.modified = c.softcap = true;
  return c;
}
constexpr Config with_alibi(Config c) {
  c.fold_lse = false;
  c.modified = c.alibi = true;
  return c;
}
constexpr Config from_registers(Config c) {
  c.bulk_dq = false;
  c.buffers = 2;
  return c;
}
constexpr Config exact(Config c) {
  c.block_m = 64;
  c.late_dq = c.v_registers = false;
  c.exact = true;
  return c;
}
constexpr Config split(Config c, int chunk_rows) {
  c.split = true;
  c.chunk_rows = chunk_rows;
  return c;
}
constexpr Config deterministic(Config c) {
  c.deterministic = true;
  return c;
}
constexpr Config half(Config c) {
  c.element = Element::fp16;
  return c;
}
constexpr Config in_turn(Config c) {
  c.dq_in_turn = true;
  return c;
}
constexpr Config dims(Config c, int dim, int dim_v) {
  c.head_dim = dim, c.head_dim_v = dim_v;
  return c;
}

}  // namespace

int main() {
  constexpr double kBf16 = 1.2e-2, kFp16 = 1.5e-3;
  check<k64>("dim 64", {}, kBf16);
  check<masked(k64, Mask::right)>("dim 64, causal, 3 blocks",
                                  {.seq_q = 300, .seq_k = 300, .high = 1, .blocks = 3}, kBf16);
  check<masked(k64, Mask::right)>("dim 64, rows that see nothing",
                                  {.seq_q = 300, .seq_k = 170, .high = 170 - 300 + 1}, kBf16);
  check<masked(k64, Mask::both)>("dim 64, window",
                                 {.seq_q = 400, .seq_k = 400, .low = -100, .high = 51}, kBf16);
  check<with_softcap(masked(k64, Mask::right))>(
      "dim 64, softcap", {.high = 51, .softcap = 2.0F, .d_lse = true}, kBf16);
  check<with_alibi(masked(k64, Mask::right))>("dim 64, ALiBi", {.high = 51, .alibi = true}, kBf16);
  check<deterministic(masked(k64, Mask::right))>("dim 64, deterministic, 3 blocks",
                                                 {.batch = 2,
                                                  .heads_q = 4,
                                                  .heads_k = 2,
                                                  .seq_q = 300,
                                                  .seq_k = 300,
                                                  .high = 1,
                                                  .last_first = true,
                                                  .blocks = 3,
                                                  .section_heads = 2},
                                                 kBf16);
  check<half(k64)>("dim 40, fp16, dLSE, batch 2",
                   {.batch = 2,
                    .heads_q = 4,
                    .heads_k = 2,
                    .seq_q = 70,
                    .dim = 40,
                    .dim_v = 40,
                    .d_lse = true,
                    .blocks = 2},
                   kFp16);
  check<k64>("dim 64, one query", {.seq_q = 1, .seq_k = 300}, kBf16);
  check<k128>("dim 128, 2 blocks",
              {.batch = 2,
               .heads_q = 4,
               .heads_k = 2,
               .dim = 128,
               .dim_v = 128,
               .blocks = 2,
               .section_heads = 2,
               .apart = 2},
              kBf16);
  check<masked(k128, Mask::right)>(
      "dim 128, causal",
      {.seq_q = 200, .seq_k = 300, .dim = 128, .dim_v = 128, .high = 101, .d_lse = true}, kBf16);
  check<masked(k128, Mask::both)>(
      "dim 128, window",
      {.seq_q = 300, .seq_k = 300, .dim = 128, .dim_v = 128, .low = -60, .high = 1}, kBf16);
  check<plain(with_softcap(masked(k128, Mask::right)))>(
      "dim 128, softcap", {.dim = 128, .dim_v = 128, .high = 51, .softcap = 2.0F}, kBf16);
  check<plain(with_alibi(k128))>("dim 128, ALiBi", {.dim = 128, .dim_v = 128, .alibi = true},
                                 kBf16);
  check<deterministic(k128)>(
      "dim 128, deterministic, 3 blocks",
      {.heads_q = 4, .heads_k = 2, .seq_k = 400, .dim = 128, .dim_v = 128, .blocks = 3}, kBf16);
  check<dims(masked(k128, Mask::right), 96, 96)>("dim 96, causal",
                                                 {.dim = 96, .dim_v = 96, .high = 51}, kBf16);
  check<dims(k128, 64, 128)>("dims 64, 128", {.dim_v = 128}, kBf16);
  check<dims(k128, 128, 64)>("dims 128, 64", {.dim = 128}, kBf16);
  check<dims(k128, 96, 64)>("dims 72, 40", {.dim = 72, .dim_v = 40}, kBf16);
  check<split(masked(k64, Mask::right), 256)>("dim 64, causal, 3 parts, chunks of 256",
                                              {.heads_q = 4,
                                               .heads_k = 2,
                                               .seq_q = 700,
                                               .seq_k = 600,
                                               .high = -100 + 1,
                                               .blocks = 3,
                                               .section_heads = 2,
                                               .parts = 3},
                                              kBf16);
  check<split(k128, 128)>(
      "dim 128, 2 parts",
      {.batch = 2, .seq_q = 200, .seq_k = 300, .dim = 128, .dim_v = 128, .blocks = 2, .parts = 2},
      kBf16);
  check<split(dims(k128, 96, 96), 128)>("dim 96, 2 parts",
                                        {.dim = 96, .dim_v = 96, .d_lse = true, .parts = 2}, kBf16);
  check<k256>("dim 256, 2 blocks",
              {.batch = 2,
               .heads_q = 4,
               .heads_k = 2,
               .seq_q = 150,
               .seq_k = 140,
               .dim = 256,
               .dim_v = 256,
               .blocks = 2,
               .section_heads = 2,
               .apart = 2},
              kBf16);
  check<masked(k256, Mask::right)>(
      "dim 256, causal, rows that see nothing",
      {.seq_q = 200, .seq_k = 130, .dim = 256, .dim_v = 256, .high = 130 - 200 + 1, .d_lse = true},
      kBf16);
  check<masked(k256, Mask::right)>(
      "dim 256, keys that nobody sees",
      {.seq_q = 70, .seq_k = 300, .dim = 256, .dim_v = 256, .high = 1, .blocks = 2}, kBf16);
  check<deterministic(masked(k256, Mask::both))>("dim 256, window, deterministic, 3 blocks",
                                                 {.heads_q = 4,
                                                  .heads_k = 2,
                                                  .seq_q = 200,
                                                  .seq_k = 200,
                                                  .dim = 256,
                                                  .dim_v = 256,
                                                  .low = -60,
                                                  .high = 31,
                                                  .last_first = true,
                                                  .blocks = 3},
                                                 kBf16);
  check<with_softcap(half(k256))>(
      "dim 200, softcap, fp16",
      {.seq_q = 90, .seq_k = 100, .dim = 200, .dim_v = 200, .softcap = 2.0F}, kFp16);
  check<dims(with_alibi(k256), 192, 128)>(
      "dims 192, 128, ALiBi", {.dim = 192, .dim_v = 128, .alibi = true, .blocks = 2}, kBf16);
  check<dims(k256, 64, 192)>("dims 64, 136", {.dim = 64, .dim_v = 136, .amplitude = 3.0F}, kBf16);
  check<from_registers(masked(k256, Mask::right))>(
      "dim 256, dQ from registers",
      {.seq_q = 200, .seq_k = 200, .dim = 256, .dim_v = 256, .high = 1, .blocks = 2}, kBf16);
  constexpr double kExact = 4e-3;  // half a bf16 step of the result, P rounded for dV
  check<exact(k64)>("dim 64, exact dS, 2 blocks", {.heads_q = 2, .heads_k = 2, .blocks = 2},
                    kExact);
  check<exact(masked(k128, Mask::right))>(
      "dim 128, exact dS, causal, GQA",
      {.batch = 2, .heads_q = 4, .heads_k = 2, .dim = 128, .dim_v = 128, .high = 51, .blocks = 3},
      kExact);
  check<exact(deterministic(masked(k64, Mask::both)))>("dim 40, exact dS, window, deterministic",
                                                       {.heads_q = 4,
                                                        .heads_k = 2,
                                                        .seq_q = 300,
                                                        .seq_k = 300,
                                                        .dim = 40,
                                                        .dim_v = 40,
                                                        .low = -60,
                                                        .high = 31,
                                                        .last_first = true,
                                                        .blocks = 3},
                                                       kExact);
  check<exact(k64)>("dim 64, exact dS, 3 keys, delta given",
                    {.seq_q = 150, .seq_k = 3, .d_lse = true, .given_delta = true, .blocks = 2},
                    kExact);
  check<exact(with_softcap(half(k64)))>("dim 64, exact dS, softcap, fp16",
                                        {.softcap = 2.0F, .d_lse = true}, 6e-4);
  check<exact(deterministic(masked(k256, Mask::right)))>(
      "dim 256, exact dS, causal, deterministic, 2 blocks",
      {.seq_q = 150,
       .seq_k = 150,
       .dim = 256,
       .dim_v = 256,
       .high = 1,
       .last_first = true,
       .blocks = 2},
      kExact);
  check<exact(with_softcap(dims(k256, 192, 128)))>(
      "dims 192, 128, exact dS, softcap", {.dim = 192, .dim_v = 128, .softcap = 2.0F}, kExact);
  check<dims(k256, 192, 192)>("dim 192", {.dim = 192, .dim_v = 192}, kBf16);
  check<masked(k64, Mask::right)>(
      "dim 64, causal, GQA",
      {.heads_q = 4, .heads_k = 2, .seq_q = 500, .seq_k = 300, .high = 1, .blocks = 3}, kBf16);
  check<with_softcap(masked(k64, Mask::both))>(
      "dim 64, window, softcap",
      {.seq_q = 300, .seq_k = 300, .low = -100, .high = 51, .softcap = 2.0F}, kBf16);
  check<with_alibi(masked(half(k64), Mask::right))>(
      "dim 64, ALiBi, fp16", {.seq_q = 300, .high = 51, .alibi = true}, kFp16);
  check<deterministic(masked(k128, Mask::right))>("dim 128, causal, deterministic",
                                                  {.seq_q = 300,
                                                   .seq_k = 300,
                                                   .dim = 128,
                                                   .dim_v = 128,
                                                   .high = 1,
                                                   .last_first = true,
                                                   .blocks = 3},
                                                  kBf16);
  check<in_turn(deterministic(masked(k256, Mask::right)))>("dim 256, dQ in turn, deterministic",
                                                           {.heads_q = 4,
                                                            .heads_k = 2,
                                                            .seq_q = 150,
                                                            .seq_k = 150,
                                                            .dim = 256,
                                                            .dim_v = 256,
                                                            .high = 1,
                                                            .last_first = true,
                                                            .blocks = 3},
                                                           kBf16);
  check<in_turn(from_registers(dims(k256, 192, 256)))>(
      "dims 192, 256, dQ in turn, from registers", {.dim = 192, .dim_v = 256, .blocks = 2}, kBf16);
  check<in_turn(exact(k256))>("dim 256, dQ in turn, exact dS",
                              {.seq_q = 150, .dim = 256, .dim_v = 256}, kExact);
  return failures == 0 ? 0 : 1;
}
