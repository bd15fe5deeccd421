/// The environment of a report, as JSON and as lines for people.
#pragma once

#include <string>

#include "cli/shell/table.h"
#include "harness/environment.h"

namespace tilewise::cli {

Value environment_json(const Environment& environment);

/// "AMD EPYC 9654, 2 of 2 CPUs, avx512; GNU 12.2.0 Release; commit ...; date": one line under a
/// table.
std::string environment_line(const Environment& environment);

}  // namespace tilewise::cli
