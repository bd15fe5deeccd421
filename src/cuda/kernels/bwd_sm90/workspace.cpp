#include "cuda/kernels/bwd_sm90/workspace.h"

#include "cuda/driver/memory.h"
#include "cuda/kernels/bwd_sm90/tiles.h"

namespace tilewise::cuda {

BwdSm90Workspace::BwdSm90Workspace(const Problem& p, const bwd_sm90::Config& config)
    : config_(config),
      device_(p.device.index),
      entries_(p.stored_batch()),
      heads_(p.heads_q),
      rows_(bwd_sm90_rows(p, config)),
      key_heads_(entries_ * p.heads_k * bwd_sm90_sharers(p, config) *
                 (config.spans ? bwd_sm90::SharedPlan::kMostSpans : 1)),
      cut_tiles_(config.sums.split ? bwd_sm90_tiles(p, config) : 0),
      turns_(config.sums.deterministic
                 ? entries_ * heads_ * (rows_ / config.shape.block_m) * config.dq_warps()
                 : 0) {}

/// The queue's, two for each key head, one for each tile that is cut, turns or bwd_dq_sm90's tiles.
std::int64_t BwdSm90Workspace::counters() const {
  return 1 + 2 * key_heads_ + cut_tiles_ + (config_.large_dim() ? 1 : turns_);
}
std::int64_t BwdSm90Workspace::key_floats() const {
  return cut_tiles_ * config_.shape.block_n * (config_.head_dim + config_.head_dim_v);
}
std::int64_t BwdSm90Workspace::dq_floats() const {
  return config_.large_dim() ? 0 : entries_ * heads_ * rows_ * config_.columns_dq();
}

void BwdSm90Workspace::add_memory(std::vector<MemoryPart>& items) const {
  const auto add = [&](const char* name, std::initializer_list<std::int64_t> shape,
                       DType dtype = DType::float32) {
    items.push_back(memory_part(name, MemoryItem::Role::workspace, dtype, shape));
  };
  add("counters", {counters()}, DType::int32);
  add("LSE offsets", {entries_, heads_, rows_});
  add("delta", {entries_, heads_, rows_});
  if (config_.shifts()) add("LSE offsets, low part", {entries_, heads_, rows_});
  if (!config_.large_dim()) add("dQ sums", {entries_, heads_, rows_, config_.columns_dq()});
  if (config_.sums.split) add("dK, dV sums", {key_floats()});
}

void BwdSm90Workspace::take(bwd_sm90::Args& args, WorkspaceCutter& workspace) const {
  const std::int64_t rows = entries_ * heads_ * rows_;
  args.next_job = workspace.take<unsigned>(counters());
  args.prepared = args.next_job + 1;
  args.finished = args.prepared + key_heads_;
  args.added = args.finished + key_heads_;
  if (config_.sums.deterministic) args.turns = args.added + cut_tiles_;
  args.offset = workspace.take<float>(rows);
  args.delta = workspace.take<float>(rows);
  if (config_.shifts()) args.offset_low = workspace.take<float>(rows);
  if (!config_.large_dim()) args.dq_sum = workspace.take<float>(dq_floats());
  if (config_.sums.split) {
    args.dk_sum = workspace.take<float>(key_floats());
    args.dv_sum = args.dk_sum + cut_tiles_ * config_.shape.block_n * config_.head_dim;
  }
}

void BwdSm90Workspace::clear(const bwd_sm90::Args& args, void* stream) const {
  fill_bytes(args.next_job, 0, counters() * 4, device_, stream);
  if (config_.sums.split) fill_bytes(args.dk_sum, 0, key_floats() * 4, device_, stream);
}

}  // namespace tilewise::cuda
