/// What the kernels for Hopper take beside their arguments, as host and device both know it: sinks,
/// the bits of a bool mask, dropout, a tree, a bias.
#pragma once

#include "cuda/tile/dropout_args.h"
#include "cuda/tile/expression_args.h"
#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/types.h"

namespace tilewise::tile {

/// A bool mask as bits. A line is a query, or backward a key. Four words hold what a block of keys,
/// or queries, shows of it: word t is that of the lanes t of a quad, bit i of the element 8 (i / 2)
/// + 2 t + i % 2 of the block. Elements past the last are visible. Strides count words; those of
/// axes along which the mask broadcasts are 0.
struct MaskBits {
  const unsigned* words = nullptr;
  long long stride_b = 0, stride_h = 0, stride_line = 0, stride_block = 0;
};

/// Backward: the bias as the copy engine reads it, {keys, heads, queries, batch}. 1 for each axis
/// along which it does not broadcast.
struct BiasTiles {
  TensorMapBytes map;
  int by_batch = 0, by_head = 0, by_query = 0;
};

/// Backward: float32 sums of the bias's gradient, in fragments of 16 queries x 8 keys: (B|1, Hq|1,
/// rows of fragments, fragments, 128). Strides count floats, 0 where the bias broadcasts.
struct BiasSums {
  float* sums = nullptr;
  long long stride_b = 0, stride_h = 0;
  int fragments = 0;  ///< of 16 queries
};

/// The words of a tree of speculative tokens: bit t of a query's row shows it the key of query t.
struct TreeBits {
  const unsigned* words = nullptr;
  long long stride_b = 0, stride_q = 0, stride_w = 1;
  int count = 0;  ///< words of a row
};

/// Which of them a kernel is compiled for.
struct OptionKinds {
  bool sinks = false, mask = false, dropout = false;
  bool tree = false;
  PairKind pairs;  ///< of a bias alone; backward `staged` says that it has a row for each query

  constexpr bool bias() const { return pairs.bias != BiasType::none; }
  constexpr bool any() const { return sinks || mask || dropout || tree || bias(); }
  bool operator==(const OptionKinds&) const = default;
};

struct Options {
  const float* sinks = nullptr;  ///< (Hq)
  long long sinks_h = 0;
  MaskBits mask;
  unsigned zero = 0;  ///< 0, which the device's compiler does not know: see settle_shown()
  PairTensors pairs;
  DropoutBits dropout;
  BiasTiles bias_tiles;
  TreeBits tree;
  BiasSums bias_sums;
};

/// The parameters of a kernel that takes any of them.
template <class Args>
struct Optioned {
  Args args;
  Captures captures;
  Options options;
};

}  // namespace tilewise::tile
