/// Tiles of fwd_sm80, and from a tile to the unit that NVRTC compiles. Used by fwd_sm80/row.cpp.
#pragma once

#include <span>

#include "cuda/jit/unit.h"
#include "cuda/kernels/fwd_sm80/args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda::fwd_tiles {

using fwd_sm80::Config;
using fwd_sm80::Keys;

/// A tile that was found good: see fwd_sm80/README.md.
struct Tile {
  fwd_sm80::Shape shape;
  int min_blocks;  ///< on a multiprocessor
  double tflops;   ///< reached on an H100 by long tiles with every multiprocessor full
  /// With several key_warps, for few rows or grids whose tiles run all at once: up to so many keys.
  int most_keys = 0;
};

/// The tiles of a head dim, best first. `compares`: those of seed 004.
std::span<const Tile> tiles(const Problem& p, bool compares = false);

/// Columns of Q and of V whose products a launch takes. Each slice of V works out the scores anew.
double product_columns(const Problem& p);

int shared_bytes(const Config& config);
/// `limit_kib`: of shared memory. Pairs that do not fit there are read from memory.
Config make_config(const Problem& p, const Tile& tile, bool split, int limit_kib);
KernelUnit unit(const Config& config, int min_blocks);

/// The arguments of a slice of V and O. Each slice writes LSE, always the same.
fwd_sm80::Args slice_of(fwd_sm80::Args args, int slice, const Config& config);

}  // namespace tilewise::cuda::fwd_tiles
