#include "problem/listed_blocks.h"

#include <algorithm>

#include "problem/blocks.h"

namespace tilewise {
namespace {

bool readable(const Tensor& t) {
  return !t.defined() || t.numel() == 0 || (t.device.type == DeviceType::cpu && t.data != nullptr);
}

/// Pairs of rows [i0, i1) and keys [j0, j1) that position and length leave visible.
double pairs_of(const Problem& p, const Sequence& s, std::int64_t i0, std::int64_t i1,
                std::int64_t j0, std::int64_t j1) {
  const KeyRange first = p.visible_keys(s, i0);
  const KeyRange last = p.visible_keys(s, i1 - 1);
  // Both ends move to the right with the row.
  const KeyRange all{std::max(j0, last.begin), std::min(j1, first.end)};
  if (all.begin == j0 && all.end == j1) {
    return static_cast<double>(i1 - i0) * static_cast<double>(j1 - j0);
  }
  if (last.end <= j0 || first.begin >= j1) return 0.0;
  double pairs = 0.0;
  for (std::int64_t i = i0; i < i1; ++i) {
    const KeyRange seen = p.visible_keys(s, i);
    const std::int64_t keys = std::min(j1, seen.end) - std::max(j0, seen.begin);
    pairs += static_cast<double>(std::max<std::int64_t>(0, keys));
  }
  return pairs;
}

double pairs_of_head(const Problem& p, std::int64_t b, std::int64_t h) {
  const BlockList& list = p.block_list;
  const Sequence s = p.sequence(b);
  double pairs = 0.0;
  for (std::int64_t block = 0; block < ceil_div(s.q_length, list.block_q); ++block) {
    const std::int64_t i0 = block * list.block_q;
    const std::int64_t i1 = i0 + std::min(list.block_q, s.q_length - i0);
    const ListedBlocks row(list, b, h, block);
    for (std::int64_t n = 0; n < row.count(); ++n) {
      const std::int64_t j0 = row.block(n) * list.block_k;
      if (j0 >= s.k_length) break;
      pairs += pairs_of(p, s, i0, i1, j0, j0 + std::min(list.block_k, s.k_length - j0));
    }
  }
  return pairs;
}

}  // namespace

double count_listed_pairs(const Problem& p) {
  const Tensor& offsets = p.block_list.row_offsets;
  for (const Tensor* t :
       {&offsets, &p.block_list.block_index, &p.key_lengths, &p.cu_seqlens_q, &p.cu_seqlens_k}) {
    if (!readable(*t)) return -1.0;
  }
  // Entries and heads that share a list and a length have as many.
  const bool alike = offsets.strides[0] == 0 && !p.packed && !p.key_lengths.defined();
  const std::int64_t batch = alike ? std::min<std::int64_t>(p.batch, 1) : p.batch;
  const std::int64_t heads =
      offsets.strides[1] == 0 ? std::min<std::int64_t>(p.heads_q, 1) : p.heads_q;
  double pairs = 0.0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) pairs += pairs_of_head(p, b, h);
  }
  if (alike) pairs *= static_cast<double>(p.batch);
  return offsets.strides[1] == 0 ? pairs * static_cast<double>(p.heads_q) : pairs;
}

}  // namespace tilewise
