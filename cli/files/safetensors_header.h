/// The header of a .safetensors file: JSON, read as it comes. The whole of it is never held as a
/// tree, which a hostile header of 100 MB could blow up to many times its size.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::files {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< its bytes, counted from the end of the header
  std::string unread_type;           ///< of a type that is not read: its name; else empty
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
};

/// The format's name of a type ("F32"), and the type of a name.
std::string_view safetensors_type_name(DType dtype);
std::optional<DType> safetensors_type(std::string_view name);

/// Reads and judges a header that `body_bytes` of tensors follow: afterwards the entries have sound
/// shapes, and their bytes cover the body without a hole or an overlap. Throws FileError.
SafetensorsHeader parse_safetensors_header(std::string_view file, std::string_view json,
                                           std::uint64_t body_bytes);

}  // namespace tilewise::files
