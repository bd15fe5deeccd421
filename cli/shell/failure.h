/// Exit codes, and the exceptions of the command line.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tilewise::cli {

enum ExitCode : int {
  kDone = 0,
  kCheckFailed = 1,
  kBadInput = 2,  ///< arguments or files
  kNoDevice = 3,  ///< no such device, or no driver for it
  kOutOfMemory = 4,
  kUnsupported = 5,  ///< no kernel can run it, it could not be compiled, no plan to compare with
  kInterrupted = 130,
};

/// An argument or a file is wrong; the message says which, and what was expected.
class BadInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A result file that no plan can be compared with: its machine is none of cases/hardware.json, or
/// no row of it is a kernel's of ours.
class NothingToCompare : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Ctrl-C.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

/// The time given to one measurement is over.
class TimedOut : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// "tilewise: MESSAGE" and a new line on stderr, where it can be written.
void complain(std::string_view message);

/// Prints the exception that is being handled in one line on stderr and returns the exit code for
/// it.
int report_failure();

}  // namespace tilewise::cli
