#include "cuda/kernels/rows/delta.h"

#include "cuda/host/common.h"
#include "cuda/host/fill.h"
#include "cuda/kernels/rows/delta_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

bwd_delta::Type type(DType dtype) {
  return dtype == DType::float32    ? bwd_delta::Type::float32
         : dtype == DType::bfloat16 ? bwd_delta::Type::bf16
                                    : bwd_delta::Type::fp16;
}

KernelUnit unit(const bwd_delta::Config& config) {
  const char* name = config.type == bwd_delta::Type::float32 ? "float32"
                     : config.type == bwd_delta::Type::bf16  ? "bf16"
                                                             : "fp16";
  return {.stem = "bwd_delta",
          .file = "rows/delta",
          .config = std::string(".type = Type::") + name + ", .head_dim_v = " +
                    std::to_string(config.head_dim_v) + (config.packed ? ", .packed = true" : ""),
          .threads = bwd_delta::kThreads,
          .min_blocks = 4,
          .args = config.packed ? "RaggedArgs" : "Args"};
}

/// Lanes of a row: as rows/delta.cuh has them.
std::int64_t lanes(int head_dim_v) {
  const int chunks = head_dim_v / 8;
  return chunks <= 2 ? 2 : chunks <= 4 ? 4 : chunks <= 8 ? 8 : chunks <= 16 ? 16 : 32;
}

}  // namespace

void prepare_rows(const Problem& p, const RowStatistics& rows, void* stream) {
  const bwd_delta::Config config = {
      .type = type(p.dtype), .head_dim_v = host::padded(p.head_dim_v), .packed = p.packed};
  bwd_delta::RaggedArgs ragged;
  bwd_delta::Args& args = ragged.args;
  args.o = host::view4(p.o);
  args.d_o = host::view4(p.d_o);
  args.vectors = host::has_vectors(p.o) && host::has_vectors(p.d_o);
  args.lse = host::fill_lse(args, p);
  host::fill_sinks(args, p);
  args.lse2 = rows.lse2;
  args.delta = rows.delta;
  args.lse2_low = rows.lse2_low;
  args.clear = rows.clear;
  args.clear_cols = rows.clear_cols;
  args.heads = static_cast<int>(p.heads_q);
  args.seq_q = static_cast<int>(p.seq_q);
  args.rows_q = static_cast<int>(rows.rows_q);
  args.head_dim_v = static_cast<int>(p.head_dim_v);
  args.rows = p.stored_batch() * p.heads_q * rows.rows_q;
  const std::int64_t threads = args.rows * lanes(config.head_dim_v);
  const Kernel kernel = host::load_config(config, p.device.index, unit);
  const Grid grid = {.x = ceil_div(threads, bwd_delta::kThreads)};
  if (!p.packed) return launch(kernel, grid, stream, args);
  ragged.queries = host::query_sequences(p);
  launch(kernel, grid, stream, ragged);
}

void add_bwd_delta_units(std::vector<PackUnit>& units) {
  for (const bwd_delta::Type type : {bwd_delta::Type::bf16, bwd_delta::Type::float32}) {
    for (const int dim : {64, 128}) {
      units.push_back({.unit = unit({.type = type, .head_dim_v = dim}),
                       .row = "flash_bwd_sm80",
                       .instruction = ""});
    }
  }
}

}  // namespace tilewise::cuda
