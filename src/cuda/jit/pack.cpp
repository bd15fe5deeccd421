#include "cuda/jit/pack.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

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
  const std::string key = unit_key(unit, arch), version = nvrtc == nullptr ? "" : nvrtc->version;
  std::optional<KernelEntry> entry = cache.read(key, version);
  std::optional<CompileTurn> turn;
  if (!entry && nvrtc != nullptr) {
    turn.emplace(cache, key);
    entry = cache.read(key, version);  // of whoever had the turn before
  }
  if (cached != nullptr) *cached = entry.has_value();
  if (!entry) {
    entry = make_entry(unit, arch, compile(unit, arch));
    cache.write(*entry);
  }
  return std::move(*entry);
}

namespace {

struct PackJob {
  TargetUnit target;
  KernelEntry entry;
};

/// Compiles the jobs on every CPU there is, in their order. The first failure stops the rest.
class PackWorkers {
 public:
  PackWorkers(std::vector<PackJob>& jobs, const DiskCache& cache, const PackProgress& progress)
      : jobs_(jobs), cache_(cache), progress_(progress) {}

  void run() {
    const unsigned count = std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
    std::vector<std::thread> threads;
    threads.reserve(count);
    for (unsigned i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    for (std::size_t i = next_++; i < jobs_.size(); i = next_++) {
      try {
        bool cached = false;
        PackJob& job = jobs_[i];
        job.entry = compile_through(job.target.unit, job.target.arch, cache_, &cached);
        const std::lock_guard lock(mutex_);
        progress_(++done_, static_cast<int>(jobs_.size()), job.entry, cached);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        next_ = jobs_.size();
      }
    }
  }

  std::vector<PackJob>& jobs_;
  const DiskCache& cache_;
  const PackProgress& progress_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  int done_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

namespace {

std::vector<PackJob> compile_jobs(std::vector<TargetUnit> units, const DiskCache& cache,
                                  const PackProgress& progress) {
  std::vector<PackJob> jobs;
  for (TargetUnit& unit : units) jobs.push_back({std::move(unit), {}});
  PackWorkers(jobs, cache, progress).run();
  return jobs;
}

std::vector<TargetUnit> common_units(std::span<const int> archs) {
  std::vector<TargetUnit> units;
  for (const int arch : archs) {
    for (PackUnit& packed : pack_units(arch)) units.push_back({std::move(packed.unit), arch});
  }
  return units;
}

}  // namespace

void fill_cache(std::span<const int> archs, const DiskCache& cache, const PackProgress& progress) {
  compile_jobs(common_units(archs), cache, progress);
}

void build_pack(const std::string& path, std::vector<TargetUnit> units, const DiskCache& cache,
                const PackProgress& progress) {
  const std::vector<PackJob> jobs = compile_jobs(std::move(units), cache, progress);
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::binary);
  for (const PackJob& job : jobs) write_entry(out, job.entry);
  out.close();
  std::error_code failed;
  if (!out.fail()) std::filesystem::rename(temporary, path, failed);
  if (out.fail() || failed) throw Error("cannot write the kernel pack " + path);
}

void build_pack(const std::string& path, std::span<const int> archs, const DiskCache& cache,
                const PackProgress& progress) {
  build_pack(path, common_units(archs), cache, progress);
}

}  // namespace tilewise::cuda
