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

/// For files that nobody named, in the state folder: throws FileError where `path` is there and is
/// not a regular file of this user. A link would lead write_file to a file of another purpose.
void require_own_file(const std::filesystem::path& path);
/// Makes the folder of `path`, and checks as require_own_file() does that it can be written there.
void prepare_own_file(const std::filesystem::path& path);

}  // namespace tilewise::files
