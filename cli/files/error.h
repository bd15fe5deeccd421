/// FileError: a file cannot be read or written, or does not hold what its format says. The command
/// line ends with exit code 2 on it.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tilewise::files {

class FileError : public std::runtime_error {
 public:
  /// The message is "file: what".
  FileError(std::string_view file, std::string_view what)
      : std::runtime_error(std::string(file) + ": " + std::string(what)) {}
};

/// Text from a file, for a message: in double quotes, control and non-ASCII bytes as \xNN, cut when
/// long. What a stranger's file says must not reach a terminal as it is.
std::string in_quotes(std::string_view text);

}  // namespace tilewise::files
