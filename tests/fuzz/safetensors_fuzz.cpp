// Whatever bytes the .safetensors reader is given, it returns tensors or throws one of its two
// errors; tensors that it returned, written and read again, are the same.

#include <algorithm>
#include <cstdlib>

#include "cli/files/error.h"
#include "cli/files/safetensors.h"

namespace tilewise::files {
namespace {

void check(std::span<const std::byte> input) {
  Safetensors content;
  try {
    MemorySource source("input", input);
    content = read_safetensors(source);
  } catch (const FileError&) {
    return;
  } catch (const OutOfMemory&) {
    return;
  }
  content.unread.clear();
  const SafetensorsPieces pieces = safetensors_pieces("again", content);
  const auto header = std::as_bytes(std::span(pieces.header));
  std::vector<std::byte> again(header.begin(), header.end());
  for (const auto piece : pieces.tensors) again.insert(again.end(), piece.begin(), piece.end());
  MemorySource source("again", again);
  Safetensors reread = read_safetensors(source);
  // The writer puts the widest type first, so only the order may differ.
  std::ranges::sort(content.tensors, {}, &NamedArray::name);
  std::ranges::sort(reread.tensors, {}, &NamedArray::name);
  if (reread != content) std::abort();
}

}  // namespace
}  // namespace tilewise::files

// The name is libFuzzer's. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tilewise::files::check(std::as_bytes(std::span(data, size)));
  return 0;
}
