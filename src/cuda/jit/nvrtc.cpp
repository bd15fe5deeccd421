#include "cuda/jit/nvrtc.h"

#include <algorithm>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/library.h"

namespace tilewise::cuda {
namespace {

struct OpenedNvrtc {
  Nvrtc functions{};
  bool usable = false;
  std::string reason;
};

bool resolve_all(SharedLibrary& library, Nvrtc& n) {
  return library.resolve("nvrtcVersion", n.nvrtcVersion) &&
         library.resolve("nvrtcGetNumSupportedArchs", n.nvrtcGetNumSupportedArchs) &&
         library.resolve("nvrtcGetSupportedArchs", n.nvrtcGetSupportedArchs) &&
         library.resolve("nvrtcGetErrorString", n.nvrtcGetErrorString) &&
         library.resolve("nvrtcCreateProgram", n.nvrtcCreateProgram) &&
         library.resolve("nvrtcDestroyProgram", n.nvrtcDestroyProgram) &&
         library.resolve("nvrtcCompileProgram", n.nvrtcCompileProgram) &&
         library.resolve("nvrtcGetProgramLogSize", n.nvrtcGetProgramLogSize) &&
         library.resolve("nvrtcGetProgramLog", n.nvrtcGetProgramLog) &&
         library.resolve("nvrtcGetCUBINSize", n.nvrtcGetCUBINSize) &&
         library.resolve("nvrtcGetCUBIN", n.nvrtcGetCUBIN) &&
         library.resolve("nvrtcGetPTXSize", n.nvrtcGetPTXSize) &&
         library.resolve("nvrtcGetPTX", n.nvrtcGetPTX);
}

std::vector<std::string> sonames() {
  std::vector<std::string> names = {"libnvrtc.so.13", "libnvrtc.so.12"};
  if (driver_version().starts_with("12.")) std::swap(names[0], names[1]);
  names.emplace_back("libnvrtc.so");
  return names;
}

OpenedNvrtc open_nvrtc() {
  OpenedNvrtc opened;
  SharedLibrary library;
  if (!library.open(sonames())) {
    opened.reason =
        "NVRTC was not found (libnvrtc, from the CUDA toolkit or the Python package "
        "nvidia-cuda-nvrtc): " +
        library.error();
    return opened;
  }
  if (!resolve_all(library, opened.functions)) {
    opened.reason = "NVRTC is too old: " + library.error();
    return opened;
  }
  int major = 0, minor = 0;
  opened.functions.nvrtcVersion(&major, &minor);
  opened.functions.version = std::to_string(major) + "." + std::to_string(minor);
  opened.functions.caches = major > 12 || (major == 12 && minor >= 9);
  // NVRTC asks the dynamic linker for its built-in functions by soname, and the linker does not
  // look into pip's folders: a library that is open already is found. Elsewhere the linker finds
  // it.
  static_cast<void>(library.open_beside("libnvrtc-builtins.so." + opened.functions.version));
  opened.usable = true;
  return opened;
}

}  // namespace

const Nvrtc* find_nvrtc(std::string* why_not) {
  static const OpenedNvrtc opened = open_nvrtc();
  if (opened.usable) return &opened.functions;
  if (why_not != nullptr) *why_not = opened.reason;
  return nullptr;
}

bool supports_arch(const Nvrtc& nvrtc, int arch) {
  int count = 0;
  if (nvrtc.nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0) return false;
  std::vector<int> archs(static_cast<std::size_t>(count));
  if (nvrtc.nvrtcGetSupportedArchs(archs.data()) != 0) return false;
  return std::find(archs.begin(), archs.end(), arch) != archs.end();
}

}  // namespace tilewise::cuda
