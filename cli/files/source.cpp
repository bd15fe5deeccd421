#include "cli/files/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/files/error.h"

namespace tilewise::files {

void Source::read(std::uint64_t offset, std::span<std::byte> out) {
  if (offset > size_ || out.size() > size_ - offset) {
    throw FileError(
        name_, fmt::format("is truncated: it has {} bytes, and needs {} from byte {} on", size_,
                           out.size(), offset));
  }
  if (!out.empty()) read_within(offset, out);
}

std::string Source::read_text(std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

MemorySource::MemorySource(std::string name, std::span<const std::byte> bytes) : bytes_(bytes) {
  name_ = std::move(name);
  size_ = bytes.size();
}

void MemorySource::read_within(std::uint64_t offset, std::span<std::byte> out) {
  std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

FileSource::FileSource(const std::filesystem::path& path) {
  name_ = path.string();
  // O_NONBLOCK: opening a pipe that nobody writes to fails below instead of waiting for ever.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw FileError(name_, std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw FileError(name_, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() { ::close(descriptor_); }

void FileSource::read_within(std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    constexpr std::size_t kMaxRead = std::size_t{1} << 30;  // Linux reads less than 2 GiB at a time
    const ssize_t count = ::pread(descriptor_, out.data(), std::min(out.size(), kMaxRead),
                                  static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(name_, std::strerror(errno));
    if (count == 0) throw FileError(name_, "was truncated while it was read");
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

}  // namespace tilewise::files
