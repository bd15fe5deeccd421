#include "cuda/kernels/mla_sm90/row.h"

#include <algorithm>

#include "cuda/driver/device.h"
#include "cuda/host/common.h"
#include "cuda/host/tile_counter.h"
#include "cuda/host/tma_maps.h"
#include "cuda/kernels/mla_sm90/choice.h"
#include "cuda/kernels/rows/combine.h"
#include "plan/accounting.h"

namespace tilewise::cuda {
namespace {

using Role = MemoryItem::Role;

Preparation prepare(const KernelRow& /*row*/, const Problem& p, const Hardware& machine) {
  std::string reason = mla_refusal(p, machine);
  if (!reason.empty()) return reason;
  const MlaChoice choice = mla_choose(p, machine);
  Cost cost;
  cost.block_m = mla_sm90::kRows;
  cost.block_n = mla_sm90::kBlockN;
  cost.splits = choice.most_parts;
  cost.ms = choice.ms;
  cost.memory.push_back(host::tile_counter_memory());
  if (choice.most_parts > 1) {
    cost.memory.push_back(memory_part("partial O", Role::workspace, DType::float32,
                                      {choice.most_parts, p.query_rows(), mla_sm90::kHeadDimV}));
    cost.memory.push_back(memory_part("partial m, l", Role::workspace, DType::float32,
                                      {2, choice.most_parts, p.query_rows()}));
    for (std::size_t part = 1; part < cost.memory.size(); ++part)
      cost.bytes_moved += 2.0 * static_cast<double>(cost.memory[part].bytes);
  }
  // Of K what is seen, of pools what the tables may name.
  const double keys = std::min(
      visible_pairs(p) / static_cast<double>(p.query_rows()) + static_cast<double>(p.seq_q),
      static_cast<double>(p.seq_k));
  cost.bytes_moved +=
      2.0 * static_cast<double>(p.batch * p.heads_k) * keys * static_cast<double>(p.head_dim);
  for (const Tensor* t : {&p.q, &p.o, &p.lse})
    cost.bytes_moved += static_cast<double>(t->numel() * dtype_bytes(t->dtype));
  return Prepared{std::move(cost), remember(choice)};
}

void run(const KernelRow& /*row*/, const Problem& p, const Context& context) {
  const auto& choice = context.decided<MlaChoice>();
  const int device = p.device.index, parts = choice.most_parts;
  const ContextScope scope(device);  // tensor maps are made in a context
  WorkspaceCutter workspace(context.workspace);
  mla_sm90::Args args;
  mla_fill(args, p, choice, sm90_set_map);
  args.counter = host::take_tile_counter(workspace);
  if (parts > 1) {
    args.o_part = workspace.take<float>(parts * args.part_rows * args.part_columns);
    args.m_part = workspace.take<float>(2 * parts * args.part_rows);
  }
  const Kernel kernel = host::load_config(choice.config, device, mla_unit);
  const std::int64_t items = p.batch * p.heads_k * choice.row_tiles * parts;
  launch(kernel, {.x = std::min<std::int64_t>(items, host::kTypicalMultiprocessors)},
         context.stream, args);
  if (parts > 1) {
    combine_parts(p, args.o_part, args.m_part, parts, context.stream,
                  p.key_lengths.defined() ? &args.keys : nullptr);
  }
}

}  // namespace

const KernelRow kFlashMlaSm90 = {
    .name = "flash_mla_sm90",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::forward,
    .summary = "head dims 576 and 512, V in K; copy engine, wgmma; bf16, fp16",
    .prepare = prepare,
    .run = run};

void add_mla_sm90_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const bool paged : {false, true}) {
    units.push_back({.unit = mla_unit({.paged = paged}),
                     .row = kFlashMlaSm90.name,
                     .instruction = "wgmma.mma_async"});
  }
}

}  // namespace tilewise::cuda
