/// NVRTC, NVIDIA's run-time compiler, opened at run time. It needs no GPU, no driver and no toolkit
/// headers.
#pragma once

#include <cstddef>
#include <string>

namespace tilewise::cuda {

using NvrtcProgram = struct NvrtcProgram_st*;
using NvrtcResult = int;

/// One pointer a function, named as in NVRTC's manual.
struct Nvrtc {
  NvrtcResult (*nvrtcVersion)(int* major, int* minor);
  NvrtcResult (*nvrtcGetNumSupportedArchs)(int* count);
  NvrtcResult (*nvrtcGetSupportedArchs)(int* archs);
  const char* (*nvrtcGetErrorString)(NvrtcResult result);
  NvrtcResult (*nvrtcCreateProgram)(NvrtcProgram* program, const char* source, const char* name,
                                    int header_count, const char* const* headers,
                                    const char* const* header_names);
  NvrtcResult (*nvrtcDestroyProgram)(NvrtcProgram* program);
  NvrtcResult (*nvrtcCompileProgram)(NvrtcProgram program, int option_count,
                                     const char* const* options);
  NvrtcResult (*nvrtcGetProgramLogSize)(NvrtcProgram program, std::size_t* bytes);
  NvrtcResult (*nvrtcGetProgramLog)(NvrtcProgram program, char* log);
  NvrtcResult (*nvrtcGetCUBINSize)(NvrtcProgram program, std::size_t* bytes);
  NvrtcResult (*nvrtcGetCUBIN)(NvrtcProgram program, char* cubin);
  NvrtcResult (*nvrtcGetPTXSize)(NvrtcProgram program, std::size_t* bytes);
  NvrtcResult (*nvrtcGetPTX)(NvrtcProgram program, char* ptx);

  std::string version;  ///< "13.0"
  /// It keeps what it compiled in the driver's cache, and answers from there without ptxas's report
  /// (CUDA 12.9 and newer).
  bool caches = false;
};

/// The compiler, or null with what was looked for. With a driver present its own major version is
/// tried first: a driver loads what a compiler of its version makes.
const Nvrtc* find_nvrtc(std::string* why_not = nullptr);

/// True when the compiler makes code for an architecture (80, 90, ...).
bool supports_arch(const Nvrtc& nvrtc, int arch);

}  // namespace tilewise::cuda
