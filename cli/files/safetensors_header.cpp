#include "cli/files/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "cli/files/array.h"
#include "cli/files/error.h"

namespace tilewise::files {

namespace {

using nlohmann::json;

struct TypeName {
  DType dtype;
  std::string_view name;
};
constexpr std::array kTypeNames = {
    TypeName{DType::float64, "F64"},  TypeName{DType::float32, "F32"},
    TypeName{DType::float16, "F16"},  TypeName{DType::bfloat16, "BF16"},
    TypeName{DType::boolean, "BOOL"}, TypeName{DType::int32, "I32"},
    TypeName{DType::int64, "I64"},    TypeName{DType::uint8, "U8"},
};

/// Takes the parser's events. What the format allows is small, so each place in it is a state:
///
///     {"__metadata__": {text: text, ...},
///      name: {"dtype": text, "shape": [number, ...], "data_offsets": [number, number]}, ...}
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  HeaderReader(std::string_view file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::start:
        place_ = Place::top;
        return true;
      case Place::metadata_value:
        place_ = Place::metadata;
        return true;
      case Place::entry_value:
        place_ = Place::entry;
        return true;
      default:
        fail("unexpected object");
    }
  }

  bool end_object() override {
    switch (place_) {
      case Place::metadata:
        place_ = Place::top;
        return true;
      case Place::entry:
        if (!has_dtype_ || !has_shape_ || !has_offsets_) {
          fail("\"dtype\", \"shape\" or \"data_offsets\" is missing");
        }
        place_ = Place::top;
        return true;
      default:
        return true;  // of the whole header
    }
  }

  bool key(string_t& text) override {
    switch (place_) {
      case Place::top:
        return top_key(text);
      case Place::metadata:
        key_ = text;
        if (header_.metadata.contains(key_)) {
          fail(fmt::format("the metadata contain {} twice", in_quotes(key_)));
        }
        place_ = Place::metadata_text;
        return true;
      default:
        return entry_key(text);
    }
  }

  bool string(string_t& text) override {
    if (place_ == Place::metadata_text) {
      header_.metadata.emplace(key_, text);
      place_ = Place::metadata;
      return true;
    }
    if (place_ != Place::dtype) fail("unexpected string");
    const std::optional<DType> dtype = safetensors_type(text);
    if (text.empty()) fail("the type is empty");
    if (dtype) {
      header_.entries.back().dtype = *dtype;
    } else {
      header_.entries.back().unread_type = text;
    }
    place_ = Place::entry;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_value) {
      place_ = Place::shape;
    } else if (place_ == Place::offsets_value) {
      place_ = Place::offsets;
    } else {
      fail("unexpected array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offset_count_ != 2)
      fail("\"data_offsets\": expected two numbers");
    place_ = Place::entry;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (place_ == Place::shape) {
      std::vector<std::int64_t>& shape = header_.entries.back().shape;
      if (shape.size() == kMaxFileRank) fail(fmt::format("more than {} axes", kMaxFileRank));
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(fmt::format("the size {} is not below 2^63", number));
      }
      shape.push_back(static_cast<std::int64_t>(number));
      return true;
    }
    if (place_ != Place::offsets) fail("unexpected number");
    if (offset_count_ == 2) fail("\"data_offsets\": expected two numbers");
    (offset_count_++ == 0 ? header_.entries.back().begin : header_.entries.back().end) = number;
    return true;
  }

