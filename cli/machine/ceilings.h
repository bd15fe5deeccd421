/// `info --measure`: the measured peak rates of a machine, beside the vendor's figures.
#pragma once

#include <string>

#include "cli/shell/table.h"
#include "tilewise/plan.h"

namespace tilewise::cli {

struct CeilingReport {
  Table table;
  std::string words;  ///< the ratio of near memory to far, and where the figures are kept
};

/// Measures the machine, keeps what `plan` counts on (machines.h) and reports it. Some seconds.
/// Throws DeviceError, CompileError, OutOfMemory, FileError.
CeilingReport measure_ceilings(const Hardware& machine, const std::string& date);

}  // namespace tilewise::cli
