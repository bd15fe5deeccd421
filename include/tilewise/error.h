/// Errors that Tilewise raises. The library never aborts, exits or prints; every message names the
/// argument, its value and what was expected.
#pragma once

#include <stdexcept>
#include <string>

/// Marks what the shared library exports; everything else in it is hidden.
#define TILEWISE_API __attribute__((visibility("default")))

namespace tilewise {

/// Base of every exception that the library throws on purpose.
class TILEWISE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument is wrong. Nothing was launched, nothing was written.
class TILEWISE_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The problem is well-formed, and no kernel (or not the forced one) can run it. The message lists
/// every kernel that was considered with the reason of its refusal.
class TILEWISE_API Unsupported : public Error {
 public:
  using Error::Error;
};

/// An allocator or a memory budget has no room left. The library stays usable.
class TILEWISE_API OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A device or its driver is missing, or reported an error; the message carries the driver's name
/// for it.
class TILEWISE_API DeviceError : public Error {
 public:
  using Error::Error;
};

/// Device source could not be compiled; the message carries the compiler's log.
class TILEWISE_API CompileError : public Error {
 public:
  using Error::Error;
};

}  // namespace tilewise
