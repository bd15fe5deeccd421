/// select on the host: blocks of keys that pooled scores choose. See rows/select.md.
#pragma once

#include "cuda/jit/kernel.h"
#include "cuda/kernels/rows/select_args.h"
#include "selection/shape.h"

namespace tilewise::cuda {

/// The kernels of a selection, in their order, with their parameters and grids.
struct SelectSteps {
  select::Config config;
  select::PoolArgs of_q, of_k;
  select::Args choice;
  select::ScorerArgs scorer;  ///< where the scorer is not pooled, which has no pools
  select::ListArgs list;      ///< for a list alone
  std::int64_t rows = 0, key_blocks = 0, list_blocks = 0;
  std::int64_t scorer_blocks = 0;
  int shared_bytes = 0;         ///< of the choice
  int scorer_shared_bytes = 0;  ///< of the scorer and of pick_lines
};
/// What an entry is compiled from; file: rows/select, or rows/select_tokens of the scorers there.
KernelUnit select_unit(const select::Config& config, const char* entry, const char* args,
                       int threads, int shared_bytes, const char* file);
/// Bytes of workspace, and the steps in it.
std::int64_t select_workspace(const selection::Shape& shape, const BlockSelection& selection,
                              const selection::Target& to);
SelectSteps select_steps(const selection::Shape& shape, const BlockSelection& selection,
                         const selection::Target& to, void* workspace);

/// Starts the kernels on the launch's stream. Throws Unsupported, OutOfMemory, DeviceError.
void select_on_gpu(const selection::Shape& shape, const BlockSelection& selection,
                   const selection::Target& to, const Launch& launch);

}  // namespace tilewise::cuda
