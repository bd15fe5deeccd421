#include "cuda/kernels/fwd_sm90.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cuda/driver/device.h"
#include "cuda/driver/tensor_map.h"
#include "cuda/kernels/combine.hpp"
#include "cuda/kernels/fwd_sm90_tiles.h"
#include "cuda/kernels/fwd_sm90_unit.h"
#include "cuda/kernels/sm80.hpp"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

using fwd_sm90::Args;
using fwd_sm90::Config;
using Role = MemoryItem::Role;

constexpr double kLog2e = 1.4426950408889634;

/// The map of a tensor whose rows are copied in panels of 64 columns.
TensorMapSpec map_spec(const Tensor& tensor, int box_rows) {
  TensorMapSpec spec = attention_tensor_map(tensor, /*box_dim=*/64, box_rows);
  for (std::size_t axis = 1; axis < 4; ++axis) {
    // The stride of an axis with one element is never used; it must be a legal one all the same.
    if (spec.sizes[axis] == 1) spec.strides[axis] = (spec.sizes[0] * 2 + 15) / 16 * 16;
  }
  return spec;
}

/// Why the copy engine cannot read or write a tensor; empty when it can.
std::string map_refusal(const char* name, const Tensor& tensor) {
  std::string reason;
  if (tensor.strides[3] != 1 && tensor.sizes[3] > 1) {
    reason = "its innermost stride is " + std::to_string(tensor.strides[3]) + " (expected 1)";
  } else {
    const TensorMapSpec spec = map_spec(tensor, 64);
    reason = tensor_map_refusal(spec);
    for (std::size_t axis = 1; axis < 4 && reason.empty(); ++axis) {
      if (spec.strides[axis] == 0) reason = "an axis of more than one element has stride 0";
    }
  }
  if (reason.empty()) return {};
  return std::string(name) + " cannot be copied by TMA: " + reason;
}

std::string maps_refusal(const Problem& p) {
  std::string reason = map_refusal("q", p.q);
  if (reason.empty()) reason = map_refusal("k", p.k);
  if (reason.empty()) reason = map_refusal("v", p.v);
  if (reason.empty()) reason = map_refusal("o", p.o);
  return reason;
}

std::string supports(const KernelRow& /*row*/, const Problem& p, const Hardware& machine) {
  if (machine.arch != 90) {
    return "it is for compute capability 9.0 (Hopper), the device has " +
           std::to_string(machine.arch / 10) + "." + std::to_string(machine.arch % 10);
  }
  if (p.dtype != DType::bfloat16 && p.dtype != DType::float16) {
    return std::string(dtype_name(p.dtype)) +
           " is not supported by this kernel (bfloat16, float16)";
  }
  std::string reason = sm80::refusal(p, machine);
  if (!reason.empty()) return reason;
  if (p.key_lengths.defined()) return "key lengths are not supported by this kernel";
  if (p.batch == 0 || p.heads_q == 0 || p.seq_q == 0 || p.seq_k == 0) {
    return "empty problems are left to flash_fwd_sm80";
  }
  if (p.head_dim_v > p.head_dim && sm80::padded(p.head_dim_v) != sm80::padded(p.head_dim)) {
    return "values wider than keys (head dims " + std::to_string(p.head_dim) + ", " +
           std::to_string(p.head_dim_v) + ") are not supported by this kernel";
  }
  return maps_refusal(p);
}

/// Workspace beside the caller's tensors: the tile counter, then what the parts leave.
std::vector<MemoryItem> workspace_items(const Problem& p, const Config& config, int splits) {
  std::vector<MemoryItem> items;
  if (config.dynamic) {
    items.push_back(memory_item("tile counter", Role::workspace, DType::int64, {1}));
  }
  if (splits > 1) {
    items.push_back(memory_item("partial O", Role::workspace, DType::float32,
                                {splits, p.batch, p.heads_q, p.seq_q, config.head_dim_v}));
    items.push_back(memory_item("partial LSE", Role::workspace, DType::float32,
                                {splits, p.batch, p.heads_q, p.seq_q}));
  }
  return items;
}

Cost cost(const KernelRow& /*row*/, const Problem& p, const Hardware& machine) {
  const Sm90Choice choice = sm90_choose(p, machine);
  Cost cost;
  cost.block_m = choice.tile->block_m();
  cost.block_n = choice.tile->block_n;
  cost.splits = choice.splits;
  cost.memory = workspace_items(p, sm90_config(p, *choice.tile, choice.splits > 1), choice.splits);
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse}) {
    cost.bytes_moved += static_cast<double>(t->numel() * dtype_bytes(t->dtype));
  }
  cost.ms = std::max(choice.ms, 1e-6 * cost.bytes_moved / machine.bandwidth_gbps);
  if (choice.splits > 1) {
    for (const MemoryItem& item : cost.memory)
      cost.bytes_moved += 2.0 * static_cast<double>(item.bytes);
  }
  return cost;
}

