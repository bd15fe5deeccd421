#include "cuda/kernels/fwd_sm90/unit.h"

#include "cuda/host/expressions.h"
#include "cuda/host/options.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/config_text.h"

namespace tilewise::cuda {
namespace {

/// A multiprocessor's. A block takes 1 KiB of it beside what the kernel asks for.
constexpr int kSharedMemory = 228 * 1024, kSharedReserved = 1024;
/// Accumulators and P fragments of a thread that compile without spills (fwd_sm90/README.md).
constexpr int kRegisters2 = 200, kRegisters3 = 128, kRegisters4 = 80;

std::string shape_text(const fwd_sm90::Shape& s) {
  return number_text("warpgroups", s.warpgroups) + number_text("block_n", s.block_n) +
         number_text("stages", s.stages) + number_text("value_stages", s.value_stages) +
         number_text("q_buffers", s.q_buffers) + (s.held > 1 ? number_text("held", s.held) : "") +
         flag_text("own_o", s.own_o) + (s.resident > 1 ? number_text("resident", s.resident) : "") +
         (s.bias_stages > 0 ? number_text("bias_stages", s.bias_stages) : "");
}
std::string schedule_text(const fwd_sm90::Schedule& s) {
  return flag_text("ping_pong", s.ping_pong) + flag_text("skip_blocks", s.skip_blocks) +
         flag_text("lazy_rescale", s.lazy_rescale) + flag_text("values_first", s.values_first) +
         flag_text("halve_cut", s.halve_cut) + flag_text("q_by_need", s.q_by_need) +
         flag_text("chain_tiles", s.chain_tiles) + flag_text("dynamic", s.dynamic) +
         (s.from_diagonal ? flag_text("from_diagonal", true) : "") +
         (s.bits_between ? flag_text("bits_between", true) : "") +
         (s.boxes_apart ? flag_text("boxes_apart", true) : "");
}

}  // namespace

std::string config_refusal(const fwd_sm90::Config& config) {
  const int bytes = fwd_sm90::SharedPlan(config).bytes;
  const int most = kSharedMemory / config.shape.resident - kSharedReserved;
  if (bytes > most) {
    return "its tiles take " + std::to_string(bytes) + " bytes of shared memory (at most " +
           std::to_string(most) + ")";
  }
  const int registers = config.shape.block_n / 2 + config.shape.block_n / 4 +
                        config.shape.held * config.head_dim_v / 2;
  const int warpgroups = config.shape.computing() * config.shape.resident;
  const int limit = warpgroups > 3 ? kRegisters4 : warpgroups == 3 ? kRegisters3 : kRegisters2;
  if (registers > limit) {
    return "S, P and O take " + std::to_string(registers) + " registers of a thread (at most " +
           std::to_string(limit) + ")";
  }
  return {};
}

KernelUnit fwd_sm90_unit(const fwd_sm90::Config& c) {
  KernelUnit unit;
  unit.stem = "fwd_sm90";
  unit.file = "fwd_sm90/kernel";
  unit.config = element_text(c.element) + number_text("head_dim", c.head_dim) +
                number_text("head_dim_v", c.head_dim_v) + group_text("shape", shape_text(c.shape)) +
                group_text("schedule", schedule_text(c.schedule)) +
                enum_text("mask", "Mask", c.mask) +
                enum_text("modification", "Modification", c.modification) +
                enum_text("lengths", "Lengths", c.lengths) + flag_text("pack_heads", c.pack_heads) +
                flag_text("split", c.split);
  if (c.lists != fwd_sm90::Lists::none) {
    unit.config += enum_text("lists", "Lists", c.lists);
    unit.args = "ListArgs";
  }
  if (c.paged()) {
    unit.config += enum_text("pages", "PageCopies", c.pages);
    unit.args = "PagedArgs";
  }
  if (c.documents) {
    unit.config += flag_text("documents", true);
    unit.args = "DocumentArgs";
  }
  unit.config += expressions_text(c.expressions) + options_text(c.options);
  unit.threads = c.shape.threads();
  unit.min_blocks = c.shape.resident;
  unit.shared_bytes = fwd_sm90::SharedPlan(c).bytes;
  unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n";
  if (c.shape.block_n == c.head_dim_v) {
    unit.prelude += wgmma_text(c.element, {c.shape.block_n, true, true});
  } else {
    unit.prelude += wgmma_text(c.element, {c.shape.block_n, true, false});
    unit.prelude += wgmma_text(c.element, {c.head_dim_v, false, true});
  }
  return unit;
}

}  // namespace tilewise::cuda
