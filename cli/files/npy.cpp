#include "cli/files/npy.h"

#include <fmt/format.h>

#include <array>
#include <cassert>
#include <charconv>
#include <cstring>
#include <utility>

#include "cli/files/error.h"
#include "cli/files/output.h"

namespace tilewise::files {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic = "\x93NUMPY"sv;
constexpr std::size_t kAlignment = 64;  // of the first element, as NumPy writes it
/// A header is below 1 KiB for any array without named fields; NumPy itself refuses above 10,000.
constexpr std::uint64_t kMaxHeaderBytes = 65535;

struct TypeCode {
  DType dtype;
  std::string_view code;  // without the byte order
};
constexpr std::array kTypeCodes = {
    TypeCode{DType::float64, "f8"}, TypeCode{DType::float32, "f4"}, TypeCode{DType::float16, "f2"},
    TypeCode{DType::boolean, "b1"}, TypeCode{DType::uint8, "u1"},   TypeCode{DType::int32, "i4"},
    TypeCode{DType::int64, "i8"},
};

/// ml_dtypes writes bfloat16 as two bytes of no type.
constexpr std::string_view kTwoBytes = "V2";

DType parse_descr(std::string_view file, std::string_view descr, TwoBytes two_bytes) {
  if (descr.starts_with('>')) {
    throw FileError(file, fmt::format("is big-endian (type {}): expected a little-endian file",
                                      in_quotes(descr)));
  }
  if (descr.starts_with('<') || descr.starts_with('|')) {
    for (const TypeCode& type : kTypeCodes) {
      if (descr.substr(1) == type.code) return type.dtype;
    }
    if (descr.substr(1) == kTwoBytes) {
      if (two_bytes == TwoBytes::bfloat16) return DType::bfloat16;
      throw FileError(file, fmt::format("has two-byte elements without a type ({}), as ml_dtypes "
                                        "writes bfloat16: --dtype bf16 reads them",
                                        in_quotes(descr)));
    }
  }
  throw FileError(file, fmt::format("has elements of type {}: expected float16, float32, float64, "
                                    "bool, uint8, int32 or int64 (bfloat16 from .safetensors)",
                                    in_quotes(descr)));
}

struct Header {
  DType dtype = DType::float32;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Reads the header's text: a Python dictionary of 'descr' (a string), 'fortran_order' (a bool) and
/// 'shape' (a tuple of whole numbers), each once, in any order.
class HeaderParser {
 public:
  HeaderParser(std::string_view file, std::string_view text, TwoBytes two_bytes)
      : file_(file), rest_(text), two_bytes_(two_bytes) {}

  Header parse() {
    Header header;
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && !std::exchange(descr, true)) {
        if (accept('[')) throw FileError(file_, "has elements of several fields: expected numbers");
        header.dtype = parse_descr(file_, string(), two_bytes_);
      } else if (key == "fortran_order" && !std::exchange(order, true)) {
        header.fortran_order = boolean();
      } else if (key == "shape" && !std::exchange(shape, true)) {
        header.shape = tuple();
      } else {
        fail(fmt::format("the key {} is unknown or appears twice", in_quotes(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) fail(fmt::format("{} follows the dictionary", in_quotes(rest_)));
    if (!descr || !order || !shape) fail("'descr', 'fortran_order' or 'shape' is missing");
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw FileError(file_, fmt::format("invalid .npy header: {}", what));
  }

  void skip_space() {
    const std::size_t end = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end);
  }

  bool accept(char c) {
    skip_space();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}' at {}", c, in_quotes(rest_)));
  }

  std::string_view string() {
    skip_space();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    if (quote != '\'' && quote != '"')
      fail(fmt::format("expected a string at {}", in_quotes(rest_)));
    const std::size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  bool boolean() {
    skip_space();
    for (const std::string_view word : {"True"sv, "False"sv}) {
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return word == "True";
      }
    }
    fail(fmt::format("expected True or False at {}", in_quotes(rest_)));
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      sizes.push_back(size());
      if (sizes.size() > kMaxFileRank) fail(fmt::format("more than {} axes", kMaxFileRank));
      if (accept(',')) continue;
      expect(')');
      if (sizes.size() == 1) fail("expected the tuple (n,) instead of (n)");
      break;
    }
    return sizes;
  }

  std::int64_t size() {
    skip_space();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) {
      fail(fmt::format("expected a size below 2^63 at {}", in_quotes(rest_)));
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    if (rest_.starts_with('L')) rest_.remove_prefix(1);  // Python 2's long
    return value;
  }

