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

}  // namespace

void convert_gradients(const Problem& p, std::span<const SummedGradient> gradients, void* stream) {
  const DType dtype = gradients.front().to->dtype;
  const bwd_convert::Config config = {.type = dtype == DType::bfloat16 ? bwd_convert::Type::bf16
                                              : dtype == DType::float16
                                                  ? bwd_convert::Type::fp16
                                                  : bwd_convert::Type::float32,
                                      .packed = p.packed};
  bwd_convert::RaggedArgs ragged;
  bwd_convert::Args& args = ragged.args;
  std::int64_t blocks = 0;
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
  const Kernel kernel = host::load_config(config, p.device.index, unit);
  const Grid grid = host::following(blocks, p.device.index);
  if (!p.packed) return launch(kernel, grid, stream, args);
  ragged.sequences = host::query_sequences(p);
  launch(kernel, grid, stream, ragged);
}

void add_bwd_convert_units(std::vector<PackUnit>& units) {
  units.push_back({.unit = unit({.type = bwd_convert::Type::bf16}),
                   .row = "flash_bwd_sm80",
                   .instruction = ""});
}

}  // namespace tilewise::cuda
