#include "cli/files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/files/error.h"
#include "cli/files/output.h"
#include "cli/files/safetensors_header.h"

namespace tilewise::files {

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kAlignment = 8;                   // of the first tensor
constexpr std::size_t kLengthBytes = 8;

/// The header, and where what it tells of begins.
std::pair<SafetensorsHeader, std::uint64_t> read_header(Source& source) {
  if (source.size() < kLengthBytes) {
    throw FileError(source.name(), "is too short for a .safetensors file");
  }
  std::uint64_t header_bytes = 0;
  source.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  const std::uint64_t most = std::min(kMaxHeaderBytes, source.size() - kLengthBytes);
  if (header_bytes > most) {
    throw FileError(
        source.name(),
        fmt::format(
            "declares a header of {} bytes: expected at most {} (is it a .safetensors file?)",
            header_bytes, most));
  }
  const std::uint64_t body_begin = kLengthBytes + header_bytes;
  return {parse_safetensors_header(source.name(), source.read_text(kLengthBytes, header_bytes),
                                   source.size() - body_begin),
          body_begin};
}

}  // namespace

const Array* Safetensors::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &NamedArray::name);
  return found == tensors.end() ? nullptr : &found->array;
}

Safetensors read_safetensors(Source& source) {
  auto [header, body_begin] = read_header(source);
  Safetensors content;
  content.metadata = std::move(header.metadata);
  content.tensors.reserve(header.entries.size());
  for (SafetensorsEntry& entry : header.entries) {
    if (!entry.unread_type.empty()) {
      content.unread.emplace(std::move(entry.name), std::move(entry.unread_type));
      continue;
    }
    Array array = make_array(source.name(), entry.dtype, std::move(entry.shape));
    source.read(body_begin + entry.begin, array.bytes);
    check_bools(fmt::format("{}: tensor {}", source.name(), in_quotes(entry.name)), array);
    content.tensors.push_back({std::move(entry.name), std::move(array)});
  }
  return content;
}

Safetensors load_safetensors(const std::filesystem::path& path) {
  FileSource source(path);
  return read_safetensors(source);
}

std::vector<std::string> names_in_safetensors(const std::filesystem::path& path) {
  FileSource source(path);
  std::vector<std::string> names;
  for (SafetensorsEntry& entry : read_header(source).first.entries) {
    names.push_back(std::move(entry.name));
  }
  return names;
}

SafetensorsPieces safetensors_pieces(std::string_view file, const Safetensors& content) {
  std::vector<const NamedArray*> order;
  for (const NamedArray& tensor : content.tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [](const NamedArray* t) { return dtype_bytes(t->array.dtype); });

  SafetensorsPieces pieces;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!content.metadata.empty()) header["__metadata__"] = content.metadata;
  std::uint64_t offset = 0;
  for (const NamedArray* tensor : order) {
    const auto& [name, array] = *tensor;
    assert(array_bytes(array.dtype, array.shape) == static_cast<std::int64_t>(array.bytes.size()));
    if (name == "__metadata__" || header.contains(name)) {
      throw FileError(file, fmt::format("two tensors cannot both be named {}", in_quotes(name)));
    }
    const std::uint64_t end = offset + array.bytes.size();
    header[name] = {{"dtype", safetensors_type_name(array.dtype)},
                    {"shape", array.shape},
                    {"data_offsets", {offset, end}}};
    offset = end;
    pieces.tensors.emplace_back(array.bytes);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    throw FileError(file, "a tensor's name or the metadata are not UTF-8");
  }
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) throw FileError(file, "the header would exceed 100 MB");
  const std::uint64_t length = text.size();
  pieces.header.resize(kLengthBytes);
  std::memcpy(pieces.header.data(), &length, kLengthBytes);
  pieces.header += text;
  return pieces;
}

void save_safetensors(const std::filesystem::path& path, const Safetensors& content) {
  const SafetensorsPieces pieces = safetensors_pieces(path.string(), content);
  std::vector<std::span<const std::byte>> all = {std::as_bytes(std::span(pieces.header))};
  all.insert(all.end(), pieces.tensors.begin(), pieces.tensors.end());
  write_file(path, all);
}

}  // namespace tilewise::files
