/// What attention takes in the framework that seeds 000 and 001 measured: the accounting that
/// reproduces their memory columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/plan.h"

namespace tilewise::cli {

/// The part of the framework's memory that depends on the card: a workspace for each cuBLAS handle,
/// one in the forward's thread and one in autograd's.
struct BlasWorkspaces {
  int count = 2;
  std::int64_t bytes_each = 8'519'680;  ///< 8.125 MiB below Hopper; on Hopper 32 MiB
};

/// Tensors alive between forward and backward of single-head float32 attention: S and P for the
/// backward, Q, K, V, O and one more of (B, S, d), the statistics of each row, the workspaces.
std::vector<MemoryItem> seed_memory(std::int64_t batch, std::int64_t seq, std::int64_t dim,
                                    int row_statistics, const BlasWorkspaces& workspaces);

std::int64_t total_bytes(const std::vector<MemoryItem>& items);

/// For --preset seed-eager and seed-fused: the bytes of every tensor beside the published column,
/// then the accounting of the smallest size that ran out of memory. `preset` must be one of them.
std::string seed_memory_markdown(const std::string& preset, const BlasWorkspaces& workspaces);

}  // namespace tilewise::cli
