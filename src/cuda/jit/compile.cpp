#include "cuda/jit/compile.h"

#include <charconv>
#include <ctime>
#include <vector>

#include "cuda/jit/nvrtc.h"
#include "embedded_sources.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The number that stands directly before `word` in a line; 0 when there is none.
int number_before(std::string_view line, std::string_view word) {
  std::size_t end = line.find(word);
  if (end == std::string_view::npos) return 0;
  while (end > 0 && line[end - 1] == ' ') --end;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

/// "C7510 ..." out of a line that holds one of ptxas's performance notes; empty otherwise.
std::string_view performance_note(std::string_view line) {
  for (std::size_t at = line.find("C75"); at != std::string_view::npos;
       at = line.find("C75", at + 1)) {
    const auto digit = [&](std::size_t i) {
      return i < line.size() && line[i] >= '0' && line[i] <= '9';
    };
    if (digit(at + 3) && digit(at + 4) && !digit(at + 5)) return line.substr(at);
  }
  return {};
}

/// NvrtcProgram that destroys itself.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const std::string& source, const std::string& name) : nvrtc_(nvrtc) {
    const auto sources = embedded_sources();
    // The generated text ends every embedded source with a zero, so data() is a C string.
    std::vector<const char*> texts, names;
    for (const EmbeddedSource& embedded : sources) {
      texts.push_back(embedded.text.data());
      names.push_back(embedded.path.data());
    }
    require(nvrtc.nvrtcCreateProgram(&program_, source.c_str(), name.c_str(),
                                     static_cast<int>(texts.size()), texts.data(), names.data()),
            "nvrtcCreateProgram");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }

  NvrtcProgram get() const { return program_; }

  using GetSize = NvrtcResult (*)(NvrtcProgram, std::size_t*);
  using GetText = NvrtcResult (*)(NvrtcProgram, char*);
  std::string read(GetSize get_size, GetText get_text) const {
    std::size_t bytes = 0;
    require(get_size(program_, &bytes), "NVRTC");
    std::string text(bytes, '\0');
    require(get_text(program_, text.data()), "NVRTC");
    return text;
  }

 private:
  void require(NvrtcResult result, const char* call) const {
    if (result == 0) return;
    throw CompileError(std::string(call) + ": " + nvrtc_.nvrtcGetErrorString(result));
  }

  const Nvrtc& nvrtc_;
  NvrtcProgram program_ = nullptr;
};

int count(std::string_view text, std::string_view word) {
  int found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + word.size())) {
    ++found;
  }
  return found;
}

void drop_trailing_zero(std::string& text) {
  while (!text.empty() && text.back() == '\0') text.pop_back();
}

}  // namespace

std::string arch_name(int arch) {
  // wgmma and setmaxnreg exist in the architecture-specific target only.
  return "sm_" + std::to_string(arch) + (arch == 90 ? "a" : "");
}

Compiled compile(const KernelUnit& unit, int arch) {
  std::string why_not;
  const Nvrtc* nvrtc = find_nvrtc(&why_not);
  if (nvrtc == nullptr) {
    throw CompileError("kernel " + unit.name() + " for " + arch_name(arch) +
                       " is not in the pack or the cache and cannot be compiled: " + why_not);
  }
  const double start = cpu_seconds();
  const Program program(*nvrtc, unit.source(), unit.name() + ".cu");
  const std::string arch_option = "--gpu-architecture=" + arch_name(arch);
  std::vector<const char*> options = {arch_option.c_str(), "--std=c++20", "-default-device",
                                      "--ptxas-options=-v"};
  if (nvrtc->caches) options.push_back("--no-cache");
  const NvrtcResult result =
      nvrtc->nvrtcCompileProgram(program.get(), static_cast<int>(options.size()), options.data());

  Compiled compiled;
  compiled.log = program.read(nvrtc->nvrtcGetProgramLogSize, nvrtc->nvrtcGetProgramLog);
  drop_trailing_zero(compiled.log);
  if (result != 0) {
    throw CompileError("kernel " + unit.name() + " {" + unit.config + "} for " + arch_name(arch) +
                       " with NVRTC " + nvrtc->version + ": " + nvrtc->nvrtcGetErrorString(result) +
                       "\n" + compiled.log);
  }
  compiled.cubin = program.read(nvrtc->nvrtcGetCUBINSize, nvrtc->nvrtcGetCUBIN);
  const std::string ptx = program.read(nvrtc->nvrtcGetPTXSize, nvrtc->nvrtcGetPTX);
  compiled.compiler = nvrtc->version;
  compiled.report = parse_log(compiled.log);
  compiled.report.mma_count = count(ptx, "mma.sync");
  compiled.report.wgmma_count = count(ptx, "wgmma.mma_async");
  compiled.report.seconds = cpu_seconds() - start;
  return compiled;
}

CompileReport parse_log(std::string_view log) {
  CompileReport report;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (line.find("bytes spill stores") != std::string_view::npos) {
      // One line a function; a kernel that inlines everything has one function.
      report.stack_bytes += number_before(line, "bytes stack frame");
      report.spill_store_bytes += number_before(line, "bytes spill stores");
      report.spill_load_bytes += number_before(line, "bytes spill loads");
    } else if (line.find(" registers") != std::string_view::npos) {
      report.registers = number_before(line, "registers");
      report.static_shared_bytes = number_before(line, "bytes smem");
    }
    if (const std::string_view note = performance_note(line); !note.empty()) {
      report.notes.emplace_back(note);
    }
  }
  return report;
}

}  // namespace tilewise::cuda
