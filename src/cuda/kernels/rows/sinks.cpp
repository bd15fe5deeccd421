#include "cuda/kernels/rows/sinks.h"

#include "cuda/host/common.h"
#include "cuda/host/fill.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/rows/sinks_args.h"

namespace tilewise::cuda {
namespace {

KernelUnit unit(const bwd_sinks::Config& config) {
  return {.stem = "bwd_sinks",
          .file = "rows/sinks",
          .config = std::string(".low = ") + bool_text(config.low) +
                    (config.scaled ? flag_text("scaled", true) : ""),
          .threads = bwd_sinks::kThreads,
          .shared_bytes = bwd_sinks::kThreads / 32 * 4};
}

}  // namespace

void sink_gradient(const Problem& p, const RowStatistics& rows, void* stream, float factor) {
  if (!p.dsinks.defined() || p.heads_q == 0) return;
  bwd_sinks::Args args;
  args.lse2 = rows.lse2;
  args.lse2_low = rows.lse2_low;
  args.delta = rows.delta;
  host::fill_sinks(args, p);
  args.d_sinks = static_cast<float*>(p.dsinks.data);
  args.d_sinks_h = p.dsinks.strides[0];
  // Packed sequences have all blocks of rows: where there is no row, nothing was seen.
  args.batch = static_cast<int>(p.stored_batch());
  args.heads = static_cast<int>(p.heads_q);
  args.seq_q = static_cast<int>(p.packed ? rows.rows_q : p.seq_q);
  args.rows_q = static_cast<int>(rows.rows_q);
  args.factor = factor;
  const bwd_sinks::Config config = {.low = rows.lse2_low != nullptr, .scaled = factor != 1.0F};
  launch(host::load_config(config, p.device.index, unit),
         host::following(p.heads_q, p.device.index), stream, args);
}

}  // namespace tilewise::cuda
