/// mask_bits on the host: a problem's bool mask as bits. See rows/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/mask_bits_args.h"
#include "cuda/tile/options_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// The bits of a problem's mask: nothing where it has none.
class MaskBitsMaker {
 public:
  /// Lines are queries and blocks of `block` keys, or with `by_keys` keys and blocks of queries.
  MaskBitsMaker(const Problem& problem, int block, bool by_keys);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory().
  void take(WorkspaceCutter& workspace);
  const mask_bits::Config& config() const { return config_; }
  const mask_bits::Args& args() const { return args_; }
  std::int64_t blocks() const;  ///< of the grid
  /// What a kernel reads; after take().
  tile::MaskBits bits() const;
  /// Starts the kernel.
  void make(void* stream) const;
  /// Bytes read and written.
  double bytes() const;

 private:
  mask_bits::Config config_;
  mask_bits::Args args_;
  bool defined_ = false;
  int device_ = 0;

  std::int64_t words() const;
};

/// What making them takes.
double mask_bits_ms(const MaskBitsMaker& maker, double bandwidth_gbps);

}  // namespace tilewise::cuda
