/// The flash rows of the CPU: the same two kernels, once per instruction set.
#include <array>

#include "cpu/flash/flash.h"
#include "cpu/flash/tiles.h"

namespace tilewise::cpu {
namespace {

std::string supports(const KernelRow& row, const Problem& problem, const Hardware& machine) {
  return tiled_refusal(problem, *static_cast<const Isa*>(row.config), machine);
}

constexpr Isa kScalar = Isa::scalar;
constexpr Isa kAvx2 = Isa::avx2;
constexpr Isa kAvx512 = Isa::avx512;
constexpr Isa kAvx512Bf16 = Isa::avx512bf16;
constexpr Isa kAmx = Isa::amx;

std::string bf16_supports(const KernelRow& row, const Problem& problem, const Hardware& machine) {
  if (std::string reason = supports(row, problem, machine); !reason.empty()) return reason;
  if (problem.dtype != DType::bfloat16) return "bfloat16 only";
  if (problem.pass == Pass::forward && faster_as_float32(problem)) {
    return "few query rows: the float32 rows read the keys where they lie";
  }
  return "";
}

constexpr KernelRow bf16_forward_row(const char* name, const char* summary, const Isa& isa) {
  return {name,    "flash",       DeviceType::cpu,         Pass::forward,
          summary, bf16_supports, flash_forward_bf16_cost, flash_forward_bf16,
          &isa};
}
constexpr KernelRow bf16_backward_row(const char* name, const char* summary, const Isa& isa) {
  return {name,    "flash",       DeviceType::cpu,          Pass::backward,
          summary, bf16_supports, flash_backward_bf16_cost, flash_backward_bf16,
          &isa};
}

constexpr KernelRow forward_row(const char* name, const char* summary, const Isa& isa) {
  return {name,    "flash",  DeviceType::cpu,    Pass::forward,
          summary, supports, flash_forward_cost, flash_forward,
          &isa};
}
constexpr KernelRow backward_row(const char* name, const char* summary, const Isa& isa) {
  return {name,    "flash",  DeviceType::cpu,     Pass::backward,
          summary, supports, flash_backward_cost, flash_backward,
          &isa};
}

constexpr std::array kRows{
    bf16_forward_row("flash_fwd_amx", "bfloat16, tiled, online softmax; AMX, 2 x 2 tiles", kAmx),
    bf16_forward_row("flash_fwd_avx512bf16",
                     "bfloat16, tiled, online softmax; vdpbf16ps, 8 x 32 register tile",
                     kAvx512Bf16),
    forward_row("flash_fwd_avx512", "tiled, online softmax; AVX-512, 6 x 64 register tile",
                kAvx512),
    forward_row("flash_fwd_avx2", "tiled, online softmax; AVX2 + FMA, 6 x 16 register tile", kAvx2),
    forward_row("flash_fwd_scalar", "tiled, online softmax; any x86-64 CPU", kScalar),
    bf16_backward_row("flash_bwd_amx", "bfloat16, tiled, P recomputed from LSE; AMX, 2 x 2 tiles",
                      kAmx),
    bf16_backward_row("flash_bwd_avx512bf16",
                      "bfloat16, tiled, P recomputed from LSE; vdpbf16ps, 8 x 32 register tile",
                      kAvx512Bf16),
    backward_row("flash_bwd_avx512", "tiled, P recomputed from LSE; AVX-512, 6 x 64 register tile",
                 kAvx512),
    backward_row("flash_bwd_avx2", "tiled, P recomputed from LSE; AVX2 + FMA, 6 x 16 register tile",
                 kAvx2),
    backward_row("flash_bwd_scalar", "tiled, P recomputed from LSE; any x86-64 CPU", kScalar),
};

}  // namespace

std::span<const KernelRow> flash_rows() { return kRows; }

}  // namespace tilewise::cpu
