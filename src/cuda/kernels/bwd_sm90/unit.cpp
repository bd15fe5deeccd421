#include "cuda/kernels/bwd_sm90/unit.h"

#include <map>
#include <string>

#include "cuda/host/wgmma_text.h"

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
  unit.file = "bwd_sm90/kernel";
  unit.config =
      c.element == tile::Element::bf16 ? ".element = Element::bf16" : ".element = Element::fp16";
  unit.config += number("head_dim", c.head_dim) + number("head_dim_v", c.head_dim_v) +
                 number("block_m", c.block_m) + number("block_n", c.block_n) +
                 number("chunk_rows", c.chunk_rows) + number("q_stages", c.q_stages) +
                 number("do_stages", c.do_stages) + number("k_stages", c.k_stages) +
                 ", .mask = static_cast<Mask>(" + std::to_string(static_cast<int>(c.mask)) + ")" +
                 flag("modified", c.modified) + flag("softcap", c.softcap) +
                 flag("alibi", c.alibi) + flag("deterministic", c.deterministic) +
                 flag("fold_lse", c.fold_lse) + flag("v_registers", c.v_registers) +
                 flag("exact", c.exact) + flag("split", c.split) +
                 flag("half_registers", c.half_registers);
  if (c.ragged()) {
    unit.config +=
        ", .lengths = static_cast<Lengths>(" + std::to_string(static_cast<int>(c.lengths)) + ")";
    unit.args = "RaggedArgs";
  }
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
