/// For clang-tidy: kernels that no program of the emulator has. Compiled as those programs are.
#include "cuda/kernels/bwd_sm80/capture_store.cuh"
#include "cuda/kernels/ceilings/kernel.cuh"
#include "cuda/kernels/rows/expression_values.cuh"
#include "cuda/kernels/rows/packed_delta.cuh"
