/// load(): from a unit to a kernel that can be launched.
#pragma once

#include "cuda/driver/launch.h"
#include "cuda/jit/unit.h"

namespace tilewise::cuda {

/// The kernel of a unit on device `device`: from this process's table, else from the pack, else
/// from the disk cache, else compiled. Thread-safe. The first call of a unit takes milliseconds
/// (seconds when it compiles), later ones well under a microsecond. Throws CompileError,
/// DeviceError.
Kernel load(const KernelUnit& unit, int device);

}  // namespace tilewise::cuda
