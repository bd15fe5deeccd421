/// decode_sm90 on the emulator, and combine behind it, against the formulas in float64: pages of
/// any size and order, lengths of 0 and 1, windows that leave pages out, causal queries, softcap,
/// ALiBi, sinks, Dv beside D; what no query may see is NaN, pages that nothing names lie out of
/// bounds.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/kernels/decode_sm90/fill.h"
#include "cuda/kernels/decode_sm90/kernel.cuh"
#include "cuda/kernels/rows/combine.cuh"
#include "decode_sm90_cases.h"

namespace tilewise::decode_sm90 {
alignas(1024) unsigned char memory[1024];  // names the block's own shared memory
}
namespace tilewise::combine {
alignas(16) unsigned char memory[16];
}

namespace {

int failures = 0;

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
  TreeWords tree(batch, c.nodes());
  tree.give(p);
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
