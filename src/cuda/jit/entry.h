/// KernelEntry: one compiled kernel as the cache and the pack keep it. A file is lines of text,
/// then the machine code, so that `head` shows what it is.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "cuda/jit/compile.h"

namespace tilewise::cuda {

struct KernelEntry {
  std::string key;  ///< unit_key()
  std::string name;
  std::string config;
  std::string compiler;  ///< NVRTC's version
  int arch = 0;
  int threads = 0;
  int shared_bytes = 0;  ///< dynamic
  CompileReport report;
  std::string cubin;
  std::int64_t cubin_bytes = 0;  ///< also when only the description was read
};

/// Fingerprint of all that decides a kernel's machine code but the compiler: the generated unit,
/// the embedded sources that it includes (and theirs), the architecture and the compiler's options.
std::string unit_key(const KernelUnit& unit, int arch);

KernelEntry make_entry(const KernelUnit& unit, int arch, Compiled compiled);

void write_entry(std::ostream& out, const KernelEntry& entry);

/// The next entry of a stream, with its machine code; none when it is damaged, cut short or of
/// another format.
std::optional<KernelEntry> read_entry(std::istream& in);

/// Only the description; the stream is left at the start of the next entry.
std::optional<KernelEntry> read_description(std::istream& in);

}  // namespace tilewise::cuda
