/// Starting a kernel: one call, at most a few microseconds of host time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/driver/cuda_types.h"

namespace tilewise::cuda {

/// A kernel that is loaded into a device's context: what jit's load() gives. Cheap to copy, valid
/// until the process ends.
struct Kernel {
  CUfunction function = nullptr;
  int device = 0;
  int threads = 0;       ///< of a block
  int shared_bytes = 0;  ///< dynamic
};

/// Grid in blocks. x may be up to 2^31 - 1, y and z up to 65,535: kernels that may need more use x
/// alone.
struct Grid {
  std::int64_t x = 1;
  int y = 1, z = 1;
  int cluster = 1;  ///< blocks of a cluster along x (sm_90 and newer); divides x
  /// Programmatic dependent launch (sm_90 and newer): the kernel may start while the one before it
  /// on the stream still runs; it must execute griddepcontrol.wait before it reads what that one
  /// wrote.
  bool overlap_previous = false;
};

/// The launcher under launch(). `args` points to the kernel's single parameter. An empty grid
/// launches nothing. Throws DeviceError.
void launch_kernel(const Kernel& kernel, const Grid& grid, void* stream, const void* args);

/// Runs `kernel` on `stream` with `args` as its one __grid_constant__ parameter. Args is the struct
/// of the kernel's
/// *_args.h, the same text on both sides.
template <class Args>
void launch(const Kernel& kernel, const Grid& grid, void* stream, const Args& args) {
  static_assert(std::is_trivially_copyable_v<Args>);
  static_assert(sizeof(Args) <= 4096, "a kernel's parameters take at most 4096 bytes");
  launch_kernel(kernel, grid, stream, &args);
}

}  // namespace tilewise::cuda
