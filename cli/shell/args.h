/// The words of the command line: lists, ranges, sizes of memory, devices, types. Each parser
/// throws BadInput, which names the option, the text and what was expected.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tilewise/spec.h"
#include "tilewise/tensor.h"

namespace tilewise::cli {

/// "a,b,c" -> a, b, c. An empty part is an error.
std::vector<std::string> split_list(std::string_view option, std::string_view text);

/// A whole number in decimal digits, from `least` to `most`; of int, std::int64_t, std::uint64_t.
template <class Integer = std::int64_t>
Integer parse_integer(std::string_view option, std::string_view text,
                      std::type_identity_t<Integer> least,
                      std::type_identity_t<Integer> most = std::numeric_limits<Integer>::max());

/// A real number from `least` to `most`, both included.
double parse_real(std::string_view option, std::string_view text,
                  double least = -std::numeric_limits<double>::infinity(),
                  double most = std::numeric_limits<double>::infinity());

/// Numbers and ranges: "64,256:16384:x4,1:8:+1".
std::vector<std::int64_t> parse_axis(std::string_view option, std::string_view text,
                                     std::int64_t least);

/// "24GiB", "500MB", "1.5G", "4096": bytes. K, M, G, T alone are powers of 1024.
std::int64_t parse_bytes(std::string_view option, std::string_view text);

/// "cpu", "cuda" (= "cuda:0") or "cuda:N".
Device parse_device(std::string_view option, std::string_view text);

/// "f32" or "float32", and so on for f64, f16, bf16.
DType parse_float_type(std::string_view option, std::string_view text);

/// "L,R"; "-" or nothing = unbounded on that side.
Window parse_window(std::string_view option, std::string_view text);

/// Throws BadInput unless `text` is one of `accepted`.
void check_one_of(std::string_view option, std::string_view text,
                  const std::vector<std::string>& accepted);

/// "7.9 MiB", "16.0 GiB": for people.
std::string bytes_text(std::int64_t bytes);
/// Bytes in units of 2^20.
double mebibytes(std::int64_t bytes);

}  // namespace tilewise::cli
