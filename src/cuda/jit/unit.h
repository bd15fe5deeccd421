/// KernelUnit: what names one compiled kernel, and PackUnit: what the pack and the census need to
/// know about it.
///
/// A kernel is a namespace tilewise::<stem>, in a folder of cuda/kernels that its family shares:
///   args.h or <name>_args.h  struct Config (named constants) and struct Args (the one parameter);
///                            includes only other *args.h; read by the host and by NVRTC
///   <file>.cuh               template <Config kConfig> void kernel(const Args&)
///   row.h/.cpp               host: configs, prepare, run
/// and the unit that NVRTC compiles is generated from a KernelUnit:
///   #include "cuda/kernels/<file>.cuh"
///   using namespace tilewise::<stem>;
///   extern "C" __global__ void __launch_bounds__(<threads>, <min_blocks>)
///   <name>(const __grid_constant__ <args> args) { <entry><Config{<config>}>(args); }
/// Everything under -default-device: functions need no __device__. Includes are written from src/
/// and found among the embedded sources (cuda/tile/*, cuda/kernels/*.cuh, *args.h).
#pragma once

#include <string>
#include <vector>

namespace tilewise::cuda {

struct KernelUnit {
  std::string stem;              ///< the kernel's namespace: "fwd_sm80"
  std::string file;              ///< its source in cuda/kernels, without .cuh: "fwd_sm80/kernel"
  std::string config;            ///< designated initialisers: ".block_m = 128, .head_dim = 64"
  int threads = 128;             ///< of a block
  int min_blocks = 1;            ///< on a multiprocessor, the second argument of __launch_bounds__
  int shared_bytes = 0;          ///< dynamic shared memory that each launch asks for
  std::string entry = "kernel";  ///< the function template, for stems with several kernels
  std::string args = "Args";     ///< its parameter's type
  /// Device text before the kernel's source: wrappers generated for this config (wgmma_text.h).
  std::string prelude = "";

  /// Name of the extern "C" function: the stem, or stem_entry when the entry is not "kernel".
  std::string name() const;
  /// The text that NVRTC compiles.
  std::string source() const;
  bool operator==(const KernelUnit&) const = default;
};

/// A unit that is compiled at build time. What the census holds it to.
struct PackUnit {
  KernelUnit unit;
  std::string row;  ///< the kernel row it belongs to, for the table
  std::string
      instruction;  ///< that its PTX must contain: "mma.sync", "wgmma.mma_async"; empty = none
  int allowed_spill_bytes = 0;  ///< at most 160, and the row says why
};

/// Every unit that the pack holds for an architecture (80, 86, 89, 90, 100, 120): at most 64. Each
/// row's row.h has a function of its own, which src/cuda/rows.cpp calls.
std::vector<PackUnit> pack_units(int arch);

}  // namespace tilewise::cuda
