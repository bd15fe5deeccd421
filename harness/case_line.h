/// CaseLine: a line of emulator/cases, `NAME: WORDS`. Its words are those of cases/README.md and a
/// program's own, KEY=INTEGER or KEY alone for 1.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/case.h"

namespace tilewise {

class CaseLine {
 public:
  /// `own`: keys of the program's own words. Throws InvalidArgument.
  CaseLine(std::string_view line, const std::vector<std::string_view>& own);

  const char* name() const { return name_.c_str(); }
  /// A field of the grammar. The line holds its default afterwards.
  template <class T>
  T take(T Case::*field) {
    return std::exchange(words_.*field, plain().*field);
  }
  /// The value of one of the program's own words.
  int own(std::string_view key, int otherwise = 0) const;
  /// Throws InvalidArgument with `what` was expected where `good` is false.
  void expect(bool good, const char* what) const;
  /// Throws InvalidArgument where the line has words that the program has not taken.
  void expect_taken() const;

 private:
  static const Case& plain();
  void take_own(const std::string& word, std::size_t key_size);
  [[noreturn]] void fail(const std::string& text) const;

  std::string name_;
  std::vector<std::pair<std::string, int>> own_;
  Case words_;
};

/// Calls `check` with each line of a file. Empty lines and those that begin with # are skipped.
void for_each_line(const char* path, const std::vector<std::string_view>& own,
                   const std::function<void(CaseLine&)>& check);

}  // namespace tilewise
