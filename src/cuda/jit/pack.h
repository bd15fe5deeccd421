/// Pack: kernels compiled at build time, in one file beside the library: no wait at first use, no
/// compiler needed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/jit/disk_cache.h"
#include "cuda/jit/entry.h"

namespace tilewise::cuda {

inline constexpr const char* kPackFileName = "tilewise.pack";

/// A pack's table of contents. Reading it reads the descriptions only.
class Pack {
 public:
  /// A file that is missing, or where it is damaged, has no entries.
  explicit Pack(std::string path);

  const std::string& path() const { return path_; }
  /// The entry with its machine code; none when it is missing or damaged. Thread-safe.
  std::optional<KernelEntry> read(const std::string& key) const;
  /// Descriptions, in the file's order.
  std::span<const KernelEntry> list() const { return descriptions_; }

 private:
  std::string path_;
  std::vector<KernelEntry> descriptions_;
  std::map<std::string, std::int64_t> offsets_;  // key -> start of the entry
};

/// Where the library's pack is: beside the library or the program, or in ../lib of it; empty when
/// there is none.
std::string find_pack();

/// The pack of this process, looked for once.
const Pack& installed_pack();

/// A unit and the architecture that it is compiled for.
struct TargetUnit {
  KernelUnit unit;
  int arch = 0;
};

/// Writes the pack of these units to `path` (atomically), in their order. What `cache` has is not
/// compiled again. Compiles on every CPU; after each kernel, in no order and one at a time, calls
/// progress(done, all, entry, from_cache). Throws CompileError, Error.
using PackProgress = std::function<void(int done, int all, const KernelEntry& entry, bool cached)>;
void build_pack(const std::string& path, std::vector<TargetUnit> units, const DiskCache& cache,
                const PackProgress& progress);
/// The same for pack_units() of the given architectures.
void build_pack(const std::string& path, std::span<const int> archs, const DiskCache& cache,
                const PackProgress& progress);

/// Compiles pack_units() of the given architectures into `cache`, as build_pack() does.
void fill_cache(std::span<const int> archs, const DiskCache& cache, const PackProgress& progress);

/// The entry of a unit: from the cache, else compiled (and kept there). Of several processes and
/// threads that miss it one compiles, the others wait.
KernelEntry compile_through(const KernelUnit& unit, int arch, const DiskCache& cache, bool* cached);

}  // namespace tilewise::cuda
