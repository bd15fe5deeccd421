/// tilewise_pack OUTPUT ARCH...: compiles the packed kernels of the given architectures into one
/// file. Run by the build; `tilewise kernels build` is the same for people. What the user's kernel
/// cache has is not compiled again.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda/jit/nvrtc.h"
#include "cuda/jit/pack.h"
#include "tilewise/error.h"

namespace {

using namespace tilewise::cuda;

int run(const char* output, const std::vector<int>& archs) {
  std::string why_not;
  if (!archs.empty() && find_nvrtc(&why_not) == nullptr) {
    std::fprintf(stderr, "no kernel pack, kernels will be compiled at first use: %s\n",
                 why_not.c_str());
    return build_pack(output, {}, DiskCache(""), {}), 0;
  }
  int compiled = 0, all = 0;
  double seconds = 0.0;
  build_pack(output, archs, DiskCache(default_cache_folder()),
             [&](int, int total, const KernelEntry& entry, bool cached) {
               all = total;
               if (cached) return;
               ++compiled;
               seconds += entry.report.seconds;
             });
  std::printf("kernel pack: %d kernels, %d compiled in %.1f s of CPU time\n", all, compiled,
              seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: tilewise_pack OUTPUT ARCH...\n");
    return 2;
  }
  std::vector<int> archs;
  for (int i = 2; i < argc; ++i) {
    int arch = 0;
    const char* end = argv[i] + std::strlen(argv[i]);
    if (std::from_chars(argv[i], end, arch).ptr != end || arch < 80) {
      std::fprintf(stderr, "tilewise_pack: architecture is %s: expected 80, 86, 89, 90, ...\n",
                   argv[i]);
      return 2;
    }
    archs.push_back(arch);
  }
  try {
    return run(argv[1], archs);
  } catch (const tilewise::Error& error) {
    std::fprintf(stderr, "tilewise_pack: %s\n", error.what());
    return 1;
  }
}
