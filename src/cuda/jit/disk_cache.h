/// DiskCache: compiled kernels in a folder, one file each. Safe for any number of processes: a file
/// appears complete (written beside, then renamed) or not at all. Nothing here throws for a bad
/// disk: a cache that cannot be read or written costs time only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/jit/entry.h"

namespace tilewise::cuda {

class DiskCache {
 public:
  /// `folder` empty: nothing is kept.
  explicit DiskCache(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }

  /// The entry of a key made by this compiler version; an empty version takes any. None when it is
  /// missing, cut short, damaged or somebody else's.
  std::optional<KernelEntry> read(const std::string& key, const std::string& compiler) const;
  /// False when it could not be written.
  bool write(const KernelEntry& entry) const;
  /// Whether a file can be written there now.
  bool is_writable() const;

  /// Descriptions of all entries, by name.
  std::vector<KernelEntry> list() const;
  /// Removes all entries, and nothing else; returns how many.
  int clear() const;

 private:
  std::string folder_;
};

/// A turn at compiling a kernel into a cache: processes and threads that miss the same kernel take
/// turns, so that one compiles it and the others find it. A cache without a folder, or a holder
/// that takes minutes, makes nobody wait.
class CompileTurn {
 public:
  CompileTurn(const DiskCache& cache, const std::string& key);
  ~CompileTurn();
  CompileTurn(const CompileTurn&) = delete;
  CompileTurn& operator=(const CompileTurn&) = delete;

 private:
  int file_ = -1;
};

/// The user's cache: TILEWISE_CACHE_DIR, else XDG_CACHE_HOME/tilewise, else HOME/.cache/tilewise,
/// else none.
std::string default_cache_folder();

}  // namespace tilewise::cuda
