#include "cuda/kernels/fwd_sm90/unit.h"

#include "cuda/host/wgmma_text.h"

namespace tilewise::cuda {
namespace {

constexpr int kSharedLimit = 227 * 1024;
/// Accumulators and P fragments of a thread that compile without spills (fwd_sm90/README.md).
constexpr int kRegisters2 = 200, kRegisters3 = 128;

std::string field(const char* name, int value) {
  return std::string(".") + name + " = " + std::to_string(value);
}
std::string field(const char* name, bool value) {
  return std::string(".") + name + " = " + (value ? "true" : "false");
}

}  // namespace

std::string config_refusal(const fwd_sm90::Config& config) {
  const int bytes = fwd_sm90::SharedPlan(config).bytes;
  if (bytes > kSharedLimit) {
    return "its tiles take " + std::to_string(bytes) + " bytes of shared memory (at most " +
           std::to_string(kSharedLimit) + ")";
  }
  const int registers = config.block_n / 2 + config.block_n / 4 + config.head_dim_v / 2;
  const int limit = config.warpgroups == 3 ? kRegisters3 : kRegisters2;
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
  unit.config =
      std::string(".element = Element::") + (c.element == tile::Element::bf16 ? "bf16" : "fp16");
  for (const std::string& text :
       {field("head_dim", c.head_dim),
        field("head_dim_v", c.head_dim_v),
        field("warpgroups", c.warpgroups),
        field("block_n", c.block_n),
        field("stages", c.stages),
        field("value_stages", c.value_stages),
        field("q_buffers", c.q_buffers),
        field("own_o", c.own_o),
        field("ping_pong", c.ping_pong),
        field("values_first", c.values_first),
        field("lazy_rescale", c.lazy_rescale),
        field("trust_maxima", c.trust_maxima),
        field("halve_cut", c.halve_cut),
        field("q_by_need", c.q_by_need),
        field("chain_tiles", c.chain_tiles),
        field("skip_blocks", c.skip_blocks),
        field("dynamic", c.dynamic),
        ".mask = static_cast<Mask>(" + std::to_string(static_cast<int>(c.mask)) + ")",
        ".modification = static_cast<Modification>(" +
            std::to_string(static_cast<int>(c.modification)) + ")",
        ".lengths = static_cast<Lengths>(" + std::to_string(static_cast<int>(c.lengths)) + ")",
        field("pack_heads", c.pack_heads),
        field("split", c.split)}) {
    unit.config += ", " + text;
  }
  unit.threads = 128 * (c.warpgroups + 1);
  unit.shared_bytes = fwd_sm90::SharedPlan(c).bytes;
  unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n";
  if (c.block_n == c.head_dim_v) {
    unit.prelude += wgmma_text(c.element, {c.block_n, true, true});
  } else {
    unit.prelude += wgmma_text(c.element, {c.block_n, true, false});
    unit.prelude += wgmma_text(c.element, {c.head_dim_v, false, true});
  }
  return unit;
}

}  // namespace tilewise::cuda
