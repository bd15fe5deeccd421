/// The expressions of a case and the tensors that they capture.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/case.h"
#include "tilewise/expression.h"

namespace tilewise {

/// Reads `NAME:TYPE[SIZE,...]=CONTENT; ...`. Throws std::string with what was expected.
std::vector<CaptureCase> read_captures(std::string_view text);
std::string captures_text(const std::vector<CaptureCase>& captures);

/// The sizes as numbers, for this case's lengths. Throws InvalidArgument.
std::vector<std::int64_t> capture_sizes(const Case& c, const CaptureCase& capture);
/// The elements in row-major order.
std::vector<double> capture_values(const Case& c, const CaptureCase& capture,
                                   const std::vector<std::int64_t>& sizes, std::uint64_t seed);

}  // namespace tilewise
