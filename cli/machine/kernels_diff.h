/// The machine code of two kernel packs, beside each other: `tilewise kernels diff`.
#pragma once

#include <string>

namespace tilewise::cli {

/// Prints the kernels whose machine code differs, those that one pack lacks, and a count. Kernels
/// are the same by name, architecture and config; a kernel whose config alone is written otherwise
/// is found by its machine code. Returns kCheckFailed when a kernel of `old_path` differs or is
/// missing, otherwise kDone. Needs no GPU. Throws BadInput when a file is no intact pack.
int diff_packs(const std::string& old_path, const std::string& new_path);

}  // namespace tilewise::cli
