#include "cuda/kernels/rows/combine.h"

#include <limits>

#include "cuda/host/common.h"
#include "cuda/kernels/rows/combine_args.h"
#include "plan/batch_invariance.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

combine::Output output(DType dtype) {
  return dtype == DType::float32    ? combine::Output::float32
         : dtype == DType::bfloat16 ? combine::Output::bf16
                                    : combine::Output::fp16;
}

const char* output_text(combine::Output output) {
  return output == combine::Output::float32 ? "float32"
         : output == combine::Output::bf16  ? "bf16"
                                            : "fp16";
}

/// Lanes of a row: as combine.cuh has them.
int lanes(int head_dim_v) {
  const int vectors = head_dim_v / 4;
  return vectors <= 4 ? 4 : vectors <= 8 ? 8 : vectors <= 16 ? 16 : 32;
}

/// What the groups of a block leave to the first of their rows.
int shared_bytes(const combine::Config& config) {
  const int vectors =
      static_cast<int>(ceil_div(config.head_dim_v, std::int64_t{4} * lanes(config.head_dim_v)));
  return config.shares > 1 ? 16 * combine::kThreads * (vectors + 1) : 0;
}

KernelUnit unit(const combine::Config& config) {
  return {.stem = "combine",
          .file = "rows/combine",
          .config = std::string(".output = Output::") + output_text(config.output) +
                    ", .head_dim_v = " + std::to_string(config.head_dim_v) +
                    (config.own_parts ? ", .own_parts = true" : "") +
                    (config.shares > 1 ? ", .shares = " + std::to_string(config.shares) : ""),
          .threads = combine::kThreads,
          .min_blocks = 4,
          .shared_bytes = shared_bytes(config)};
}

}  // namespace

int combine_shares(const Problem& p, int parts) {
  constexpr int kShares = 4, kPartsAtATime = 8;
  // The order of a sum must not depend on the rest of the batch (CONTRACT 14).
  const std::int64_t rows = planned_batch(p) * p.heads_q * p.total_q;
  const std::int64_t threads = rows * lanes(host::padded(p.head_dim_v)) * kShares;
  const bool idle =
      ceil_div(threads, combine::kThreads) <= std::int64_t{8} * host::kTypicalMultiprocessors;
  return idle && parts > kPartsAtATime ? kShares : 1;
}

void add_partial_results(std::vector<MemoryPart>& memory, const Problem& p, int parts) {
  const auto role = MemoryItem::Role::workspace;
  memory.push_back(memory_part("partial O", role, DType::float32,
                               {parts, p.query_rows(), host::padded(p.head_dim_v)}));
  memory.push_back(memory_part("partial m, l", role, DType::float32, {2, parts, p.query_rows()}));
}

PartialResults take_partial_results(WorkspaceCutter& workspace, const Problem& p, int parts) {
  const std::int64_t rows = parts * p.query_rows();
  float* o = workspace.take<float>(rows * host::padded(p.head_dim_v));
  return {o, workspace.take<float>(2 * rows)};
}

double partial_bytes(const Problem& p, int parts) {
  return 4.0 * static_cast<double>(parts * p.query_rows() * (host::padded(p.head_dim_v) + 2));
}

void combine_parts(const Problem& p, const PartialResults& partial, int parts, void* stream,
                   const tile::KeyParts* keys) {
  const int dim = host::padded(p.head_dim_v);
  const combine::Config config = {.output = output(p.dtype),
                                  .head_dim_v = dim,
                                  .own_parts = keys != nullptr,
                                  .shares = combine_shares(p, parts)};
  combine::Args args;
  args.o = partial.o;
  args.parts = parts;
  args.rows = p.query_rows();
  args.m = partial.statistics;
  args.l = partial.statistics + parts * args.rows;
  args.to = host::view4(p.o);
  if (p.lse.defined()) {
    args.lse_to = static_cast<float*>(p.lse.data);
    args.lse_b = p.lse.strides[0];
    args.lse_h = p.lse.strides[1];
    args.lse_s = p.lse.strides[2];
  }
  const bool narrow = p.bias.defined() && p.bias.dtype == DType::bfloat16;
  args.lowest = narrow ? -0x1.fep127F : -std::numeric_limits<float>::max();
  args.heads = static_cast<int>(p.heads_q);
  args.seq_q = static_cast<int>(p.total_q);
  args.head_dim_v = static_cast<int>(p.head_dim_v);
  if (keys != nullptr) args.keys = *keys;
  const std::int64_t threads = args.rows * lanes(dim) * config.shares;
  launch(host::load_config(config, p.device.index, unit),
         host::following(ceil_div(threads, combine::kThreads), p.device.index), stream, args);
}

void add_combine_units(std::vector<PackUnit>& units) {
  for (const combine::Output output : {combine::Output::bf16, combine::Output::float32}) {
    for (const int dim : {64, 128}) {
      units.push_back({.unit = unit({.output = output, .head_dim_v = dim}),
                       .row = "flash_fwd_sm80",
                       .instruction = ""});
    }
  }
}

}  // namespace tilewise::cuda
