#include "cuda/jit/disk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>

namespace tilewise::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExtension = ".kernel";
constexpr const char* kLockFolder = "locks";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

fs::path entry_path(const std::string& folder, const std::string& key,
                    const std::string& compiler) {
  return fs::path(folder) / (key + "-" + compiler + kExtension);
}

/// Machine code runs with the rights of whoever reads it: only files of this user, or of root, that
/// nobody else may write.
bool is_trusted(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const bool own = status.st_uid == ::geteuid() || status.st_uid == 0;
  return own && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::optional<KernelEntry> read_file(const fs::path& path, const std::string& key) {
  std::ifstream in(path, std::ios::binary);
  if (!in || !is_trusted(path)) return std::nullopt;
  std::optional<KernelEntry> entry = read_entry(in);
  if (!entry || entry->key != key) return std::nullopt;
  return entry;
}

/// Files of the folder that are entries.
std::vector<fs::path> entry_files(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    if (it->path().extension() == kExtension) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Creates the folder for this user only, unless it exists.
void make_private_folder(const fs::path& folder) {
  std::error_code failed;
  if (fs::create_directories(folder, failed)) fs::permissions(folder, fs::perms::owner_all, failed);
}

/// A name that no other process or thread uses: for a file on its way.
std::string temporary_suffix() {
  static std::atomic<unsigned> counter{0};
  return ".tmp-" + std::to_string(getpid()) + "-" + std::to_string(counter.fetch_add(1));
}

}  // namespace

std::string default_cache_folder() {
  if (std::string folder = environment("TILEWISE_CACHE_DIR"); !folder.empty()) return folder;
  if (const std::string base = environment("XDG_CACHE_HOME"); !base.empty()) {
    return base + "/tilewise";
  }
  if (const std::string home = environment("HOME"); !home.empty()) {
    return home + "/.cache/tilewise";
  }
  return {};
}

std::optional<KernelEntry> DiskCache::read(const std::string& key,
                                           const std::string& compiler) const {
  if (folder_.empty()) return std::nullopt;
  if (!compiler.empty()) return read_file(entry_path(folder_, key, compiler), key);
  for (const fs::path& file : entry_files(folder_)) {
    if (!file.filename().string().starts_with(key)) continue;
    if (std::optional<KernelEntry> entry = read_file(file, key)) return entry;
  }
  return std::nullopt;
}

bool DiskCache::write(const KernelEntry& entry) const {
  if (folder_.empty()) return false;
  std::error_code failed;
  make_private_folder(folder_);
  const fs::path path = entry_path(folder_, entry.key, entry.compiler);
  const fs::path temporary = path.string() + temporary_suffix();
  {
    std::ofstream out(temporary, std::ios::binary);
    if (out) write_entry(out, entry);
    out.close();
    failed = out.fail() ? std::make_error_code(std::errc::io_error) : std::error_code();
  }
  // What others may write is not read, and a umask of 0 would let them.
  if (!failed) {
    fs::permissions(temporary, fs::perms::group_write | fs::perms::others_write,
                    fs::perm_options::remove, failed);
  }
  if (!failed) fs::rename(temporary, path, failed);
  if (failed) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
  }
  return !failed;
}

bool DiskCache::is_writable() const {
  if (folder_.empty()) return false;
  make_private_folder(folder_);
  const fs::path probe = fs::path(folder_) / ("probe" + temporary_suffix());
  std::ofstream out(probe);
  out << "probe";
  out.close();
  std::error_code ignored;
  fs::remove(probe, ignored);
  return !out.fail();
}

CompileTurn::CompileTurn(const DiskCache& cache, const std::string& key) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kLongest{120};  // far above any compilation
  constexpr std::chrono::milliseconds kBetween{20};
  if (cache.folder().empty()) return;
  // The locks of kernels that begin alike are one: a file for each would stay for ever.
  const fs::path folder = fs::path(cache.folder()) / kLockFolder;
  make_private_folder(cache.folder());
  make_private_folder(folder);
  file_ = ::open((folder / key.substr(0, 2)).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file_ < 0) return;
  // The kernel lets go of the lock of a process that ends, whatever way.
  const Clock::time_point given_up = Clock::now() + kLongest;
  while (::flock(file_, LOCK_EX | LOCK_NB) != 0 && Clock::now() < given_up)
    std::this_thread::sleep_for(kBetween);
}

CompileTurn::~CompileTurn() {
  if (file_ >= 0) ::close(file_);
}

std::vector<KernelEntry> DiskCache::list() const {
  std::vector<KernelEntry> entries;
  for (const fs::path& file : entry_files(folder_)) {
    std::ifstream in(file, std::ios::binary);
    if (std::optional<KernelEntry> entry = read_description(in)) {
      entries.push_back(std::move(*entry));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const KernelEntry& a, const KernelEntry& b) {
    return std::tie(a.name, a.arch, a.config) < std::tie(b.name, b.arch, b.config);
  });
  return entries;
}

int DiskCache::clear() const {
  int removed = 0;
  for (const fs::path& file : entry_files(folder_)) {
    std::error_code failed;
    if (fs::remove(file, failed) && !failed) ++removed;
  }
  return removed;
}

}  // namespace tilewise::cuda
