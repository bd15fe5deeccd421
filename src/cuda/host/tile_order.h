/// Order of a persistent kernel's tiles: sections of heads whose keys and values stay in the L2
/// cache, without a small last section. Pure functions.
#pragma once

#include <cstdint>

#include "cuda/tile/order_args.h"

namespace tilewise::cuda {

/// The inputs that decide the order.
struct OrderProblem {
  std::int64_t blocks = 1;         ///< row blocks of a head
  std::int64_t heads = 1;          ///< batch * query heads * splits
  std::int64_t heads_per_kv = 1;   ///< neighbours among them that read the same keys and values
  std::int64_t kv_bytes = 1;       ///< of one key head, K and V
  std::int64_t section_bytes = 0;  ///< of keys and values that a section may read; 0: one key head
  /// The same for the last section, which must keep every multiprocessor busy.
  std::int64_t last_bytes = 0;
  std::int64_t last_tiles = 0;  ///< least number of tiles of the last section
};

/// Sections of equal size. The last one also takes the heads that do not fill a section.
tile::SectionOrder section_order(const OrderProblem& problem);

}  // namespace tilewise::cuda
