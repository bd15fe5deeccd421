/// Census: what the compiler said about every packed kernel, held against what its row allows.
/// Needs no GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/jit/pack.h"

namespace tilewise::cuda {

struct CensusLine {
  PackUnit packed;
  KernelEntry entry;                ///< description; empty key when the pack has none
  std::vector<std::string> faults;  ///< in words; none = the kernel passes
};

/// Every unit of pack_units(arch), looked up in `pack`.
std::vector<CensusLine> census(const Pack& pack, int arch);

/// What is wrong with one compiled unit: spills, arrays in local memory, ptxas's notes of
/// serialised or ignored instructions, too much shared memory, a missing tensor-core instruction,
/// too much machine code. Seconds are printed and never judged: they depend on the machine.
std::vector<std::string> census_faults(const PackUnit& packed, const KernelEntry& entry, int arch);

/// Shared memory that a block may ask for, bytes. CUDA programming guide, "Technical Specifications
/// per Compute Capability".
int shared_limit_bytes(int arch);

/// Machine code that a kernel may have. It stands for the time of its compilation, which grows with
/// it and depends on the machine. The largest packed kernel has 205,248 bytes (NVRTC 13.0).
inline constexpr std::int64_t kMaxCubinBytes = std::int64_t{256} * 1024;

/// Kernels of an architecture that the pack may hold.
inline constexpr std::size_t kPackLimit = 64;

}  // namespace tilewise::cuda
