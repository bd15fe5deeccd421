/// A progress bar on stderr: on a terminal only, silent in a pipe or a file.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace tilewise::cli {

class Progress {
 public:
  explicit Progress(std::size_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  /// Says what is being worked on now.
  void show(std::string_view what);
  /// One more is done.
  void advance() { ++done_; }
  /// Takes the bar off the terminal, so that a line can be printed.
  void clear();

 private:
  bool terminal_;
  bool drawn_ = false;
  std::size_t total_;
  std::size_t done_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace tilewise::cli
