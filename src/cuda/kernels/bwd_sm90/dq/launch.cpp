#include "cuda/kernels/bwd_sm90/dq/launch.h"

#include <algorithm>
#include <map>
#include <string>

#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/tile_order.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/bwd_sm90/unit.h"

namespace tilewise::cuda {

using bwd_dq_sm90::Config;

bwd_sm90::SectionOrder bwd_dq_sm90_order(const Problem& p) {
  OrderProblem order;
  order.blocks = host::query_blocks(p, bwd_dq_sm90::kBlockM);
  order.heads = p.stored_batch() * p.heads_q;
  order.heads_per_kv = p.group();
  order.kv_bytes = std::max<std::int64_t>(p.seq_k, 1) * (p.head_dim + p.head_dim_v) * 2;
  if (p.has_positional_mask()) {
    order.section_bytes = 16 * kMiB;
    order.last_bytes = 32 * kMiB;
  }
  return section_order(order);
}

KernelUnit bwd_dq_sm90_unit(const Config& c) {
  KernelUnit unit;
  unit.stem = "bwd_dq_sm90";
  unit.file = "bwd_sm90/dq/kernel";
  unit.config = element_text(c.element) + number_text("head_dim", c.head_dim) +
                number_text("head_dim_v", c.head_dim_v) + number_text("k_stages", c.k_stages) +
                number_text("v_stages", c.v_stages) + enum_text("mask", "Mask", c.mask) +
                logits_text(c.logits) + flag_text("two_plane", c.two_plane) +
                flag_text("ping_pong", c.ping_pong);
  if (c.ragged()) {
    unit.config += enum_text("lengths", "Lengths", c.lengths);
    unit.args = "RaggedArgs";
  }
  unit.threads = bwd_dq_sm90::kThreads;
  unit.shared_bytes = bwd_dq_sm90::SharedPlan(c).bytes;
  std::map<int, WgmmaShape> shapes;  // by N
  shapes[bwd_dq_sm90::kBlockN].operands_in_shared = true;
  shapes[c.head_dim].operand_in_registers = true;
  unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n";
  for (auto& [n, shape] : shapes) {
    shape.n = n;
    unit.prelude += wgmma_text(c.element, shape);
  }
  return unit;
}

Kernel load_bwd_dq_sm90(const bwd_sm90::Config& config, int device) {
  return host::load_config(bwd_dq_sm90::config_beside(config), device, bwd_dq_sm90_unit);
}

void launch_bwd_dq_sm90(const Kernel& kernel, const Problem& p, const bwd_sm90::Config& config,
                        const bwd_sm90::RaggedArgs& of, unsigned* next_tile, void* stream) {
  bwd_dq_sm90::RaggedArgs args = {bwd_dq_sm90::args_beside(config, of), of.of};
  args.order = bwd_dq_sm90_order(p);
  args.tiles = args.order.blocks * args.order.heads;
  args.next_tile = next_tile;
  const std::int64_t grid = std::min<std::int64_t>(args.tiles, host::kTypicalMultiprocessors);
  if (config.ragged()) {
    launch(kernel, host::following(grid, p.device.index), stream, args);
  } else {
    launch<bwd_dq_sm90::Args>(kernel, host::following(grid, p.device.index), stream, args);
  }
}

}  // namespace tilewise::cuda
