/// mask_bits: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::mask_bits {

/// How the mask is read: 16 elements of a line at once, 4 lines at once, or one element.
enum class Way : int { along, across, single };

struct Config {
  Way way = Way::single;
  int block = 128;  ///< elements of a block: a multiple of 16, at most 128

  bool operator==(const Config&) const = default;
};

/// Lines of elements. An axis along which the mask broadcasts has the size 1.
struct Args {
  const unsigned char* mask = nullptr;  ///< 0 = hidden
  long long stride_b = 0, stride_h = 0, stride_line = 0, stride_element = 0;
  int batch = 1, heads = 1, lines = 1, elements = 1;
  int blocks = 1;
  unsigned* words = nullptr;  ///< (batch, heads, lines, blocks, 4)
};

inline constexpr int kThreads = 256;
/// Threads for a line's block, or for a block of four lines.
constexpr int threads(Way way) { return way == Way::along ? 8 : way == Way::across ? 1 : 4; }
constexpr int lines(Way way) { return way == Way::across ? 4 : 1; }

}  // namespace tilewise::mask_bits
