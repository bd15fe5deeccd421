#include "harness/environment.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <sstream>

#include "build_info.h"
#include "cpu/micro/isa.h"
#include "cuda/jit/nvrtc.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

/// Text after "name<separator>" on the first line of a file that begins so; empty when there is
/// none.
std::string field(const std::string& path, const std::string& name, char separator) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    const std::size_t at = line.find(separator, name.size());
    if (at == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t\"", at + 1);
    if (begin == std::string::npos) continue;
    const std::size_t end = line.find_last_not_of(" \t\"");
    return line.substr(begin, end - begin + 1);
  }
  return {};
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string operating_system() {
  std::string text = field("/etc/os-release", "PRETTY_NAME", '=');
  utsname kernel{};
  if (uname(&kernel) == 0) {
    text += (text.empty() ? "" : ", ") + std::string(kernel.sysname) + " " + kernel.release;
  }
  return text;
}

int usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 0;
  return CPU_COUNT(&set);
}

std::string isa_flags() {
  constexpr std::array<const char*, 10> kWanted{"sse4_2",   "avx2",     "fma",      "f16c",
                                                "avx512f",  "avx512bw", "avx512vl", "avx512_bf16",
                                                "amx_bf16", "amx_tile"};
  std::istringstream flags(field("/proc/cpuinfo", "flags", ':'));
  std::string found;
  for (std::string flag; flags >> flag;) {
    for (const char* wanted : kWanted) {
      if (flag == wanted) found += (found.empty() ? "" : " ") + flag;
    }
  }
  return found;
}

void read_gpus(Environment& environment) {
  constexpr int kMost = 64;
  for (int index = 0; index < kMost; ++index) {
    try {
      const Hardware gpu = hardware({DeviceType::cuda, index});
      environment.gpus.push_back({gpu.name, "sm_" + std::to_string(gpu.arch), gpu.memory_bytes});
    } catch (const Error&) {  // no driver, or no more devices
      return;
    }
  }
}

}  // namespace

Environment read_environment() {
  Environment e;
  e.library_version = version();
  e.commit = TILEWISE_COMMIT;
  e.compiler = TILEWISE_COMPILER;
  e.build_type = TILEWISE_BUILD_TYPE;
  e.date = utc_now();
  e.host_os = operating_system();
  e.cpu = field("/proc/cpuinfo", "model name", ':');
  e.cpu_count = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  e.cpu_usable = usable_cpus();
  e.isa_flags = isa_flags();
  e.llc_bytes = cpu::last_level_cache_bytes();
  const Hardware machine = hardware();
  e.isa = machine.isa;
  e.memory_bytes = machine.memory_bytes;
  read_gpus(e);
  if (const cuda::Nvrtc* nvrtc = cuda::find_nvrtc()) e.nvrtc = nvrtc->version;
  e.driver = field("/proc/driver/nvidia/version", "NVRM version", ':');
  return e;
}

}  // namespace tilewise
