// Opening files, and writing them whole or not at all.

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "cli/files/output.h"
#include "cli/files/source.h"
#include "tests/files/files_testing.h"

namespace tilewise::files {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, std::string_view first, std::string_view second = "") {
  const std::vector<std::span<const std::byte>> pieces = {as_file(first), as_file(second)};
  write_file(path, pieces);
}

class Io : public FolderTest {};

TEST_F(Io, ReadsWhereAsked) {
  put(folder_ / "a", "0123456789");
  FileSource source(folder_ / "a");
  EXPECT_EQ(source.size(), 10U);
  EXPECT_EQ(source.name(), (folder_ / "a").string());
  EXPECT_EQ(source.read_text(3, 4), "3456");
  EXPECT_EQ(source.read_text(10, 0), "");
  EXPECT_TRUE(contains(file_error_of([&] { source.read_text(8, 3); }),
                       "a: is truncated: it has 10 bytes, and needs 3 from byte 8 on"));
  EXPECT_TRUE(contains(file_error_of([&] { source.read_text(11, 0); }), "truncated"));
}

TEST_F(Io, NoticesAFileThatShrinks) {
  put(folder_ / "a", "0123456789");
  FileSource source(folder_ / "a");
  fs::resize_file(folder_ / "a", 5);
  EXPECT_TRUE(contains(file_error_of([&] { source.read_text(0, 10); }), "truncated while"));
}

TEST_F(Io, RefusesToReadWhatIsNoFile) {
  EXPECT_TRUE(
      contains(file_error_of([&] { FileSource source(folder_ / "none"); }), "none: No such file"));
  EXPECT_TRUE(contains(file_error_of([&] { FileSource source(folder_); }), "is a folder"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(file_error_of([&] { FileSource source(folder_ / "pipe"); }),
                       "is not a regular file"));
}

TEST_F(Io, WritesAllPieces) {
  write_text(folder_ / "a", "header", "body");
  EXPECT_EQ(content_of(folder_ / "a"), "headerbody");
  write_text(folder_ / "a", "less");
  EXPECT_EQ(content_of(folder_ / "a"), "less");
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(Io, KeepsTheModeOfTheFileItReplaces) {
  put(folder_ / "a", "secret");
  fs::permissions(folder_ / "a", fs::perms::owner_read | fs::perms::owner_write);
  write_text(folder_ / "a", "new");
  EXPECT_EQ(fs::status(folder_ / "a").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Io, WritesThroughALink) {
  put(folder_ / "real", "old");
  fs::create_symlink("real", folder_ / "link");
  write_text(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(content_of(folder_ / "real"), "new");
}

TEST_F(Io, RefusesAFolderAndAMissingOne) {
  EXPECT_TRUE(contains(file_error_of([&] { write_text(folder_, "x"); }), "is a folder"));
  EXPECT_TRUE(contains(file_error_of([&] { write_text(folder_ / "no" / "a", "x"); }),
                       "a: cannot be written: No such file or directory"));
  EXPECT_EQ(files_in_folder(), 0U);
}

TEST_F(Io, WritesToDevicesAsTheyAre) {
  write_text("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_TRUE(contains(file_error_of([&] { write_text("/dev/full", "x"); }), "No space left"));
}

TEST_F(Io, LeavesTheOldFileWhenTheDiskIsFull) {
  // A limit on file sizes stands for the full disk.
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  put(folder_ / "a", "old");
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit { 4096, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string large(10'000, 'x');
  const std::string message = file_error_of([&] { write_text(folder_ / "a", large); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);

  EXPECT_TRUE(contains(message, "a: cannot be written: File too large"));
  EXPECT_EQ(content_of(folder_ / "a"), "old");
  EXPECT_EQ(files_in_folder(), 1U);
}

}  // namespace
}  // namespace tilewise::files
