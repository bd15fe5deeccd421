/// bwd_sm90's own workspace: counters of its queue, statistics of query rows, float32 sums.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/bwd_sm90/args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

class BwdSm90Workspace {
 public:
  BwdSm90Workspace(const Problem& problem, const bwd_sm90::Config& config);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory().
  void take(bwd_sm90::Args& args, WorkspaceCutter& workspace) const;
  /// Clears the counters, and the sums of tiles that are cut. The kernel clears those of dQ.
  void clear(const bwd_sm90::Args& args, void* stream) const;
  /// The counter of bwd_dq_sm90, after clear().
  unsigned* next_tile(const bwd_sm90::Args& args) const { return args.finished + key_heads_; }

  std::int64_t dq_floats() const;

 private:
  const bwd_sm90::Config& config_;
  int device_;
  std::int64_t entries_, heads_;  ///< of the batch as it is stored; of queries
  std::int64_t rows_;             ///< of a head's queries
  std::int64_t key_heads_;        ///< of all entries, once for each of their sharers and spans
  std::int64_t cut_tiles_;        ///< 0: none is cut
  std::int64_t turns_;            ///< of warps that add to a block's dQ in their order

  std::int64_t counters() const;
  std::int64_t key_floats() const;
};

}  // namespace tilewise::cuda
