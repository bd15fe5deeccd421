#include "cuda/kernels/mla_sm90/row.h"

#include "cuda/driver/device.h"
#include "cuda/host/common.h"
#include "cuda/host/tma_maps.h"
#include "cuda/kernels/mla_sm90/choice.h"
#include "cuda/kernels/rows/combine.h"

namespace tilewise::cuda {
namespace {

Preparation prepare(const KernelRow& /*row*/, const Problem& p, const Hardware& machine) {
  std::string reason = mla_refusal(p, machine);
  if (!reason.empty()) return reason;
  const MlaChoice choice = mla_choose(p, machine);
  Cost cost;
  cost.block_m = mla_sm90::kRows;
  cost.block_n = mla_sm90::kBlockN;
  cost.splits = choice.items.most_parts;
  cost.ms = choice.ms;
  add_items_memory(cost.memory, p, choice.items);
  if (cost.splits > 1) cost.bytes_moved += 2.0 * partial_bytes(p, cost.splits);
  cost.bytes_moved += key_bytes(p, p.head_dim);
  for (const Tensor* t : {&p.q, &p.o, &p.lse})
    cost.bytes_moved += static_cast<double>(t->numel() * dtype_bytes(t->dtype));
  return Prepared{std::move(cost), remember(choice)};
}

void run(const KernelRow& /*row*/, const Problem& p, const Context& context) {
  const auto& choice = context.decided<MlaChoice>();
  const ContextScope scope(p.device.index);  // tensor maps are made in a context
  mla_sm90::Args args;
  mla_fill(args, p, choice, sm90_set_map);
  const Kernel kernel = host::load_config(choice.config, p.device.index, mla_unit);
  launch_items(kernel, args, p, choice.items, host::kTypicalMultiprocessors, context);
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
