/// The fitted part of the time model: docs/planner.md. Kernels count work; these constants, fitted
/// to the results in bench/results by `./tw fit`, turn it into time.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise {

/// How a CPU pass spends its time, each term in units of what the machine's own rates give:
/// ms = fixed + bytes byte_factor / bandwidth
///      + (flops flop_factor + the counts of CpuWork, each times its flops) / rate.
struct CpuTerms {
  double fixed_us = 0.0;
  double flops_per_pair = 0.0;    ///< what a pair costs beside its products: exp, maximum, sums
  double flop_factor = 0.0;       ///< 1 / share of the multiply-add rate
  double byte_factor = 0.0;       ///< 1 / share of the copy bandwidth
  double flops_per_packed = 0.0;  ///< what an operand's element costs that BLAS packs
  double flops_per_copied = 0.0;
  double flops_per_widened = 0.0;
  double flops_per_start = 0.0;
};

/// How a GPU kernel multiplies: 16-bit operands, float32 rounded to tf32, float32 in full.
enum class Arithmetic { bits16, tf32, float32 };
Arithmetic arithmetic(const Problem& problem);

/// A kernel's own prediction on one architecture: ms = fixed + factor * its model.
struct CudaTerms {
  std::string_view kernel;
  int arch = 0;
  Arithmetic arithmetic = Arithmetic::bits16;
  bool masked = false;  ///< of problems with a causal mask or a window; else of those without
  double fixed_us = 0.0;
  double factor = 1.0;
};

/// Tiles; a few query rows, which read the keys where they lie; matrices in memory; those of a few
/// query rows, where laying out K and V is most of the work.
enum class CpuForm { flash, decode, unfused, unfused_short };

/// The terms of a form and a pass. decode has only a forward.
const CpuTerms& cpu_terms(CpuForm form, Pass pass);
std::span<const CudaTerms> cuda_terms();

/// Rates of an instruction set relative to float32 in the machine's widest vectors.
struct IsaRates {
  double products = 1.0;
  double pairs = 1.0;  ///< what every pair of query and key costs beside its products
};

/// The work of a CPU pass.
struct CpuWork {
  double pairs = 0.0, flops = 0.0, bytes = 0.0;
  double packed = 0.0;   ///< elements of K and V that a BLAS library lays out anew, in every task
  double copied = 0.0;   ///< elements of tensors that flash lays out in tiles, or back
  double widened = 0.0;  ///< those of 16 bits
  double starts = 0.0;   ///< heads, or few query rows, each of which flash begins and ends
  IsaRates rates;        ///< of the kernel's instruction set
};

/// Rates of the flash kernels of an instruction set: "scalar", "avx2", ... (flash_fwd.md).
IsaRates isa_rates(std::string_view isa, Pass pass);

inline constexpr std::size_t kCpuTerms = 8;

double cpu_time_ms(const CpuTerms& terms, const CpuWork& work, const Hardware& machine);

/// Each term of cpu_time_ms with its constant at 1, in the order of CpuTerms: what is fitted.
std::array<double, kCpuTerms> cpu_features(const CpuWork& work, const Hardware& machine);

/// `model_ms` with the kernel's correction on this architecture, if it has one: that of problems
/// masked as this one, else of the others.
double fitted_cuda_ms(std::string_view kernel, const Problem& problem, double model_ms,
                      const Hardware& machine);

}  // namespace tilewise
