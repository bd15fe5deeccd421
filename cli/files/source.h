/// Source: where a reader gets bytes from. The readers know nothing else, so that what is fuzzed in
/// memory is what reads files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tilewise::files {

class Source {
 public:
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  /// Its name in messages.
  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  /// Fills `out` with the bytes from `offset` on. Throws FileError if size() ends before they do.
  void read(std::uint64_t offset, std::span<std::byte> out);
  /// The same as text.
  std::string read_text(std::uint64_t offset, std::uint64_t bytes);

 protected:
  Source() = default;
  virtual void read_within(std::uint64_t offset, std::span<std::byte> out) = 0;

  std::string name_;
  std::uint64_t size_ = 0;
};

/// Bytes that the caller keeps.
class MemorySource final : public Source {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes);

 private:
  void read_within(std::uint64_t offset, std::span<std::byte> out) override;

  std::span<const std::byte> bytes_;
};

/// A regular file, open for reading.
class FileSource final : public Source {
 public:
  explicit FileSource(const std::filesystem::path& path);
  ~FileSource() override;

 private:
  void read_within(std::uint64_t offset, std::span<std::byte> out) override;

  int descriptor_ = -1;
};

}  // namespace tilewise::files
