/// For clang-tidy: the wrappers of instructions, in whose place the emulator has its own. Compiled
/// for a GPU, whose registers inline PTX names, as C++ without CUDA's headers.
#define __forceinline__ inline

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
unsigned long __cvta_generic_to_shared(const void* p);
float __int_as_float(int bits);
// NOLINTEND(readability-identifier-naming)

#include "cuda/tile/hopper/ptx/mbarrier.cuh"
#include "cuda/tile/hopper/ptx/signal.cuh"
#include "cuda/tile/hopper/ptx/tma.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/hopper/ptx/wgmma.cuh"
#include "cuda/tile/ptx/copy.cuh"
#include "cuda/tile/ptx/math.cuh"
#include "cuda/tile/ptx/mma.cuh"
