/// mla_sm90 on the emulator, and combine behind it, against the formulas in float64: pages of any
/// order, lengths of 0 and 1, several tiles of rows, parts, causal queries, windows, sinks; what no
/// query may see is NaN, pages that nothing names lie out of bounds.
#include <string>

#include "cuda/kernels/mla_sm90/choice.h"
#include "cuda/kernels/mla_sm90/kernel.cuh"
#include "decode_sm90_check.h"
#include "wgmma.h"

namespace tilewise::mla_sm90 {
alignas(1024) unsigned char memory[1024];  // names the block's own shared memory
}

namespace {

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
  MadeCase made(c, true);
  if (const std::string why = cuda::mla_refusal(made.p, h200()); !why.empty())
    return refused(c, why);
  const cuda::MlaChoice choice = cuda::mla_with_parts(made.p, c.part, h200());
  mla_sm90::Args args;
  cuda::mla_fill(args, made.p, choice, set_map);
  Parts parts(args);
  run_kernel(choice.config, args);
  if (args.most_parts > 1) {
    const combine::Args merged = merged_of(c, args);
    c.lengths ? merge<true>(merged) : merge<false>(merged);
  }
  report(c, made, made.k, args.most_parts, parts.counted());
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
