/// Writing a file whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace tilewise::files {

/// Writes the pieces, one after the other, as the whole content of `path`. They go to a new file in
/// the same folder, which takes the name once all of it is on the disk: nobody ever sees half a
/// file, and on failure, a FileError, what was there before is still there and nothing else is.
/// A pipe or a device at `path` is written to directly.
void write_file(const std::filesystem::path& path,
                std::span<const std::span<const std::byte>> pieces);

}  // namespace tilewise::files
