#include "cli/files/array.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "cli/files/error.h"

static_assert(std::endian::native == std::endian::little, "files are little-endian, like x86");

namespace tilewise::files {

namespace {

std::int64_t machine_memory_bytes() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

/// `Word` is the unsigned integer of the type's width, `exponent` the mask of its exponent bits: a
/// NaN has them all, and a fraction that is not 0.
template <class Word>
std::optional<std::int64_t> first_nan_of(const Bytes& bytes, Word exponent) {
  const std::size_t count = bytes.size() / sizeof(Word);
  const Word no_sign = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
  for (std::size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, bytes.data() + i * sizeof(Word), sizeof(Word));
    if ((word & no_sign) > exponent) return static_cast<std::int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxBytes = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += fmt::format("\\{}", c);
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMaxBytes ? "...\"" : "\"");
}

std::int64_t Array::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::optional<std::int64_t> array_bytes(DType dtype, std::span<const std::int64_t> shape) {
  if (shape.size() > kMaxFileRank) return std::nullopt;
  std::int64_t bytes = dtype_bytes(dtype);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

Array make_array(std::string_view file, DType dtype, std::vector<std::int64_t> shape) {
  const std::optional<std::int64_t> bytes = array_bytes(dtype, shape);
  if (!bytes) {
    throw FileError(
        file,
        fmt::format(
            "invalid shape {}: expected at most {} axes, no negative size and less than 2^63 bytes",
            shape_text(shape), kMaxFileRank));
  }
  // NOTE: asked before the allocation, which Linux may grant and then kill the process for using.
  if (*bytes > machine_memory_bytes()) {
    throw OutOfMemory(fmt::format("{}: the array needs {} bytes, and this machine has {}", file,
                                  *bytes, machine_memory_bytes()));
  }
  try {
    return Array{dtype, std::move(shape), Bytes(static_cast<std::size_t>(*bytes))};
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(fmt::format("{}: out of memory for an array of {} bytes", file, *bytes));
  }
}

void check_bools(std::string_view file, const Array& array) {
  if (array.dtype != DType::boolean) return;
  const auto wrong =
      std::ranges::find_if(array.bytes, [](std::byte b) { return b > std::byte{1}; });
  if (wrong == array.bytes.end()) return;
  throw FileError(file, fmt::format("the bool at {} is {}: expected 0 or 1",
                                    shape_text(element_index(array, wrong - array.bytes.begin())),
                                    std::to_integer<int>(*wrong)));
}

std::optional<std::int64_t> first_nan(const Array& array) {
  switch (array.dtype) {
    case DType::float64:
      return first_nan_of<std::uint64_t>(array.bytes, 0x7ff0'0000'0000'0000);
    case DType::float32:
      return first_nan_of<std::uint32_t>(array.bytes, 0x7f80'0000);
    case DType::bfloat16:
      return first_nan_of<std::uint16_t>(array.bytes, 0x7f80);
    case DType::float16:
      return first_nan_of<std::uint16_t>(array.bytes, 0x7c00);
    default:
      return std::nullopt;
  }
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

std::vector<std::int64_t> element_index(const Array& array, std::int64_t element) {
  assert(0 <= element && element < array.numel());
  std::vector<std::int64_t> index(array.shape.size());
  for (std::size_t axis = index.size(); axis-- > 0;) {
    index[axis] = element % array.shape[axis];
    element /= array.shape[axis];
  }
  return index;
}

}  // namespace tilewise::files