/// A number that no other launch of this process and hardly any other memory has: see TileCounter.
unsigned long long next_tag() {
  static std::atomic<unsigned long long> launches{0};
  unsigned long long x =
      (launches.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return (x ^ (x >> 31)) >> fwd_sm90::TileCounter::kCountBits | 1;
}

void set_map(tile::TensorMapBytes& to, const Tensor& tensor, int box_rows) {
  const TensorMap map = tensor_map(map_spec(tensor, box_rows));
  static_assert(sizeof(to) == sizeof(map));
  std::memcpy(to.bytes, map.bytes, sizeof(map));
}

void fill(Args& args, const Problem& p, const Config& config) {
  set_map(args.q, p.q, 64);
  set_map(args.k, p.k, config.block_n);
  set_map(args.v, p.v, config.block_n);
  set_map(args.o, p.o, 64);
  args.heads_q = static_cast<int>(p.heads_q);
  args.group = static_cast<int>(p.group());
  args.seq_q = static_cast<int>(p.seq_q);
  args.seq_k = static_cast<int>(p.seq_k);
  args.scale = p.scale;
  args.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2e);
  if (p.softcap != 0.0) {
    args.scale_cap = static_cast<float>(p.scale / p.softcap);
    args.cap_log2 = static_cast<float>(p.softcap * kLog2e);
  }
  if (p.alibi_slopes.defined()) {
    args.alibi = static_cast<const float*>(p.alibi_slopes.data);
    args.alibi_b = p.alibi_slopes.strides[0];
    args.alibi_h = p.alibi_slopes.strides[1];
  }
  if (p.lse.defined()) {
    args.lse = static_cast<float*>(p.lse.data);
    args.lse_b = p.lse.strides[0];
    args.lse_h = p.lse.strides[1];
    args.lse_s = p.lse.strides[2];
  }
  const Sm90Mask mask = sm90_mask(p);
  args.low = mask.low;
  args.high = mask.high;
}

void run(const KernelRow& row, const Problem& p, const Context& context) {
  const Plan& plan = context.plan;
  const auto candidates = sm90_tiles(p);
  const auto tile = std::find_if(candidates.begin(), candidates.end(), [&](const Sm90Tile& t) {
    return t.block_m() == plan.block_m && t.block_n == plan.block_n;
  });
  if (tile == candidates.end()) {
    throw InvalidArgument("plan: " + std::string(row.name) + " has no tile of " +
                          std::to_string(plan.block_m) + " x " + std::to_string(plan.block_n));
  }
  // A plan made for aligned tensors may be run with others.
  if (const std::string reason = maps_refusal(p); !reason.empty()) {
    throw InvalidArgument("plan: " + std::string(row.name) + ": " + reason);
  }
  const bool split = plan.splits > 1;
  const Config config = sm90_config(p, *tile, split);
  WorkspaceCutter workspace(context.workspace);
  const ContextScope scope(p.device.index);  // tensor maps are made in a context
  Args args;
  fill(args, p, config);
  args.order = sm90_order(p, config, plan.splits);
  args.tiles = args.order.blocks * args.order.heads;
  if (config.dynamic) args.counter = {workspace.take<unsigned long long>(1), next_tag()};
  if (split) {
    const std::int64_t rows = p.batch * p.heads_q * p.seq_q;
    args.splits = plan.splits;
    args.blocks_per_split = sm90_blocks_per_split(p, config.block_n, plan.splits);
    args.o_part = workspace.take<float>(plan.splits * rows * config.head_dim_v);
    args.lse_part = workspace.take<float>(plan.splits * rows);
  }
  const Kernel kernel = sm80::load_config(config, p.device.index, fwd_sm90_unit);
  const std::int64_t grid = std::min(args.tiles, sm80::kTypicalMultiprocessors);
  launch(kernel, {.x = grid}, context.stream, args);
  if (split) combine_parts(p, args.o_part, args.lse_part, plan.splits, context.stream);
}

}  // namespace

const KernelRow kFlashForwardSm90 = {
    .name = "flash_fwd_sm90",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::forward,
    .summary = "tiled, online softmax; wgmma, TMA, warpgroups of different roles; bf16, fp16",
    .supports = supports,
    .cost = cost,
    .run = run};

void add_fwd_sm90_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  const auto add = [&](DType dtype, std::int64_t dim, bool causal, std::int64_t seq,
                       bool windowed) {
    Problem p;
    p.dtype = dtype;
    p.batch = p.heads_q = p.heads_k = 1;
    p.seq_q = p.seq_k = seq;
    p.head_dim = p.head_dim_v = dim;
    p.scale = 1.0F;
    if (causal) p.causal = Causal::bottom_right, p.right = 0;
    if (windowed) p.left = 1023;
    for (const Sm90Tile& tile : sm90_tiles(p)) {
      const PackUnit unit = {.unit = fwd_sm90_unit(sm90_config(p, tile, false)),
                             .row = kFlashForwardSm90.name,
                             .instruction = "wgmma.mma_async"};
      const auto same = [&](const PackUnit& other) { return other.unit == unit.unit; };
      if (std::none_of(units.begin(), units.end(), same)) units.push_back(unit);
    }
  };
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    for (const bool causal : {false, true}) {
      // Short and long sequences may take different configs.
      add(DType::bfloat16, dim, causal, 1024, false);
      add(DType::bfloat16, dim, causal, 16384, false);
      if (dim == 64 || dim == 128) add(DType::float16, dim, causal, 16384, false);
    }
  }
  add(DType::bfloat16, 128, true, 16384, true);
}

}  // namespace tilewise::cuda
