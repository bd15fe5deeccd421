/// tilewise_pack OUTPUT ARCH...: compiles the packed kernels of the given architectures into one
/// file. Run by the build; `tilewise kernels build` is the same for people. What the user's kernel
/// cache has is not compiled again. `tilewise_pack --guard OUTPUT [NAME]` writes the kernels of
/// guard_units.h instead, all or those whose names begin so, for `tilewise kernels diff`.
#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda/jit/census.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/pack.h"
#include "guard_units.h"
#include "tilewise/error.h"

namespace {

using namespace tilewise::cuda;

/// Counts what build_pack() compiles.
struct Tally {
  int all = 0, compiled = 0;
  double seconds = 0.0;

  PackProgress progress() {
    return [this](int, int total, const KernelEntry& entry, bool cached) {
      all = total;
      if (cached) return;
      ++compiled;
      seconds += entry.report.seconds;
    };
  }
  void print() const {
    std::printf("kernel pack: %d kernels, %d compiled in %.1f s of CPU time\n", all, compiled,
                seconds);
  }
};

int build(const std::string& output, const std::vector<int>& archs) {
  std::string why_not;
  const Nvrtc* nvrtc = archs.empty() ? nullptr : find_nvrtc(&why_not);
  if (nvrtc == nullptr && !archs.empty()) {
    std::fprintf(stderr, "no kernel pack, kernels will be compiled at first use: %s\n",
                 why_not.c_str());
  }
  std::vector<int> known;
  for (const int arch : archs) {
    if (nvrtc == nullptr) break;
    if (supports_arch(*nvrtc, arch)) {
      known.push_back(arch);
    } else {
      std::fprintf(stderr, "kernel pack: NVRTC %s makes no code for %s, left out\n",
                   nvrtc->version.c_str(), arch_name(arch).c_str());
    }
  }
  Tally tally;
  build_pack(output, known, DiskCache(default_cache_folder()), tally.progress());
  tally.print();
  return 0;
}

int build_guard(const std::string& output, const std::string& name) {
  std::vector<TargetUnit> units = guard_units();
  std::erase_if(units, [&](const TargetUnit& of) { return !of.unit.name().starts_with(name); });
  Tally tally;
  build_pack(output, units, DiskCache(default_cache_folder()), tally.progress());
  tally.print();
  return 0;
}

int take_census(const std::string& path, const std::vector<int>& archs) {
  const Pack pack(path);
  int faulty = 0;
  std::printf("%-20s %-8s %4s %5s %7s %8s %6s %6s  %s\n", "row", "arch", "regs", "spill", "shared",
              "cubin", "tensor", "s", "config");
  for (const int arch : archs) {
    const std::vector<CensusLine> lines = census(pack, arch);
    if (lines.size() > kPackLimit) {
      std::printf("FAULT: %zu kernels for %s, at most %zu\n", lines.size(), arch_name(arch).c_str(),
                  kPackLimit);
      ++faulty;
    }
    for (const CensusLine& line : lines) {
      const CompileReport& r = line.entry.report;
      std::printf("%-20s %-8s %4d %5d %7d %8lld %6d %6.2f  %s {%s}\n", line.packed.row.c_str(),
                  arch_name(arch).c_str(), r.registers, r.spill_store_bytes + r.spill_load_bytes,
                  r.static_shared_bytes + line.entry.shared_bytes,
                  static_cast<long long>(line.entry.cubin_bytes), r.mma_count + r.wgmma_count,
                  r.seconds, line.packed.unit.name().c_str(), line.packed.unit.config.c_str());
      for (const std::string& fault : line.faults) {
        std::printf("  FAULT: %s\n", fault.c_str());
        ++faulty;
      }
    }
  }
  std::printf("%d faults\n", faulty);
  return faulty == 0 ? 0 : 1;
}

/// The words behind the first.
std::vector<int> parse_archs(const std::vector<std::string>& words) {
  std::vector<int> archs;
  for (std::size_t i = 1; i < words.size(); ++i) {
    int arch = 0;
    const char* end = words[i].data() + words[i].size();
    if (std::from_chars(words[i].data(), end, arch).ptr != end || arch < 80) {
      throw tilewise::InvalidArgument("architecture is " + words[i] +
                                      ": expected 80, 86, 89, 90, ...");
    }
    archs.push_back(arch);
  }
  return archs;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  constexpr const char* kUsage =
      "usage: tilewise_pack [--census] PACK ARCH...\n       tilewise_pack --guard PACK [NAME]\n";
  if (!words.empty() && (words.front() == "--help" || words.front() == "-h")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  std::string mode;
  if (!words.empty() && (words.front() == "--census" || words.front() == "--guard")) {
    mode = words.front();
    words.erase(words.begin());
  }
  if (words.empty() || words.front().starts_with('-') || (mode == "--guard" && words.size() > 2)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    if (mode == "--guard") return build_guard(words.front(), words.size() > 1 ? words[1] : "");
    const std::vector<int> archs = parse_archs(words);
    return mode == "--census" ? take_census(words.front(), archs) : build(words.front(), archs);
  } catch (const tilewise::InvalidArgument& error) {
    std::fprintf(stderr, "tilewise_pack: %s\n", error.what());
    return 2;
  } catch (const tilewise::Error& error) {
    std::fprintf(stderr, "tilewise_pack: %s\n", error.what());
    return 1;
  }
}
