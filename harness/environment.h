/// Environment: what a report says about where its numbers come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tilewise {

struct Environment {
  std::string library_version;  ///< "0.1.0"
  std::string
      commit;  ///< of the checkout that was built, "-dirty" when changed; "unknown" outside one
  std::string compiler;    ///< "GNU 12.2.0"
  std::string build_type;  ///< "Release"
  std::string date;        ///< UTC, "2026-11-28T00:45:06Z"
  std::string host_os;     ///< "Debian GNU/Linux 12 (bookworm), Linux 6.1.0"

  std::string cpu;             ///< model name
  int cpu_count = 0;           ///< logical CPUs of the machine
  int cpu_usable = 0;          ///< CPUs this process may run on
  std::string isa;             ///< best usable set: "scalar", "avx2", "avx512", "amx"
  std::string isa_flags;       ///< the sets that matter here: "avx2 fma f16c avx512f ..."
  std::int64_t llc_bytes = 0;  ///< last-level cache
  std::int64_t memory_bytes = 0;

  struct Gpu {
    std::string name;
    std::string arch;  ///< "sm_90"
    std::int64_t memory_bytes = 0;
  };
  std::vector<Gpu> gpus;
  std::string driver;  ///< empty without one
  std::string nvrtc;   ///< version; empty without one
};

/// Looks now. Never throws for what is missing: the field stays empty.
Environment read_environment();

}  // namespace tilewise
