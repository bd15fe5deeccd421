// Whatever bytes the .npy reader is given, it returns an array or throws one of its two errors; an
// array that it returned, written and read again, is the same.

#include <cstdlib>
#include <cstring>

#include "cli/files/error.h"
#include "cli/files/npy.h"

namespace tilewise::files {
namespace {

void check(std::span<const std::byte> input) {
  Array array;
  try {
    MemorySource source("input", input);
    array = read_npy(source);
  } catch (const FileError&) {
    return;
  } catch (const OutOfMemory&) {
    return;
  }
  const std::optional<std::int64_t> nan = first_nan(array);
  if (nan && *nan >= array.numel()) std::abort();

  const std::string header = npy_header(array);
  std::vector<std::byte> again(header.size() + array.bytes.size());
  std::memcpy(again.data(), header.data(), header.size());
  if (!array.bytes.empty()) {
    std::memcpy(again.data() + header.size(), array.bytes.data(), array.bytes.size());
  }
  MemorySource source("again", again);
  if (read_npy(source) != array) std::abort();
}

}  // namespace
}  // namespace tilewise::files

// The name is libFuzzer's. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tilewise::files::check(std::as_bytes(std::span(data, size)));
  return 0;
}
