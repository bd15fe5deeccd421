/// mla_sm90 on the emulator, and combine behind it, against the formulas in float64: pages of any
/// order, lengths of 0 and 1, several tiles of rows, parts, causal queries, windows, sinks; what no
/// query may see is NaN, pages that nothing names lie out of bounds.
#include <string>

#include "cuda/kernels/mla_sm90/choice.h"
#include "cuda/kernels/mla_sm90/kernel.cuh"
#include "decode_sm90_lines.h"
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

}  // namespace

int main(int, char** argv) {
  for_each_case(argv[1], check);
  return failures == 0 ? 0 : 1;
}
