/// Words as instructions take them.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::tile {

using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

struct Bytes16 {
  u32 x, y, z, w;
};
struct Floats2 {
  float x, y;
};

}  // namespace tilewise::tile
