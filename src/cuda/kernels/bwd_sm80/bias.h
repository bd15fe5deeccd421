/// bwd_dbias_sm80 on the host. See bwd_sm80/bias.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/bwd_sm80/bias_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

KernelUnit bias_unit(const bwd_sm80::Config& config, int min_blocks);

/// How the work is divided. A problem's parts are the same on every machine: so are its bits.
struct BiasParts {
  bwd_dbias_sm80::Axes axes;
  std::int64_t blocks = 0;  ///< of block_m x block_n elements of the bias
  int count = 1;            ///< parts that the sums of a block are taken in
  int padded_rows = 0, padded_keys = 0;

  BiasParts(const Problem& problem, int block_m, int block_n);
  std::int64_t elems() const;  ///< of one part
  void add_memory(std::vector<MemoryPart>& items) const;
};

/// Writes the gradient of the bias where the problem asks for it. `pass` and `config` are those of
/// bwd_dq_sm80 on the same problem; the workspace is what BiasParts adds.
void bias_gradient(const Problem& problem, const bwd_sm80::Args& pass, bwd_sm80::Config config,
                   int min_blocks, WorkspaceCutter& workspace, void* stream);

}  // namespace tilewise::cuda
