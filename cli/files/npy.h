/// NumPy's .npy files: one array. Versions 1.0 to 3.0 are read, in C and in Fortran order, of the
/// types float16, float32, float64, bool, int32, int64 and uint8, little-endian; 1.0 is written.
/// NumPy has no name for bfloat16: ml_dtypes writes it as two bytes without a type, and so do we.
#pragma once

#include <filesystem>

#include "cli/files/array.h"
#include "cli/files/source.h"

namespace tilewise::files {

/// How to read two-byte elements without a type: refuse them, or as bfloat16.
enum class TwoBytes : bool { unknown, bfloat16 };

/// Reads an array, in C order whatever the file's. Throws FileError, naming what is wrong.
Array read_npy(Source& source, TwoBytes two_bytes = TwoBytes::unknown);
Array load_npy(const std::filesystem::path& path, TwoBytes two_bytes = TwoBytes::unknown);

/// The start of an array's file, up to its first element.
std::string npy_header(const Array& array);
/// Writes the array, whole or not at all.
void save_npy(const std::filesystem::path& path, const Array& array);

}  // namespace tilewise::files
