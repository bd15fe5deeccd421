/// mla_sm90 on the emulator, and combine behind it, against the formulas in float64: pages of any
/// order, lengths of 0 and 1, several tiles of rows, parts, causal queries, windows, sinks; what no
/// query may see is NaN, pages that nothing names lie out of bounds.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/mla_sm90/choice.h"
#include "cuda/kernels/mla_sm90/kernel.cuh"
#include "cuda/kernels/rows/combine.cuh"
#include "decode_sm90_truth.h"
#include "wgmma.h"

namespace tilewise::mla_sm90 {
alignas(1024) unsigned char memory[1024];  // names the block's own shared memory
}
namespace tilewise::combine {
alignas(16) unsigned char memory[16];
}

namespace {

int failures = 0;

void run_kernel(const mla_sm90::Config& config, const mla_sm90::Args& args) {
  const auto run = [&](auto kernel) {
    emulator::run_grid(mla_sm90::memory, 2, 128 * (1 + mla_sm90::kWarpgroups),
                       [&] { kernel(args); });
  };
  if (config.few && config.paged) {
    run([](const mla_sm90::Args& a) {
      mla_sm90::kernel<mla_sm90::Config{.paged = true, .few = true}>(a);
    });
  } else if (config.few) {
    run([](const mla_sm90::Args& a) { mla_sm90::kernel<mla_sm90::Config{.few = true}>(a); });
  } else if (config.paged) {
    run([](const mla_sm90::Args& a) { mla_sm90::kernel<mla_sm90::Config{.paged = true}>(a); });
  } else {
    run([](const mla_sm90::Args& a) { mla_sm90::kernel<mla_sm90::Config{}>(a); });
  }
}

template <bool kOwnParts>
void merge(const combine::Args& args) {
  constexpr long kRows = combine::kThreads / combine::lanes(mla_sm90::kHeadDimV);
  emulator::run_grid(
      combine::memory, static_cast<unsigned>((args.rows + kRows - 1) / kRows), combine::kThreads,
      [&] {
        combine::kernel<combine::Config{combine::Output::bf16, mla_sm90::kHeadDimV, kOwnParts}>(
            args);
      });
}

Case sized(Case c) {
  c.dim = mla_sm90::kHeadDim;
  c.dim_v = mla_sm90::kHeadDimV;
  return c;
}

void check(const Case& c) {
  std::mt19937 random(5);
  Problem p = make_problem(c);
  const int batch = static_cast<int>(p.batch);
  int pages = 0;
  Keys keys = make_keys(c, p, pages, random);
  const int rows = c.page > 0 ? c.page : static_cast<int>(p.seq_k);
  Rows q(batch, c.heads_q, c.queries, c.dim), o(batch, c.heads_q, c.queries, c.dim_v);
  Rows k(pages, c.heads_k, rows, c.dim);
  for (int b = 0; b < batch; ++b) {
    for (int i = 0; i < c.queries; ++i) q.fill(b, i, random);
    // What no query of the entry sees stays NaN.
    const KeyRange first = p.visible_keys({0, c.queries, 0, c.keys[b]}, 0);
    for (int j = static_cast<int>(first.begin); j < c.keys[b]; ++j) {
      const Place at = keys.at(b, j);
      k.fill(at.batch, at.row, random);
    }
  }
  std::vector<float> lse(static_cast<std::size_t>(p.query_rows()), NAN), sinks;
  for (int h = 0; h < c.heads_q; ++h) sinks.push_back(sink(h));
  std::vector<int> lengths = c.keys;
  p.q = q.tensor(batch), p.k = p.v = k.tensor(pages), p.o = o.tensor(batch);
  p.v.sizes[3] = c.dim_v;
  p.lse = Tensor::contiguous(lse.data(), DType::float32, {batch, c.heads_q, c.queries}, p.device);
  if (c.lengths)
    p.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {batch}, p.device);
  if (c.page > 0) {
    p.block_table =
        Tensor::contiguous(keys.table.data(), DType::int32, {batch, keys.columns}, p.device);
  }
  if (c.sinks) p.sinks = Tensor::contiguous(sinks.data(), DType::float32, {c.heads_q}, p.device);

  Hardware machine;
  machine.arch = 90;
  machine.multiprocessors = 132;
  machine.bandwidth_gbps = 4000.0;
  if (const std::string why = cuda::mla_refusal(p, machine); !why.empty()) {
    std::printf("FAILED %s: %s\n", c.name, why.c_str());
    ++failures;
    return;
  }
  const cuda::MlaChoice choice = cuda::mla_with_parts(p, c.part, machine);
  mla_sm90::Args args;
  cuda::mla_fill(args, p, choice, set_map);
  constexpr unsigned long long kAny = 0x123456789abcdefULL;
  unsigned long long word = kAny;
  args.counter = {&word, 77};
  std::vector<float> o_part(
      static_cast<std::size_t>(args.most_parts * args.part_rows * args.part_columns), NAN);
  std::vector<float> m_part(static_cast<std::size_t>(2 * args.most_parts * args.part_rows), NAN);
  args.o_part = o_part.data();
  args.m_part = m_part.data();
  run_kernel(choice.config, args);
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
    c.lengths ? merge<true>(merged) : merge<false>(merged);
  }
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < c.heads_q; ++h) {
      for (int i = 0; i < c.queries; ++i) {
        compare(c, p, keys, b, h, i, q, k, k, o.at(b, h, i),
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
}

const Case kCases[] = {
    {.name = "pages of 16, parts, lengths of 0 and 1",
     .heads_q = 16,
     .heads_k = 1,
     .queries = 1,
     .keys = {300, 0, 1, 64, 65, 130},
     .page = 16,
     .part = 128},
    {.name = "side by side, three tiles of rows, causal",
     .heads_q = 50,
     .heads_k = 1,
     .queries = 3,
     .keys = {200, 70},
     .causal = Causal::bottom_right,
     .part = 128},
    {.name = "no lengths, one part, key heads",
     .heads_q = 6,
     .heads_k = 2,
     .queries = 2,
     .keys = {190, 190},
     .lengths = false,
     .causal = Causal::bottom_right,
     .part = 192},
    {.name = "pages of 64, window, sinks, 20 rows",
     .heads_q = 10,
     .heads_k = 1,
     .queries = 2,
     .keys = {301, 20, 129},
     .page = 64,
     .causal = Causal::bottom_right,
     .left = 90,
     .sinks = true,
     .part = 64},
    {.name = "16 rows, one part, window, sinks",
     .heads_q = 8,
     .heads_k = 1,
     .queries = 2,
     .keys = {301, 20, 0},
     .causal = Causal::bottom_right,
     .left = 90,
     .sinks = true,
     .part = 1 << 20},
};

}  // namespace

int main() {
  for (const Case& c : kCases) check(sized(c));
  return failures == 0 ? 0 : 1;
}
