#include "cuda/kernels/rows/packed_delta.h"

#include "cuda/driver/launch.h"
#include "cuda/host/common.h"
#include "cuda/host/fill.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/rows/packed_delta_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using bwd_packed_delta::Args;
using bwd_packed_delta::Config;

KernelUnit unit(const Config& c) {
  return {.stem = "bwd_packed_delta",
          .file = "rows/packed_delta",
          .config = element_text(c.element) + number_text("columns", c.columns),
          .threads = bwd_packed_delta::kThreads};
}

}  // namespace

void packed_delta(const Problem& p, float* delta, void* stream) {
  Args args;
  args.q = host::view4(p.q);
  args.k = host::view4(p.k);
  args.v = host::view4(p.v);
  args.o = host::view4(p.o);
  args.d_o = host::view4(p.d_o);
  args.lse = static_cast<const float*>(p.lse.data);
  args.lse_h = p.lse.strides[1];
  args.lse_s = p.lse.strides[2];
  if (p.d_lse.defined()) {
    args.d_lse = static_cast<const float*>(p.d_lse.data);
    args.d_lse_h = p.d_lse.strides[1];
    args.d_lse_s = p.d_lse.strides[2];
  }
  host::fill_alibi(args, p);
  host::fill_offsets(args.cu_q, p.cu_seqlens_q);
  host::fill_offsets(args.cu_k, p.cu_seqlens_k);
  args.sequences = static_cast<int>(p.batch);
  args.q_rows = static_cast<int>(p.total_q);
  args.k_rows = static_cast<int>(p.total_k);
  args.heads_q = static_cast<int>(p.heads_q);
  args.group = static_cast<int>(p.group());
  args.head_dim = static_cast<int>(p.head_dim);
  args.head_dim_v = static_cast<int>(p.head_dim_v);
  args.positions = host::positions(p);
  args.scale = p.scale;
  args.softcap = static_cast<float>(p.softcap);
  args.delta = delta;
  const Config config = {
      .element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16,
      .columns = static_cast<int>(round_up(std::max(p.head_dim, p.head_dim_v), std::int64_t{64}))};
  const std::int64_t threads = p.heads_q * p.total_q * 32;
  launch(host::load_config(config, p.device.index, unit),
         {.x = ceil_div(threads, bwd_packed_delta::kThreads)}, stream, args);
}

}  // namespace tilewise::cuda
