/// Host side of what the CUDA rows share: what they refuse, the form of operands, the order of
/// tiles, how kernels are found by their config, the time model of the rows on mma.sync.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver/launch.h"
#include "cuda/host/constants.h"
#include "cuda/host/refusal.h"
#include "cuda/host/sequences.h"
#include "cuda/jit/kernel.h"
#include "cuda/tile/dropout_args.h"
#include "cuda/tile/form_args.h"
#include "cuda/tile/types.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda::host {

/// Why no kernel of the family supports the problem, for the user. Empty if one may.
std::string refusal(const Problem& problem, const Hardware& machine, const Takes& takes = {});
/// The options that rows of this family support in addition.
inline constexpr Takes kTakes = {.packed = true,
                                 .paged = true,
                                 .mask = true,
                                 .bias = true,
                                 .sinks = true,
                                 .dropout = true,
                                 .lists = true,
                                 .gradients = true,
                                 .expressions = true,
                                 .most_head_dim = 512};

/// Head dim as the kernels are built for it: 16, 32, 64, 96, 128, 192, 256, 384, 512.
int padded(std::int64_t dim);
/// Launches that share the columns of a sum of padded(dim) columns: registers hold 256 of a row.
int slices(std::int64_t dim);

/// How values of a problem become 16-bit operands.
tile::Form form(const Problem& problem);
/// ".form = {.element = Element::bf16, .planes = 1, .scaled = false}": the first field of a Config.
std::string form_text(const tile::Form& form);

/// True when rows can be read and written 16 bytes at a time.
bool has_vectors(const Tensor& tensor);

tile::Positions positions(const Problem& problem);
tile::PairTensors pair_tensors(const Problem& problem);
/// Bytes of bias, bool mask and the bias's gradient in memory. An axis along which one broadcasts
/// counts once.
double pair_bytes(const Problem& problem);
tile::View4 view4(const Tensor& tensor);
tile::DropoutBits dropout_bits(const Problem& problem);
/// True when softcap, ALiBi or the scale need the general score path.
bool is_modified(const Problem& problem);
/// How scores read bias and bool mask: staged if their strides allow it.
tile::PairKind pair_kind(const Problem& problem);
/// ", .pairs = ..." of a Config, nothing without pairs.
std::string pair_text(const tile::PairKind& kind);
/// KiB of shared memory that a block can have.
int shared_kib(int arch);

/// Heads that come together in the order of tiles: `head_bytes` of what one head's tiles read again
/// and again.
unsigned section(bool positional, std::int64_t heads, std::int64_t blocks, double head_bytes,
                 int multiprocessors);

/// Tensor-core products for each of the problem's: two planes of a float32 operand take three.
double products(const Problem& problem);

/// Milliseconds that bias, bool mask and dropout add where every visible pair is met `passes`
/// times.
double options_ms(const Problem& problem, int passes, const Hardware& machine);

/// A grid of tiles on a machine, for the time model.
struct Load {
  double flops = 0.0;    ///< of all tiles
  double largest = 0.0;  ///< of one tile
  double tiles = 0.0;
  double tflops = 1.0;    ///< on an H100 with every multiprocessor full
  double products = 1.0;  ///< tensor-core products for one that is counted: float32 takes three
  int blocks_per_sm = 1;
  double tile_ms = 0.0;  ///< of a tile beside its flops: its first loads, its results
};
/// Milliseconds, by waves of tiles; see fwd_sm80/README.md.
double time_ms(const Load& load, const Hardware& machine);
/// TFLOP/s of a load with every multiprocessor of a machine full: its products at the machine's
/// rate of mma.sync, the rest of its time (exp, loads, barriers) by the machine's clocks.
double full_tflops(const Load& load, const Hardware& machine);

/// Number of SMs assumed for the order of tiles. A query of the driver would cost more than a wrong
/// guess.
inline constexpr int kTypicalMultiprocessors = 132;

/// A grid whose kernel may start while the kernel before it on the stream ends: it waits by
/// wait_for_previous().
Grid following(std::int64_t blocks, int device);

/// True when a grid fills a machine so often that parts of its tiles would only cost memory.
bool fills(double tiles, int blocks_per_sm, const Hardware& machine);

/// Milliseconds that a small kernel adds to a pass.
inline constexpr double kKernelMs = 2.5e-3;

/// The kernel of a config, looked up by its value: no text is made after the first call of a
/// thread.
template <class Config, class MakeUnit>
Kernel load_config(const Config& config, int device, MakeUnit make_unit) {
  struct Entry {
    Config config;
    int device;
    Kernel kernel;
  };
  thread_local std::vector<Entry> entries;
  for (const Entry& entry : entries) {
    if (entry.device == device && entry.config == config) return entry.kernel;
  }
  entries.push_back({config, device, load(make_unit(config), device)});
  return entries.back().kernel;
}

}  // namespace tilewise::cuda::host
