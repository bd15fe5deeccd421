/// .safetensors files: named tensors and text. F64, F32, F16, BF16, BOOL, I32, I64 and U8 are read
/// and written; tensors of other types are named and left out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/array.h"
#include "cli/files/source.h"

namespace tilewise::files {

struct NamedArray {
  std::string name;
  Array array;
  bool operator==(const NamedArray&) const = default;
};

struct Safetensors {
  std::vector<NamedArray> tensors;  ///< in the order in which they lie in the file
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> unread;  ///< tensors of types that are not read: their types

  /// The tensor of that name, or null.
  const Array* find(std::string_view name) const;
  bool operator==(const Safetensors&) const = default;
};

/// Reads all of a file. Throws FileError, naming what is wrong.
Safetensors read_safetensors(Source& source);
Safetensors load_safetensors(const std::filesystem::path& path);
/// The tensors' names alone, those of types that are not read too.
std::vector<std::string> names_in_safetensors(const std::filesystem::path& path);

/// A file in memory, in pieces that follow one another: the header, then the tensors' own bytes,
/// those of the widest type first, so that each lies aligned. Throws FileError, naming `file`, if
/// two tensors have one name or a text is not UTF-8.
struct SafetensorsPieces {
  std::string header;
  std::vector<std::span<const std::byte>> tensors;
};
SafetensorsPieces safetensors_pieces(std::string_view file, const Safetensors& content);
/// Writes the file, whole or not at all.
void save_safetensors(const std::filesystem::path& path, const Safetensors& content);

}  // namespace tilewise::files
