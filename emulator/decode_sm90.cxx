/// decode_sm90 on the emulator, and combine behind it, against the formulas in float64: pages of
/// any size and order, lengths of 0 and 1, windows that leave pages out, causal queries, softcap,
/// ALiBi, sinks, Dv beside D; what no query may see is NaN, pages that nothing names lie out of
/// bounds.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/kernels/decode_sm90/fill.h"
#include "cuda/kernels/decode_sm90/kernel.cuh"
#include "decode_sm90_drawn.h"
#include "decode_sm90_lines.h"

namespace tilewise::decode_sm90 {
alignas(1024) unsigned char memory[1024];  // names the block's own shared memory
}

namespace {

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
  MadeCase made(c, false);
  if (const std::string why = cuda::decode_refusal(made.p, h200()); !why.empty()) {
    refused(c, why);
    return true;
  }
  const cuda::DecodeChoice choice = cuda::decode_with_parts(made.p, c.part, h200());
  const auto* known = std::find(std::begin(kConfigs), std::end(kConfigs), choice.config);
  if (drawn && known == std::end(kConfigs)) return false;
  decode_sm90::Args args;
  cuda::decode_fill(args, made.p, choice, set_map);
  Parts parts(args);
  run_kernel<kConfigs>(choice.config, args);
  if (args.most_parts > 1) {
    const combine::Args merged = merged_of(c, args);
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
  report(c, made, made.v, args.most_parts, parts.counted());
  return true;
}

void check_drawn() {
  const char* seed = std::getenv("TILEWISE_EMULATION_SEED");
  std::mt19937 random(seed == nullptr ? 1U : static_cast<unsigned>(std::atoi(seed)));
  for (int left = 24; left > 0;) {
    Case c = drawn_case(random);
    const std::string name = text_of(c);
    c.name = name.c_str();
    if (check<kConfigs>(c, true)) --left;
  }
}

}  // namespace

int main(int, char** argv) {
  for_each_case(argv[1], [](const auto& c) { check<kConfigs>(c); });
  check_drawn();
  return failures == 0 ? 0 : 1;
}
