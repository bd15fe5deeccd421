#include "cuda/kernels/bwd_sm80/bias.h"

#include <algorithm>

#include "cuda/host/common.h"
#include "cuda/host/expressions.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/rows/convert.h"
#include "plan/accounting.h"
#include "plan/batch_invariance.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
KernelUnit bias_unit(const bwd_sm80::Config& c, int min_blocks) {
  KernelUnit made = bwd_tiles::query_unit(c, min_blocks);
  made.stem = "bwd_dbias_sm80";
  made.file = "bwd_sm80/bias";
  // The sums of a tile lie where its operands were.
  made.shared_bytes = std::max(made.shared_bytes, c.shape.block_m * c.shape.block_n * 4);
  return made;
}

BiasParts::BiasParts(const Problem& p, int block_m, int block_n) {
  const auto own = [&](int axis, std::int64_t size) {
    return p.dbias.strides[axis] == 0 ? 1 : size;
  };
  const std::int64_t rows = ceil_div(p.seq_q, block_m), keys = ceil_div(p.seq_k, block_n);
  axes = {.batch = static_cast<int>(own(0, p.batch)),
          .heads = static_cast<int>(own(1, p.heads_q)),
          .rows = static_cast<int>(own(2, rows)),
          .keys = static_cast<int>(own(3, keys))};
  blocks = std::int64_t{axes.batch} * axes.heads * axes.rows * axes.keys;
  if (blocks == 0) return;
  const std::int64_t steps = p.batch * p.heads_q * rows * keys / blocks;
  const std::int64_t entries =
      p.dbias.strides[0] == 0 ? 1 : std::max<std::int64_t>(1, planned_batch(p));
  const std::int64_t deciding = entries * axes.heads * axes.rows * axes.keys;
  constexpr std::int64_t kWanted = std::int64_t{2} * host::kTypicalMultiprocessors;
  count = static_cast<int>(
      std::clamp<std::int64_t>(ceil_div(kWanted, deciding), 1, std::max<std::int64_t>(1, steps)));
  padded_rows = static_cast<int>(round_up(own(2, p.seq_q), 16));
  padded_keys = static_cast<int>(round_up(own(3, p.seq_k), 8));
}

std::int64_t BiasParts::elems() const {
  return std::int64_t{axes.batch} * axes.heads * padded_rows * padded_keys;
}

void BiasParts::add_memory(std::vector<MemoryPart>& items) const {
  if (count == 1) return;
  items.push_back(memory_part("dbias parts", MemoryItem::Role::workspace, DType::float32,
                              {count, axes.batch, axes.heads, padded_rows, padded_keys}));
}

void bias_gradient(const Problem& p, const bwd_sm80::Args& pass, bwd_sm80::Config config,
                   int min_blocks, WorkspaceCutter& workspace, void* stream) {
  if (!p.dbias.defined()) return;
  config.split = false;
  const BiasParts parts(p, config.shape.block_m, config.shape.block_n);
  if (parts.blocks == 0) return;
  bwd_dbias_sm80::Args args;
  args.pass = pass;
  args.dbias = host::view4(p.dbias);
  args.axes = parts.axes;
  args.batch = static_cast<int>(p.batch);
  args.parts = parts.count;
  args.padded_rows = parts.padded_rows;
  args.padded_keys = parts.padded_keys;
  if (parts.count > 1) args.sums = workspace.take<float>(parts.count * parts.elems());
  const Kernel kernel = load_expressed(p, config, p.device.index, [=](const bwd_sm80::Config& c) {
    return bias_unit(c, min_blocks);
  });
  launch_expressed(p, kernel, host::following(parts.blocks * parts.count, p.device.index), stream,
                   args);
  if (parts.count == 1) return;
  Tensor own = p.dbias;
  for (int axis = 0; axis < own.rank; ++axis) {
    if (own.strides[axis] == 0) own.sizes[axis] = 1;
  }
  const SummedGradient sum{args.sums,         &own, parts.padded_rows,
                           parts.padded_keys, 1.0F, parts.count};
  convert_gradients(p, {&sum, 1}, stream);
}

}  // namespace tilewise::cuda
