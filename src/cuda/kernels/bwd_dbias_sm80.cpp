#include "cuda/kernels/bwd_dbias_sm80.hpp"

#include <algorithm>

#include "cuda/kernels/bwd_dbias_sm80_args.h"
#include "cuda/kernels/bwd_sm80_tiles.h"
#include "cuda/kernels/sm80.hpp"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

KernelUnit unit(const bwd_sm80::Config& c, int min_blocks) {
  KernelUnit made = bwd_tiles::query_unit(c, min_blocks);
  made.stem = "bwd_dbias_sm80";
  // The sums of a tile lie where its operands were.
  made.shared_bytes = std::max(made.shared_bytes, c.block_m * c.block_n * 4);
  return made;
}

}  // namespace

void bias_gradient(const Problem& p, const bwd_sm80::Args& pass, bwd_sm80::Config config,
                   int min_blocks, void* stream) {
  if (!p.dbias.defined()) return;
  config.split = false;
  const auto blocks = [&](int axis, std::int64_t count) {
    return static_cast<int>(p.dbias.strides[axis] == 0 ? 1 : count);
  };
  bwd_dbias_sm80::Args args;
  args.pass = pass;
  args.dbias = sm80::view4(p.dbias);
  args.axes = {.batch = blocks(0, p.batch),
               .heads = blocks(1, p.heads_q),
               .rows = blocks(2, ceil_div(p.seq_q, config.block_m)),
               .keys = blocks(3, ceil_div(p.seq_k, config.block_n))};
  args.batch = static_cast<int>(p.batch);
  const std::int64_t grid =
      std::int64_t{args.axes.batch} * args.axes.heads * args.axes.rows * args.axes.keys;
  if (grid == 0) return;
  const Kernel kernel = sm80::load_config(
      config, p.device.index, [=](const bwd_sm80::Config& c) { return unit(c, min_blocks); });
  launch(kernel, sm80::following(grid, p.device.index), stream, args);
}

}  // namespace tilewise::cuda
