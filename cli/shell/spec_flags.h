/// The options of attention as flags, for `run`.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tilewise/spec.h"

namespace CLI {
class App;
}

namespace tilewise::cli {

struct SpecFlags {
  std::string window, scale, precision = "exact";
  std::string score, mask;  ///< formulas
  bool causal = false, causal_top_left = false, deterministic = false;
  double softcap = 0.0, dropout = 0.0;
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
};

/// The last of repeated options counts. The command line follows a preset's line.
void add_spec_flags(CLI::App& app, SpecFlags& flags, const char* group);

/// The spec without its tensors, but for those that its formulas capture. Throws BadInput, and
/// InvalidArgument for a formula.
AttentionSpec spec_of(const SpecFlags& flags, std::span<const Captured> captures = {});

}  // namespace tilewise::cli
