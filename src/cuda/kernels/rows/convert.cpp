#include "cuda/kernels/rows/convert.h"

#include "cuda/host/common.h"
#include "cuda/kernels/rows/convert_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

KernelUnit unit(const bwd_convert::Config& config) {
  return {.stem = "bwd_convert",
          .file = "rows/convert",
          .config = std::string(".type = Type::") +
                    (config.type == bwd_convert::Type::bf16   ? "bf16"
                     : config.type == bwd_convert::Type::fp16 ? "fp16"
                                                              : "float32") +
                    (config.packed ? ", .packed = true" : ""),
          .threads = bwd_convert::kThreads,
          .min_blocks = 4,
          .args = config.packed ? "RaggedArgs" : "Args"};
}

/// The kernel's arguments, and in `blocks` the grid.
bwd_convert::Args sources(std::span<const SummedGradient> gradients, std::int64_t& blocks) {
  bwd_convert::Args args;
  blocks = 0;
  for (const SummedGradient& gradient : gradients) {
    const Tensor& to = *gradient.to;
    bwd_convert::Source& source = args.sources[args.count++];
    source.sums = gradient.sums;
    source.parts = gradient.parts;
    source.to = host::view4(to);
    source.vectors = host::has_vectors(to);
    source.factor = gradient.factor;
    source.heads = static_cast<int>(to.sizes[1]);
    source.rows = static_cast<int>(to.sizes[2]);
    source.padded_rows = static_cast<int>(gradient.padded_rows);
    source.cols = static_cast<int>(to.sizes[3]);
    source.padded = gradient.padded;
    source.items = to.sizes[0] * to.sizes[1] * (gradient.padded_rows / 16) * source.padded;
    source.first_block = blocks;
    blocks += ceil_div(source.items, bwd_convert::kThreads);
  }
  return args;
}

bwd_convert::Type type(DType dtype) {
  return dtype == DType::bfloat16  ? bwd_convert::Type::bf16
         : dtype == DType::float16 ? bwd_convert::Type::fp16
                                   : bwd_convert::Type::float32;
}

}  // namespace

void convert_gradients(const Problem& p, std::span<const SummedGradient> gradients, void* stream) {
  const bwd_convert::Config config = {.type = type(gradients.front().to->dtype),
                                      .packed = p.packed};
  std::int64_t blocks = 0;
  bwd_convert::RaggedArgs ragged{.args = sources(gradients, blocks), .sequences = {}};
  const Kernel kernel = host::load_config(config, p.device.index, unit);
  const Grid grid = host::following(blocks, p.device.index);
  if (!p.packed) return launch(kernel, grid, stream, ragged.args);
  ragged.sequences = host::query_sequences(p);
  launch(kernel, grid, stream, ragged);
}

void clear_gradients(const Problem& p, std::span<const Tensor* const> gradients, void* stream) {
  std::vector<SummedGradient> none;
  for (const Tensor* to : gradients) {
    none.push_back({.to = to,
                    .padded_rows = round_up(to->sizes[2], std::int64_t{16}),
                    .padded = static_cast<int>(round_up(to->sizes[3], std::int64_t{8})),
                    .parts = 0});
  }
  std::int64_t blocks = 0;
  const bwd_convert::Args args = sources(none, blocks);
  // Whatever the sequences: all rows.
  const bwd_convert::Config config = {.type = type(gradients.front()->dtype)};
  launch(host::load_config(config, p.device.index, unit), host::following(blocks, p.device.index),
         stream, args);
}

void add_bwd_convert_units(std::vector<PackUnit>& units) {
  units.push_back({.unit = unit({.type = bwd_convert::Type::bf16}),
                   .row = "flash_bwd_sm80",
                   .instruction = ""});
}

}  // namespace tilewise::cuda
