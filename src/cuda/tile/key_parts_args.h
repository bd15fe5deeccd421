/// Parts of the keys of each batch entry, as host and device both know them.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::tile {

/// Part n of an entry's keys holds those from n * keys on, `keys` of them. Which parts an entry has
/// depends on its own length alone: neither on the others nor on the grid.
struct KeyParts {
  int keys = 0;                      ///< of a part
  const int* key_lengths = nullptr;  ///< (B), may be null
  long long key_lengths_b = 0;
  int seq_q = 0, seq_k = 0;
  Positions positions;
};

}  // namespace tilewise::tile
