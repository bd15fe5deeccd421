/// Tiles of the backward on mma.sync, and which of them a problem gets. Used by bwd_sm80/row.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/host/common.h"
#include "cuda/kernels/bwd_sm80/args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda::bwd_tiles {

using bwd_sm80::Args;
using bwd_sm80::Config;
using bwd_sm80::Gradients;
using bwd_sm80::RaggedArgs;

/// A tile that was found good: see bwd_sm80/README.md.
struct Tile {
  bwd_sm80::Shape shape;
  int min_blocks;  ///< on a multiprocessor
  double tflops;   ///< reached on an H100 with every multiprocessor full
};
/// The two launches of the repeatable form.
struct TilePair {
  Tile keys, queries;
  bool apart = false;   ///< dK and dV in launches of their own
  bool sliced = false;  ///< above 256: each gradient in launches of its own, maybe two
};

/// Head dims of the config. 16-bit: both the larger one, which is what the tables' tiles divide
/// among warps; the columns that a tensor lacks are zeros. float32: each its own, as its planes
/// were packed. Likewise above 256, where no warps divide columns.
struct Dims {
  int qk, v;
};
Dims dims(const Problem& p);

/// Problems that take no time whatever they do: dS is kept in two planes, because with few terms
/// its rounding to the input's type would show in dQ and dK.
bool is_small(const Problem& p);

/// The tiles of a head dim, best first.
std::span<const Tile> one_pass_tiles(const Problem& p);
std::span<const TilePair> two_pass_tiles(const Problem& p);

/// What a launch computes: all in one pass, or dK and dV, or dQ.
enum class Launch { all, keys, queries };
/// `limit_kib`: of shared memory. Pairs that do not fit there are read from memory.
Config make_config(const Problem& p, const Tile& tile, Launch launch, bool split, int limit_kib);
int shared_bytes(const Config& c);
int query_shared_bytes(const Config& c);

/// The launches of a pair's first member, of its second: of which gradients, which columns.
std::vector<Config> key_launches(const Problem& p, const TilePair& pair, const Config& config);
std::vector<Config> query_launches(const Problem& p, const TilePair& pair, const Config& config);
/// The arguments of one of them: gradients begin at its column.
Args from_column(Args args, const Config& config);

/// The arguments of packed sequences.
RaggedArgs ragged_args(const Problem& p, const Args& args);

KernelUnit key_unit(const Config& c, int min_blocks);
KernelUnit query_unit(const Config& c, int min_blocks);
KernelUnit refine_unit(const Config& c, int min_blocks);

/// True when the gradient of a bias or of sinks is asked for: sums of P (dP - delta) over rows and
/// keys, in which the two terms nearly cancel. And with Precision::refined, for sums times K.
bool sums_gradients(const Problem& p);
/// float32: lse2 is refined where it is too coarse. 16-bit, very small problems, small ones whose
/// captured tensors have gradients (of a gate of blocks the sum over rows that see one block alone
/// is 0), and one plane, those that sums_gradients() names: delta is taken from P, not from O,
/// which has other rounding. Under a bias, rows whose lse2 is so large that log l is lost.
bool refines(const Problem& p);
/// Whether the problem itself is one of them, whatever its gradients are summed over.
bool is_tiny(const Problem& p);
/// False where refine is there for such rows alone.
bool refines_all(const Problem& p);

/// Rows of a head in what bwd_delta writes and in the sums of dQ.
std::int64_t rows_q(const Problem& p);
/// Rows of a head in the sums of dK and dV.
std::int64_t rows_k(const Problem& p, int block_n);
/// Rows of one of `splits` parts, a multiple of `block`.
std::int64_t per_split(std::int64_t rows, int block, int splits);

/// Matrix products of a pass in one launch; in two (dK and dV, dQ).
inline constexpr double kOnePassProducts = 5.0;
double two_pass_products(const Problem& p, const TilePair& pair);

/// Matrix products of a launch, and of all launches of its pass.
struct Products {
  double launch, pass;
};
/// Milliseconds of one launch over `blocks` blocks a head.
double predict(const Problem& p, const Tile& tile, double heads, double blocks, int block_rows,
               double others, int splits, Products products, const Hardware& machine);

/// The best tile and number of parts of the one-pass form; no tile when none fits.
struct OnePass {
  const Tile* tile = nullptr;
  int splits = 1;
  double ms = 0.0;
};

OnePass choose_one_pass(const Problem& p, const Hardware& machine);

/// The first pair of tiles that fits, and in how many parts queries (first launch) and keys
/// (second) are taken; no pair when none fits.
struct TwoPass {
  const TilePair* pair = nullptr;
  int splits = 1;
  double ms = 0.0;
};
TwoPass choose_two_pass(const Problem& p, const Hardware& machine);

/// Sums of the parts of a two-pass form, in fragment order.
struct Parts {
  int keys = 1, queries = 1;                       ///< of the launch over keys, over queries
  std::int64_t queries_per_split, keys_per_split;  ///< multiples of the steps of the launches
  std::int64_t rows_k, rows_dq;                    ///< of a head in the sums
};
Parts parts_of(const Problem& p, const TilePair& pair, int splits);

}  // namespace tilewise::cuda::bwd_tiles
