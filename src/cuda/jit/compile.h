/// compile(): from a unit to machine code.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/jit/unit.h"

namespace tilewise::cuda {

/// The compiler's report about a kernel.
struct CompileReport {
  int registers = 0;  ///< of a thread, at entry
  int spill_store_bytes = 0, spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_shared_bytes = 0;
  int mma_count = 0;               ///< mma.sync instructions in the PTX
  int wgmma_count = 0;             ///< wgmma.mma_async instructions in the PTX
  double seconds = 0.0;            ///< CPU time
  std::vector<std::string> notes;  ///< ptxas's C75xx notes: "C7510 Potential Performance Loss: ..."
};

struct Compiled {
  std::string cubin;
  std::string log;
  std::string compiler;  ///< NVRTC's version, "13.0"
  CompileReport report;
};

/// "sm_80", "sm_90a": what NVRTC is asked for.
std::string arch_name(int arch);

/// Compiles a unit for an architecture. Needs no GPU. Thread-safe.
/// Throws CompileError: without NVRTC it says what was looked for, else it carries the log.
Compiled compile(const KernelUnit& unit, int arch);

/// Reads ptxas's report (--ptxas-options=-v) out of a compile log.
CompileReport parse_log(std::string_view log);

}  // namespace tilewise::cuda