  std::string_view file_;
  std::string_view rest_;
  TwoBytes two_bytes_;
};

/// Elements from Fortran order (the first axis moves fastest) into C order (the last one does).
void to_c_order(std::span<const std::byte> from, Array& array) {
  const auto element_bytes = static_cast<std::size_t>(dtype_bytes(array.dtype));
  const std::size_t rank = array.shape.size();
  std::vector<std::size_t> strides(rank), index(rank, 0);
  std::size_t stride = element_bytes;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    strides[axis] = stride;
    stride *= static_cast<std::size_t>(array.shape[axis]);
  }
  std::size_t source = 0;
  for (std::size_t at = 0; at < from.size(); at += element_bytes) {
    std::memcpy(array.bytes.data() + at, from.data() + source, element_bytes);
    for (std::size_t axis = rank; axis-- > 0;) {
      source += strides[axis];
      if (++index[axis] < static_cast<std::size_t>(array.shape[axis])) break;
      source -= strides[axis] * index[axis];
      index[axis] = 0;
    }
  }
}

/// Where the header's text begins, and its length.
std::pair<std::uint64_t, std::uint64_t> find_header(Source& source) {
  std::array<std::byte, 8> start;
  if (source.size() < start.size()) throw FileError(source.name(), "is too short for an .npy file");
  source.read(0, start);
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    throw FileError(source.name(), "is not an .npy file: it does not begin with \\x93NUMPY");
  }
  const int version = std::to_integer<int>(start[6]), minor = std::to_integer<int>(start[7]);
  if (version < 1 || version > 3 || minor != 0) {
    throw FileError(source.name(), fmt::format("has .npy version {}.{}: expected 1.0, 2.0 or 3.0",
                                               version, minor));
  }
  std::uint32_t bytes = 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  source.read(start.size(), std::as_writable_bytes(std::span(&bytes, 1)).first(length_bytes));
  if (bytes > kMaxHeaderBytes) {
    throw FileError(source.name(), fmt::format("declares a header of {} bytes: expected at most {}",
                                               bytes, kMaxHeaderBytes));
  }
  return {start.size() + length_bytes, bytes};
}

}  // namespace

Array read_npy(Source& source, TwoBytes two_bytes) {
  const auto [begin, header_bytes] = find_header(source);
  const std::string text = source.read_text(begin, header_bytes);
  Header header = HeaderParser(source.name(), text, two_bytes).parse();

  const std::uint64_t data_begin = begin + header_bytes;
  const std::uint64_t there = source.size() - data_begin;
  const std::optional<std::int64_t> needed = array_bytes(header.dtype, header.shape);
  if (!needed || static_cast<std::uint64_t>(*needed) != there) {
    throw FileError(source.name(),
                    fmt::format("{} {} needs {} bytes, and {} follow the header",
                                dtype_name(header.dtype), shape_text(header.shape),
                                needed ? std::to_string(*needed) : "more than 2^63", there));
  }
  Array array = make_array(source.name(), header.dtype, std::move(header.shape));
  if (header.fortran_order && array.shape.size() > 1) {
    Array stored = make_array(source.name(), array.dtype, array.shape);
    source.read(data_begin, stored.bytes);
    to_c_order(stored.bytes, array);
  } else {
    source.read(data_begin, array.bytes);
  }
  check_bools(source.name(), array);
  return array;
}

Array load_npy(const std::filesystem::path& path, TwoBytes two_bytes) {
  FileSource source(path);
  return read_npy(source, two_bytes);
}

std::string npy_header(const Array& array) {
  assert(array_bytes(array.dtype, array.shape) == static_cast<std::int64_t>(array.bytes.size()));
  std::string descr;
  for (const TypeCode& type : kTypeCodes) {
    if (type.dtype != array.dtype) continue;
    descr = fmt::format("{}{}", dtype_bytes(type.dtype) == 1 ? '|' : '<', type.code);
  }
  if (array.dtype == DType::bfloat16) descr = fmt::format("<{}", kTwoBytes);
  assert(!descr.empty());
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr,
                                 shape_text(array.shape));
  const std::size_t before = kMagic.size() + 4;  // magic, version, length
  text.append(kAlignment - 1 - (before + text.size()) % kAlignment, ' ');
  text += '\n';
  // At most 64 sizes of at most 19 digits: the length always fits into version 1.0's two bytes.
  std::string header = fmt::format("{}\x01{}", kMagic, '\0');
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

void save_npy(const std::filesystem::path& path, const Array& array) {
  const std::string header = npy_header(array);
  const std::array<std::span<const std::byte>, 2> pieces = {std::as_bytes(std::span(header)),
                                                            array.bytes};
  write_file(path, pieces);
}

}  // namespace tilewise::files
