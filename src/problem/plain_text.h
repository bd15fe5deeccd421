/// Numbers as text, the same whatever locale the caller's program has set.
#pragma once

#include <array>
#include <charconv>
#include <locale>
#include <sstream>
#include <string>

namespace tilewise {

/// As printf writes "%.*f" (fixed) or "%.*g" (general) in the C locale.
inline std::string number_text(double value, std::chars_format format, int digits) {
  std::array<char, 352> text{};  // the largest double has 309 digits before its point
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  return {text.data(), end.ptr};
}

/// A stream of keys and of files.
class PlainStream : public std::stringstream {
 public:
  explicit PlainStream(const std::string& text = {}) : std::stringstream(text) {
    imbue(std::locale::classic());
  }
};

}  // namespace tilewise
