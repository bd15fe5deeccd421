#include "plan/time_model.h"

#include <algorithm>

namespace tilewise {
namespace {

#include "plan/fitted_constants.inc"

}  // namespace

const CpuTerms& cpu_terms(CpuForm form, Pass pass) {
  const bool forward = pass == Pass::forward;
  if (form == CpuForm::decode) return kCpuDecode;
  if (form == CpuForm::flash) return forward ? kCpuFlashForward : kCpuFlashBackward;
  if (form == CpuForm::unfused) return forward ? kCpuUnfusedForward : kCpuUnfusedBackward;
  return forward ? kCpuUnfusedShortForward : kCpuUnfusedShortBackward;
}

IsaRates isa_rates(std::string_view isa, Pass pass) {
  // From an Emerald Rapids, bench/results/cpu. With tiles the vector units do the exponentials.
  if (isa == "amx") {
    return pass == Pass::forward ? IsaRates{.products = 10.9, .pairs = 1.0}
                                 : IsaRates{.products = 3.5, .pairs = 1.4};
  }
  // From AMD's Zen, the only CPU measured with all three. Two full 512-bit units would halve it.
  if (isa == "avx512bf16") return {1.8, 1.8};
  if (isa == "avx2") return {0.9, 0.9};
  if (isa == "scalar") return {0.06, 0.06};
  return {};
}

std::span<const CudaTerms> cuda_terms() { return kCuda; }

std::array<double, kCpuTerms> cpu_features(const CpuWork& work, const Hardware& machine) {
  const double float32_per_ms = std::max(machine.float32_tflops, 1e-6) * 1e9;
  const double flops_per_ms = float32_per_ms * work.rates.products;
  const double bytes_per_ms = std::max(machine.bandwidth_gbps, 1e-3) * 1e6;
  // What the last-level cache still holds of the call before comes three times as fast.
  constexpr double kFits = 0.75, kCached = 0.35;
  const bool cached = work.bytes < kFits * static_cast<double>(machine.l2_bytes);
  const double share = cached ? kCached : 1.0;
  // What is neither a product nor a pair is done in float32's vectors, or in those of a lesser set.
  const double others_per_ms = float32_per_ms * std::min(1.0, work.rates.pairs);
  return {1e-3,
          work.pairs / (float32_per_ms * work.rates.pairs),
          work.flops / flops_per_ms,
          share * work.bytes / bytes_per_ms,
          share * work.packed / flops_per_ms,
          work.copied / others_per_ms,
          work.widened / others_per_ms,
          work.starts / others_per_ms};
}

double cpu_time_ms(const CpuTerms& terms, const CpuWork& work, const Hardware& machine) {
  const std::array<double, kCpuTerms> f = cpu_features(work, machine);
  return terms.fixed_us * f[0] + terms.flops_per_pair * f[1] + terms.flop_factor * f[2] +
         terms.byte_factor * f[3] + terms.flops_per_packed * f[4] + terms.flops_per_copied * f[5] +
         terms.flops_per_widened * f[6] + terms.flops_per_start * f[7];
}

Arithmetic arithmetic(const Problem& p) {
  if (dtype_bytes(p.dtype) == 2) return Arithmetic::bits16;
  return p.precision == Precision::tf32 ? Arithmetic::tf32 : Arithmetic::float32;
}

double fitted_cuda_ms(std::string_view kernel, const Problem& p, double model_ms,
                      const Hardware& machine) {
  const Arithmetic kind = arithmetic(p);
  const CudaTerms* found = nullptr;
  for (const CudaTerms& terms : cuda_terms()) {
    if (terms.kernel != kernel || terms.arch != machine.arch || terms.arithmetic != kind) continue;
    if (found == nullptr || terms.masked == p.has_positional_mask()) found = &terms;
  }
  return found == nullptr ? model_ms : 1e-3 * found->fixed_us + found->factor * model_ms;
}

}  // namespace tilewise
