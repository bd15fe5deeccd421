/// ceilings on the host. See ceilings/README.md.
#pragma once

#include <cstdint>

#include "cuda/jit/unit.h"
#include "cuda/kernels/ceilings/args.h"
#include "tilewise/plan.h"

namespace tilewise::cuda {

/// Whether devices of an architecture have what this keeps busy.
bool has_ceiling(ceilings::What what, int arch);

/// One launch on the default stream of `machine.device`.
struct CeilingLaunch {
  const void* from = nullptr;  ///< read, copy: `bytes` of device memory
  void* to = nullptr;          ///< copy: as much; else 4 bytes for each of ceiling_threads()
  std::int64_t bytes = 0;      ///< of `from`, a multiple of ceiling_step_bytes()
  int rounds = 0;              ///< of the kernels that do not walk over memory
};
void launch_ceiling(ceilings::What what, const CeilingLaunch& launch, const Hardware& machine);

/// What launch_ceiling() does: bytes (read and written ones both count), or FLOPs with a
/// multiply-add counted twice.
double ceiling_work(ceilings::What what, const CeilingLaunch& launch, const Hardware& machine);

/// Threads of the largest launch, that over memory.
std::int64_t ceiling_threads(const Hardware& machine);
/// What all threads together read before they turn to the next.
std::int64_t ceiling_step_bytes(const Hardware& machine);

/// Not packed: a second of compiling when a machine is measured for the first time.
KernelUnit ceiling_unit(ceilings::What what);

}  // namespace tilewise::cuda
