#include "cuda/kernels/bwd_sm90_unit.h"

#include <map>
#include <string>

#include "cuda/kernels/wgmma_text.h"

namespace tilewise::cuda {

KernelUnit bwd_sm90_unit(const bwd_sm90::Config& c) {
  const auto number = [](const char* name, int value) {
    return std::string(", .") + name + " = " + std::to_string(value);
  };
  const auto flag = [](const char* name, bool value) {
    return std::string(", .") + name + " = " + (value ? "true" : "false");
  };
  KernelUnit unit;
  unit.stem = "bwd_sm90";
  unit.config =
      c.element == tile::Element::bf16 ? ".element = Element::bf16" : ".element = Element::fp16";
  unit.config +=
      number("head_dim", c.head_dim) + number("head_dim_v", c.head_dim_v) +
      number("block_m", c.block_m) + number("block_n", c.block_n) +
      number("chunk_rows", c.chunk_rows) + number("q_stages", c.q_stages) +
      number("k_stages", c.k_stages) + ", .mask = static_cast<Mask>(" +
      std::to_string(static_cast<int>(c.mask)) + ")" + flag("modified", c.modified) +
      flag("softcap", c.softcap) + flag("alibi", c.alibi) + flag("deterministic", c.deterministic) +
      flag("fold_lse", c.fold_lse) + flag("late_dq", c.late_dq) +
      flag("v_registers", c.v_registers) + flag("exact", c.exact) + number("buffers", c.buffers) +
      flag("bulk_dq", c.bulk_dq) + flag("split", c.split) + flag("dq_in_turn", c.dq_in_turn);
  unit.threads = c.threads();
  unit.shared_bytes = bwd_sm90::SharedPlan(c).bytes;
  std::map<int, WgmmaShape> shapes;  // by N
  shapes[c.block_m].operands_in_shared = true;
  shapes[c.block_m].rows_in_shared = c.v_registers;
  for (const int columns : {c.head_dim, c.head_dim_v}) {
    // An instruction takes no more registers than the launch gives a thread: 128 of 512.
    shapes[c.wide() && columns > 192 ? columns / 2 : columns].operand_in_registers = true;
  }
  const int columns_dq = c.wide()           ? c.dq_in_turn ? 32 : 64
                         : c.block_m == 128 ? c.columns_dq()
                                            : c.columns_dq() / 2;
  shapes[columns_dq].transposed_in_shared = true;
  unit.prelude = "#include \"cuda/tile/wgmma.cuh\"\n";
  for (auto& [n, shape] : shapes) {
    shape.n = n;
    unit.prelude += wgmma_text(c.element, shape);
  }
  return unit;
}

}  // namespace tilewise::cuda
