/// The words of formulas as text.
#pragma once

#include <string>
#include <string_view>

#include "expression/term.h"

namespace tilewise::expression {

/// True for a letter followed by letters, digits and underscores that formulas do not use
/// themselves.
bool is_capture_name(std::string_view name);

}  // namespace tilewise::expression
