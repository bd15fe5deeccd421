/// The one printer of a Config's fields, for KernelUnit::config: designated initialisers, each but
/// the first after ", ".
#pragma once

#include <string>

#include "cuda/tile/types.h"

namespace tilewise::cuda {

inline const char* bool_text(bool value) { return value ? "true" : "false"; }

/// ".element = Element::bf16": the first field.
inline std::string element_text(tile::Element element) {
  return std::string(".element = Element::") + (element == tile::Element::bf16 ? "bf16" : "fp16");
}

/// ", .head_dim = 64"
inline std::string number_text(const char* name, int value) {
  return std::string(", .") + name + " = " + std::to_string(value);
}

/// ", .split = true"
inline std::string flag_text(const char* name, bool value) {
  return std::string(", .") + name + " = " + bool_text(value);
}

/// ", .shape = {.warps = 4}": the fields of a struct, each after ", ".
inline std::string group_text(const char* name, const std::string& fields) {
  return std::string(", .") + name + " = {" + fields.substr(2) + "}";
}

/// ", .mask = static_cast<Mask>(1)"
template <class Enum>
std::string enum_text(const char* name, const char* type, Enum value) {
  return std::string(", .") + name + " = static_cast<" + type + ">(" +
         std::to_string(static_cast<int>(value)) + ")";
}

}  // namespace tilewise::cuda
