#include "cli/files/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "cli/files/error.h"

namespace tilewise::files {

namespace {

namespace fs = std::filesystem;

using Pieces = std::span<const std::span<const std::byte>>;

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw FileError(path.string(), fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Closes a descriptor, and removes a temporary file that did not get its name.
struct OpenFile {
  OpenFile() = default;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor >= 0) ::close(descriptor);
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }

  int descriptor = -1;
  fs::path temporary;
};

void write_all(int descriptor, Pieces pieces, const fs::path& path) {
  for (std::span<const std::byte> rest : pieces) {
    while (!rest.empty()) {
      constexpr std::size_t kMaxWrite = std::size_t{1} << 30;
      const ssize_t count = ::write(descriptor, rest.data(), std::min(rest.size(), kMaxWrite));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(path, "cannot be written");
      rest = rest.subspan(static_cast<std::size_t>(count));
    }
  }
}

/// A new file beside `path`. Not mkstemp: that gives a mode of 0600 in place of the umask's.
void open_temporary(OpenFile& file, const fs::path& path) {
  for (int attempt = 0; file.descriptor < 0; ++attempt) {
    const fs::path name = path.parent_path() / fmt::format(".tilewise-{}-{}", ::getpid(), attempt);
    file.descriptor = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor >= 0) {
      file.temporary = name;
    } else if (errno != EEXIST) {
      fail(path, "cannot be written");
    }
  }
}

/// Makes the new name survive a crash. Not every file system can: its refusal is no failure.
void sync_folder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  OpenFile opened;
  opened.descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened.descriptor >= 0) ::fsync(opened.descriptor);
}

/// The file that the path means: a link is followed, so that it stays a link.
fs::path followed(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::canonical(path, error);
  return error ? path : target;
}

}  // namespace

void write_file(const fs::path& path, Pieces pieces) {
  const fs::path target = followed(path);
  struct stat status {};
  const bool exists = ::stat(target.c_str(), &status) == 0;
  OpenFile file;
  if (exists && S_ISDIR(status.st_mode)) throw FileError(path.string(), "is a folder");
  if (exists && !S_ISREG(status.st_mode)) {
    file.descriptor = ::open(target.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.descriptor < 0) fail(path, "cannot be written");
    write_all(file.descriptor, pieces, path);
    return;
  }
  open_temporary(file, target);
  write_all(file.descriptor, pieces, path);
  if (exists && ::fchmod(file.descriptor, status.st_mode & 07777) != 0) fail(path, "mode not kept");
  if (::fsync(file.descriptor) != 0) fail(path, "cannot be written");
  if (::rename(file.temporary.c_str(), target.c_str()) != 0) fail(path, "cannot be written");
  file.temporary.clear();
  sync_folder(target);
}

void require_own_file(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    throw FileError(path.string(),
                    "is a link, a folder or another user's file, and is not overwritten");
  }
}

void prepare_own_file(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw FileError(path.parent_path().string(), "cannot be created: " + error.message());
  require_own_file(path);
}

}  // namespace tilewise::files
