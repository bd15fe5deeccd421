#include "cuda/host/cut_blocks.h"

#include <algorithm>

#include "problem/blocks.h"

namespace tilewise::cuda::host {

bool counts_cut_blocks(const Problem& p, std::int64_t block_m, std::int64_t block_n) {
  constexpr std::int64_t kFew = 16;
  const bool known = !p.packed && !p.key_lengths.defined() && !p.block_list.defined();
  const bool full = p.seq_q % block_m == 0 && p.seq_k % block_n == 0;
  return known && !full && p.has_positional_mask() && p.seq_q <= kFew * block_m;
}

SeenBlocks seen_blocks(const Problem& p, std::int64_t block_m, std::int64_t block_n) {
  const Sequence s{.q_begin = 0, .q_length = p.seq_q, .k_begin = 0, .k_length = p.seq_k};
  SeenBlocks seen;
  for (std::int64_t i = 0; i < p.seq_q; i += block_m) {
    const KeyRange first = p.visible_keys(s, i);
    const KeyRange last = p.visible_keys(s, std::min(i + block_m, p.seq_q) - 1);
    if (last.end <= first.begin) continue;
    const std::int64_t blocks = ceil_div(last.end, block_n) - first.begin / block_n;
    seen.sum += blocks;
    seen.most = std::max(seen.most, blocks);
  }
  return seen;
}

}  // namespace tilewise::cuda::host
