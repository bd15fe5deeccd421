#include "cuda/kernels/bwd_sm90/unit.h"

#include <map>
#include <string>

#include "cuda/host/expressions.h"
#include "cuda/host/options.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/config_text.h"

namespace tilewise::cuda {
namespace {

std::string shape_text(const bwd_sm90::Shape& s) {
  return number_text("block_m", s.block_m) + number_text("block_n", s.block_n) +
         number_text("chunk_rows", s.chunk_rows) + number_text("q_stages", s.q_stages) +
         number_text("do_stages", s.do_stages) + number_text("k_stages", s.k_stages);
}
std::string sums_text(const bwd_sm90::Sums& s) {
  return flag_text("deterministic", s.deterministic) + flag_text("split", s.split) +
         (s.diagonals ? flag_text("diagonals", true) : "") +
         (s.bias ? flag_text("bias", true) : "") + (s.narrow ? flag_text("narrow", true) : "");
}

}  // namespace

std::string logits_text(const bwd_sm90::Logits& l) {
  return group_text("logits", flag_text("modified", l.modified) + flag_text("softcap", l.softcap) +
                                  flag_text("alibi", l.alibi) +
                                  (l.gated ? flag_text("gated", true) : ""));
}

KernelUnit bwd_sm90_unit(const bwd_sm90::Config& c) {
  KernelUnit unit;
  unit.stem = "bwd_sm90";
  unit.file = "bwd_sm90/kernel";
  unit.config = element_text(c.element) + number_text("head_dim", c.head_dim) +
                number_text("head_dim_v", c.head_dim_v) + group_text("shape", shape_text(c.shape)) +
                enum_text("mask", "Mask", c.mask) + (c.hides ? flag_text("hides", true) : "") +
                logits_text(c.logits) + flag_text("two_plane", c.two_plane) +
                group_text("sums", sums_text(c.sums));
  if (c.ragged()) {
    unit.config +=
        enum_text("lengths", "Lengths", c.lengths) + (c.spans ? flag_text("spans", true) : "");
    unit.args = "RaggedArgs";
  }
  if (c.listed()) {
    unit.config +=
        enum_text("lists", "Lists", c.lists) + (c.passes ? flag_text("passes", true) : "");
    unit.args = "ListArgs";
  }
  unit.config += expressions_text(c.expressions) + options_text(c.options);
  unit.threads = c.threads();
  unit.shared_bytes = bwd_sm90::SharedPlan(c).bytes;
  std::map<int, WgmmaShape> shapes;  // by N
  shapes[c.shape.block_m].operands_in_shared = true;
  shapes[c.shape.block_m].rows_in_shared = c.v_registers() || c.half_registers();
  for (const int columns : {c.head_dim, c.head_dim_v}) {
    shapes[columns].operand_in_registers = true;
  }
  if (!c.large_dim()) {
    shapes[64].transposed_in_shared = true;
    if (c.columns_dq() % 64 != 0) shapes[c.columns_dq() % 64].transposed_in_shared = true;
  }
  unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n";
  for (auto& [n, shape] : shapes) {
    shape.n = n;
    unit.prelude += wgmma_text(c.element, shape);
  }
  return unit;
}

}  // namespace tilewise::cuda
