/// pack_rows on the host: operands of the sm_80-class kernels, in the form that these read. See
/// rows/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/driver/launch.h"
#include "cuda/host/common.h"
#include "cuda/host/fill.h"
#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/pack_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// The packing of float32 operands.
void add_pack_rows_units(std::vector<PackUnit>& units);

/// Q, K, V and in backward dO, as the kernels read them: the caller's rows, or packed ones.
class Operands {
 public:
  struct Operand {
    tile::View view;
    const float* scale = nullptr;
    int cols = 0;    ///< that a row holds
    int blocks = 0;  ///< of scale factors, of one head
  };

  explicit Operands(const Problem& problem);
  /// Workspace of the packed operands.
  void add_memory(std::vector<MemoryPart>& items) const;
  double bytes() const;
  bool packs() const { return !sources_.empty(); }
  /// Takes the workspace and starts the packing, where something is packed.
  void prepare(WorkspaceCutter& workspace, void* stream);
  const Operand& operator[](std::size_t index) const { return operands_[index]; }

 private:
  struct Source {
    std::size_t index;
    const Tensor* tensor;
    std::array<std::int64_t, 4> packed;  ///< shape
    std::int64_t blocks;
    tile::Sequences sequences = {};
    bool paged = false;
  };
  tile::Form form_;
  int device_ = 0;
  std::array<Operand, 4> operands_;
  std::vector<Source> sources_;
  pack_rows::RaggedArgs ragged_;  ///< without its sources
};

/// The arguments that every kernel of the family has: operands, sizes, key lengths, score steps,
/// positions.
template <class Args>
void fill_shared(Args& args, const Problem& p, const Operands& operands) {
  args.q = operands[0].view;
  args.k = operands[1].view;
  args.v = operands[2].view;
  args.q_scale = operands[0].scale;
  args.k_scale = operands[1].scale;
  args.v_scale = operands[2].scale;
  args.q_scale_blocks = operands[0].blocks;
  args.k_scale_blocks = operands[1].blocks;
  args.cols_q = operands[0].cols;
  args.cols_k = operands[1].cols;
  args.cols_v = operands[2].cols;
  args.heads_q = static_cast<int>(p.heads_q);
  args.group = static_cast<int>(p.group());
  args.seq_q = static_cast<int>(p.seq_q);
  args.seq_k = static_cast<int>(p.seq_k);
  args.head_dim_v = static_cast<int>(p.head_dim_v);
  host::fill_key_lengths(args, p);
  args.scale = p.scale;
  args.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2e);
  args.softcap = static_cast<float>(p.softcap);
  host::fill_alibi(args, p);
  host::fill_sinks(args, p);
  args.pairs = host::pair_tensors(p);
  args.positions = host::positions(p);
  if (drops(p)) args.dropout = host::dropout_bits(p);
}

}  // namespace tilewise::cuda
