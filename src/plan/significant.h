/// Numbers for people.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "problem/plain_text.h"

namespace tilewise {

/// `value` rounded to `digits` significant digits, without an exponent: 0.0448, 63, 4650. Digits
/// before the decimal point all stand.
inline std::string significant(double value, int digits) {
  if (value == 0.0 || !std::isfinite(value)) return value == 0.0 ? "0" : std::to_string(value);
  const int before = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  std::string out = number_text(value, std::chars_format::fixed, std::max(0, digits - before));
  if (out.find('.') == std::string::npos) return out;
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out;
}

}  // namespace tilewise
