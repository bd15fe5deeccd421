/// NumPy's .npy files: one array. Versions 1.0 to 3.0 are read, in C and in Fortran order, of the
/// types float16, float32, float64, bool, int32, int64 and uint8, little-endian; 1.0 is written.
#pragma once

#include <filesystem>

#include "cli/files/array.h"
#include "cli/files/source.h"

namespace tilewise::files {

/// Reads an array, in C order whatever the file's. Throws FileError, naming what is wrong.
Array read_npy(Source& source);
Array load_npy(const std::filesystem::path& path);

/// What a file of the array begins with, up to its first element. Throws FileError, naming `file`,
/// for bfloat16, which NumPy has no name for.
std::string npy_header(std::string_view file, const Array& array);
/// Writes the array, whole or not at all.
void save_npy(const std::filesystem::path& path, const Array& array);

}  // namespace tilewise::files
