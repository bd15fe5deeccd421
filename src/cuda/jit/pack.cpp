#include "cuda/jit/pack.h"

#include <filesystem>
#include <fstream>

#include "cuda/driver/library.h"
#include "cuda/jit/nvrtc.h"
#include "tilewise/error.h"

namespace tilewise::cuda {

Pack::Pack(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::ifstream in(path_, std::ios::binary);
  while (in) {
    const std::int64_t offset = in.tellg();
    std::optional<KernelEntry> entry = read_description(in);
    if (!entry) break;
    offsets_.emplace(entry->key, offset);
    descriptions_.push_back(std::move(*entry));
  }
}

std::optional<KernelEntry> Pack::read(const std::string& key) const {
  const auto found = offsets_.find(key);
  if (found == offsets_.end()) return std::nullopt;
  std::ifstream in(path_, std::ios::binary);
  in.seekg(found->second);
  std::optional<KernelEntry> entry = read_entry(in);
  if (!entry || entry->key != key) return std::nullopt;
  return entry;
}

std::string find_pack() {
  const std::string here = module_folder();
  if (here.empty()) return {};
  for (const char* folder : {"/", "/../lib/", "/../lib64/", "/../lib/x86_64-linux-gnu/"}) {
    std::string path = here + folder + kPackFileName;
    std::error_code failed;
    if (std::filesystem::is_regular_file(path, failed)) return path;
  }
  return {};
}

const Pack& installed_pack() {
  static const Pack pack(find_pack());
  return pack;
}

KernelEntry compile_through(const KernelUnit& unit, int arch, const DiskCache& cache,
                            bool* cached) {
  const Nvrtc* nvrtc = find_nvrtc();
  std::optional<KernelEntry> entry =
      cache.read(unit_key(unit, arch), nvrtc == nullptr ? "" : nvrtc->version);
  if (cached != nullptr) *cached = entry.has_value();
  if (!entry) {
    entry = make_entry(unit, arch, compile(unit, arch));
    cache.write(*entry);
  }
  return std::move(*entry);
}

void build_pack(const std::string& path, std::span<const int> archs, const DiskCache& cache,
                const PackProgress& progress) {
  struct Job {
    KernelUnit unit;
    int arch;
  };
  std::vector<Job> jobs;
  for (const int arch : archs) {
    for (PackUnit& packed : pack_units(arch)) jobs.push_back({std::move(packed.unit), arch});
  }
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::binary);
  int done = 0;
  for (const Job& job : jobs) {
    bool cached = false;
    const KernelEntry entry = compile_through(job.unit, job.arch, cache, &cached);
    write_entry(out, entry);
    progress(++done, static_cast<int>(jobs.size()), entry, cached);
  }
  out.close();
  std::error_code failed;
  if (!out.fail()) std::filesystem::rename(temporary, path, failed);
  if (out.fail() || failed) throw Error("cannot write the kernel pack " + path);
}

}  // namespace tilewise::cuda
