#include "cuda/kernels/decode_sm90/row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "cuda/driver/device.h"
#include "cuda/host/common.h"
#include "cuda/host/options.h"
#include "cuda/host/served.h"
#include "cuda/host/tma_maps.h"
#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/kernels/decode_sm90/fill.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/fwd_sm90/times.h"
#include "cuda/kernels/rows/combine.h"

namespace tilewise::cuda {
namespace {

using decode_sm90::Args;

/// What another row asks for the problem; infinity where it refuses.
double price_of(const KernelRow& row, const Problem& p, const Hardware& machine) {
  if (p.forms != nullptr) {  // they are of the row that is tuned
    Problem asked = p;
    asked.forms = nullptr;
    return price_of(row, asked, machine);
  }
  const Preparation prepared = row.prepare(row, p, machine);
  const auto* other = std::get_if<Prepared>(&prepared);
  return other != nullptr ? other->cost.ms : std::numeric_limits<double>::infinity();
}

/// The price beside those of the kernels of long rows, as an H200 showed
/// (bench/results/h200/serving.json, served-parts.csv). Where windows or slopes are, tiles of both
/// last as long as the longest entry, which no host sees.
double price(const Problem& p, const DecodeChoice& choice, const Hardware& machine) {
  const double sm90 = price_of(kFlashForwardSm90, p, machine);
  const bool few = p.seq_q <= host::kFewQueries;
  if (p.key_lengths.defined() && few) {
    if (!std::isinf(sm90) && fwd_sm90_times::serves_few(p))
      return decode_served_ms(p, choice, machine);
    return std::min(choice.ms, 0.95 * std::min(sm90, price_of(kFlashForwardSm80, p, machine)));
  }
  // flash_fwd_sm90 reads K and V for each head where there are slopes.
  if (std::isinf(sm90) || p.alibi_slopes.defined()) return choice.ms;
  // One part for each multiprocessor reads faster, where that takes long.
  constexpr double kAlone = 0.975, kAloneMs = 9e-3;
  if (few && choice.config.blocks > 1 && item_count(p, choice.items) <= machine.multiprocessors)
    return kAlone * sm90 + kAloneMs;
  // Its price is fitted by 3 us more (plan/fitted_constants.inc).
  constexpr double kBehind = 1.03, kBehindMs = 5e-3;
  return std::max(choice.ms, kBehind * sm90 + kBehindMs);
}

Preparation prepare(const KernelRow& row, const Problem& p, const Hardware& machine) {
  if (has_tree_words(p)) return prepare(row, by_tree_words(p), machine);
  std::string reason = decode_refusal(p, machine);
  if (!reason.empty()) return reason;
  const DecodeChoice choice = decode_choose(p, machine);
  Cost cost;
  cost.block_m = 16 * choice.config.row_warps;
  cost.block_n = decode_sm90::kBlockN;
  cost.splits = choice.items.most_parts;
  add_items_memory(cost.memory, p, choice.items);
  cost.bytes_moved = key_bytes(p, p.head_dim + p.head_dim_v);
  for (const Tensor* t : {&p.q, &p.o, &p.lse})
    cost.bytes_moved += static_cast<double>(t->numel() * dtype_bytes(t->dtype));
  if (cost.splits > 1) cost.bytes_moved += 2.0 * partial_bytes(p, cost.splits);
  cost.ms = price(p, choice, machine);
  return Prepared{std::move(cost), remember(choice)};
}

void run(const KernelRow& row, const Problem& p, const Context& context) {
  if (has_tree_words(p)) return run(row, by_tree_words(p), context);
  const auto& choice = context.decided<DecodeChoice>();
  const ContextScope scope(p.device.index);  // tensor maps are made in a context
  Args args;
  decode_fill(args, p, choice, sm90_set_map);
  const Kernel kernel = host::load_config(choice.config, p.device.index, decode_unit);
  launch_items(kernel, args, p, choice.items,
               std::int64_t{host::kTypicalMultiprocessors} * choice.config.blocks, context);
}

}  // namespace

const KernelRow kFlashDecodeSm90 = {
    .name = "flash_decode_sm90",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::forward,
    .summary = "few queries, keys contiguous or in pages; copy engine, mma.sync; bf16, fp16",
    .prepare = prepare,
    .run = run};

void add_decode_sm90_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t page : {0, 16}) {
    Problem p;
    p.dtype = DType::bfloat16;
    p.batch = p.heads_k = 1;
    p.heads_q = 8;
    p.seq_q = p.total_q = 1;
    p.seq_k = 8192;
    p.head_dim = p.head_dim_v = 128;
    p.scale = 1.0F;
    p.paged = page > 0;
    p.page_size = page;
    const std::int64_t rows = page > 0 ? page : p.seq_k;
    p.k = p.v = Tensor::contiguous(nullptr, p.dtype, {2, 1, rows, 128}, {DeviceType::cuda, 0});
    units.push_back({.unit = decode_unit(decode_with_parts(p, p.seq_k, {}).config),
                     .row = kFlashDecodeSm90.name,
                     .instruction = "mma.sync",
                     // Values of an item that its blocks do not use.
                     .allowed_spill_bytes = 96});
  }
}

}  // namespace tilewise::cuda