  bool number_integer(number_integer_t number) override {
    fail(fmt::format("the number {} is negative", number));
  }
  bool number_float(number_float_t, const string_t& text) override {
    fail(fmt::format("the number {} is not an integer below 2^64", in_quotes(text)));
  }
  bool null() override { fail("unexpected null"); }
  bool boolean(bool) override { fail("unexpected bool"); }
  bool binary(binary_t&) override { fail("unexpected binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail(fmt::format("it is not valid JSON at byte {}", position));
  }

 private:
  enum class Place {  // those from entry_value on are inside a tensor's entry
    start,
    top,
    metadata_value,
    metadata,
    metadata_text,
    entry_value,
    entry,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
  };

  [[noreturn]] void fail(std::string_view what) const {
    const bool in_entry = place_ >= Place::entry_value && !header_.entries.empty();
    const std::string where =
        in_entry ? fmt::format("tensor {}: ", in_quotes(header_.entries.back().name)) : "";
    throw FileError(file_, fmt::format("invalid .safetensors header: {}{}", where, what));
  }

  bool top_key(const std::string& text) {
    if (!names_.insert(text).second) fail(fmt::format("{} appears twice", in_quotes(text)));
    if (text == "__metadata__") {
      place_ = Place::metadata_value;
      return true;
    }
    header_.entries.emplace_back().name = text;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offset_count_ = 0;
    place_ = Place::entry_value;
    return true;
  }

  bool entry_key(const std::string& text) {
    if (text == "dtype" && !std::exchange(has_dtype_, true)) {
      place_ = Place::dtype;
    } else if (text == "shape" && !std::exchange(has_shape_, true)) {
      place_ = Place::shape_value;
    } else if (text == "data_offsets" && !std::exchange(has_offsets_, true)) {
      place_ = Place::offsets_value;
    } else {
      fail(fmt::format("the key {} is unknown or appears twice", in_quotes(text)));
    }
    return true;
  }

  std::string_view file_;
  SafetensorsHeader& header_;
  std::unordered_set<std::string> names_;
  std::string key_;
  Place place_ = Place::start;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offset_count_ = 0;
};

/// Sorts the entries by their bytes and throws unless they fit their shapes and fill the body.
void check_layout(std::string_view file, std::vector<SafetensorsEntry>& entries,
                  std::uint64_t body_bytes) {
  std::ranges::sort(entries, {}, [](const SafetensorsEntry& entry) {
    return std::tuple(entry.begin, entry.end, std::string_view(entry.name));
  });
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto fail = [&](std::string_view what) {
      throw FileError(file, fmt::format("tensor {}, {} {}: {}", in_quotes(entry.name),
                                        dtype_name(entry.dtype), shape_text(entry.shape), what));
    };
    const std::string range = fmt::format("bytes {} to {}", entry.begin, entry.end);
    if (entry.begin > entry.end) fail(range + " end before they start");
    if (entry.end > body_bytes)
      fail(fmt::format("{} exceed the {} in the file", range, body_bytes));
    if (entry.unread_type.empty()) {
      const std::optional<std::int64_t> needed = array_bytes(entry.dtype, entry.shape);
      if (!needed) fail("needs more than 2^63 bytes");
      if (static_cast<std::uint64_t>(*needed) != entry.end - entry.begin) {
        fail(fmt::format("needs {} bytes and has {}", *needed, entry.end - entry.begin));
      }
    }
    if (entry.begin < covered) fail(range + " overlap another tensor's");
    if (entry.begin > covered) fail(fmt::format("{} leave a gap from byte {}", range, covered));
    covered = entry.end;
  }
  if (covered != body_bytes) {
    throw FileError(file, fmt::format("its tensors have {} bytes, and {} follow the header",
                                      covered, body_bytes));
  }
}

}  // namespace

std::string_view safetensors_type_name(DType dtype) {
  return std::ranges::find(kTypeNames, dtype, &TypeName::dtype)->name;
}

std::optional<DType> safetensors_type(std::string_view name) {
  const auto type = std::ranges::find(kTypeNames, name, &TypeName::name);
  if (type == kTypeNames.end()) return std::nullopt;
  return type->dtype;
}

SafetensorsHeader parse_safetensors_header(std::string_view file, std::string_view text,
                                           std::uint64_t body_bytes) {
  if (!text.starts_with('{')) {
    throw FileError(file, "invalid .safetensors header: it does not begin with '{'");
  }
  // NOTE: the JSON parser takes a zero byte for the end of its input, and would not see what
  // follows.
  if (text.find('\0') != std::string_view::npos) {
    throw FileError(file, "invalid .safetensors header: it contains a zero byte");
  }
  SafetensorsHeader header;
  HeaderReader reader(file, header);
  json::sax_parse(text, &reader);
  check_layout(file, header.entries, body_bytes);
  return header;
}

}  // namespace tilewise::files
