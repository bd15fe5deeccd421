/// Errors that Tilewise throws. The library never aborts, exits or prints. Every message names the
/// argument, its value and the expected value.
#pragma once

#include <stdexcept>
#include <string>

/// Marks the exported symbols of the shared library. All other symbols are hidden.
#define TILEWISE_API __attribute__((visibility("default")))

namespace tilewise {

/// Base class of all exceptions of the library.
class TILEWISE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument is wrong. The call has launched and written nothing.
class TILEWISE_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The problem is valid, but no kernel, or not the forced kernel, supports it. The message lists
/// every considered kernel with the reason of its refusal.
class TILEWISE_API Unsupported : public Error {
 public:
  using Error::Error;
};

/// An allocator or a memory budget is exhausted. The library remains usable.
class TILEWISE_API OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A device or its driver is missing or reported an error. The message contains the driver's name
/// of the error.
class TILEWISE_API DeviceError : public Error {
 public:
  using Error::Error;
};

/// A kernel could not be compiled. The message contains the compiler's log.
class TILEWISE_API CompileError : public Error {
 public:
  using Error::Error;
};

}  // namespace tilewise
