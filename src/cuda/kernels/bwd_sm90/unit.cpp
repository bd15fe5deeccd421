#include "cuda/kernels/bwd_sm90/unit.h"

#include <map>
#include <string>

#include "cuda/host/expressions.h"
#include "cuda/host/options.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/config_text.h"

namespace tilewise::cuda {

KernelUnit bwd_sm90_unit(const bwd_sm90::Config& c) {
  KernelUnit unit;
  unit.stem = "bwd_sm90";
  unit.file = "bwd_sm90/kernel";
  unit.config = element_text(c.element) + number_text("head_dim", c.head_dim) +
                number_text("head_dim_v", c.head_dim_v) + number_text("block_m", c.block_m) +
                number_text("block_n", c.block_n) + number_text("chunk_rows", c.chunk_rows) +
                number_text("q_stages", c.q_stages) + number_text("do_stages", c.do_stages) +
                number_text("k_stages", c.k_stages) + enum_text("mask", "Mask", c.mask) +
                flag_text("modified", c.modified) + flag_text("softcap", c.softcap) +
                flag_text("alibi", c.alibi) + flag_text("deterministic", c.deterministic) +
                flag_text("fold_lse", c.fold_lse) + flag_text("v_registers", c.v_registers) +
                flag_text("exact", c.exact) + flag_text("split", c.split) +
                flag_text("half_registers", c.half_registers);
  if (c.ragged()) {
    unit.config += enum_text("lengths", "Lengths", c.lengths);
    unit.args = "RaggedArgs";
  }
  if (c.listed()) {
    unit.config += enum_text("lists", "Lists", c.lists);
    unit.args = "ListArgs";
  }
  unit.config += expressions_text(c.expressions);
  if (c.gated) unit.config += flag_text("gated", true);
  unit.config += options_text(c.options);
  if (c.hides) unit.config += flag_text("hides", true);
  if (c.diagonals) unit.config += flag_text("diagonals", true);
  unit.threads = c.threads();
  unit.shared_bytes = bwd_sm90::SharedPlan(c).bytes;
  std::map<int, WgmmaShape> shapes;  // by N
  shapes[c.block_m].operands_in_shared = true;
  shapes[c.block_m].rows_in_shared = c.v_registers || c.half_registers;
  for (const int columns : {c.head_dim, c.head_dim_v}) {
    shapes[columns].operand_in_registers = true;
  }
  if (!c.wide()) shapes[64].transposed_in_shared = true;
  unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n";
  for (auto& [n, shape] : shapes) {
    shape.n = n;
    unit.prelude += wgmma_text(c.element, shape);
  }
  return unit;
}

}  // namespace tilewise::cuda
