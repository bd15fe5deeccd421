/// C structs of older and newer callers as this version knows them, and what they hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tilewise/attention.h"
#include "tilewise/error.h"
#include "tilewise/tilewise.h"

namespace tilewise::c_api {

/// `size` is a struct_size, `ours` that of this version; older and newer callers have others.
void check_size(const char* name, std::size_t size, std::size_t ours);

/// A struct in this version: fields of older callers are zero, and those of newer ones must be.
template <class T>
T known(const T* given, const char* name) {
  T copy{};
  if (given == nullptr) return copy;
  const std::size_t size = given->struct_size;
  check_size(name, size, sizeof(T));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    throw InvalidArgument(std::string(name) + ".struct_size is " + std::to_string(size) +
                          ": version " + version() + " knows " + std::to_string(sizeof(T)) +
                          " bytes, and expected zeros in the rest (options of a newer version)");
  }
  std::memcpy(&copy, given, std::min(size, sizeof(T)));
  return copy;
}

/// Throws unless `value` is in [0, last].
void require_within(const std::string& name, std::int32_t value, std::int32_t last,
                    const char* expected);
void require_function(const char* name, bool given);

Tensor tensor(const char* name, const tw_tensor& t);
/// A formula with its tensors; not given for null.
Expression expression(const char* name, const tw_expression* given);

}  // namespace tilewise::c_api
