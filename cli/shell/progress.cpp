#include "cli/shell/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tilewise::cli {
namespace {

constexpr std::size_t kBarWidth = 24;

std::size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

}  // namespace

Progress::Progress(std::size_t total)
    : terminal_(is_terminal()), total_(total), begin_(std::chrono::steady_clock::now()) {}

void Progress::show(std::string_view what) {
  if (!terminal_) return;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  const std::size_t filled = total_ == 0 ? kBarWidth : kBarWidth * std::min(done_, total_) / total_;
  std::string bar;
  for (std::size_t i = 0; i < kBarWidth; ++i) bar += i < filled ? "█" : "░";
  const std::string counts = fmt::format(" {:>3}/{} {:4.0f} s  ", done_, total_, passed.count());
  const std::size_t columns = terminal_columns();
  const std::size_t used = kBarWidth + counts.size();
  const std::size_t room = columns > used + 1 ? columns - used - 1 : 0;
  fmt::print(stderr, "\r\x1b[K{}{}{}", bar, counts, what.substr(0, room));
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace tilewise::cli
