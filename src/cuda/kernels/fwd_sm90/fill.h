/// A problem's tensors and numbers as fwd_sm90 takes them.
#pragma once

#include <string>

#include "cuda/driver/tensor_map.h"
#include "cuda/kernels/fwd_sm90/args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// The card or the type that no kernel for Hopper takes; empty when there is none.
std::string sm90_card_refusal(const Problem& problem, const Hardware& machine);
/// The same, and the options that the kernels of long rows do not take.
std::string sm90_refusal(const Problem& problem, const Hardware& machine);

/// Why the copy engine cannot read or write a tensor of the problem; empty when it can all.
std::string sm90_maps_refusal(const Problem& problem);

/// cu_seqlens as the kernels read them.
fwd_sm90::Offsets sm90_offsets(const Tensor& cu_seqlens);

/// Lengths that the device looks up: of keys, of packed sequences. `Lengths` has the fields' names.
template <class Lengths>
void sm90_fill_lengths(Lengths& args, const Problem& p) {
  if (p.key_lengths.defined()) {
    args.key_lengths = static_cast<const int*>(p.key_lengths.data);
    args.key_lengths_b = p.key_lengths.strides[0];
    args.k_rows = static_cast<int>(p.seq_k);
  }
  if (p.packed) {
    args.cu_q = sm90_offsets(p.cu_seqlens_q);
    args.sequences = static_cast<int>(p.batch);
    args.q_rows = static_cast<int>(p.total_q);
  }
  if (p.packed_keys()) {
    args.cu_k = sm90_offsets(p.cu_seqlens_k);
    args.k_rows = static_cast<int>(p.total_k);
  }
}

/// Everything of Args but the order of tiles, their counter, the parts of split keys and the lists.
/// `shift`: sm90_pack_shift(). `set_map` encodes a tensor map (tests look at what it is made of
/// instead).
void sm90_fill(fwd_sm90::PagedArgs& args, const Problem& problem, const fwd_sm90::Config& config,
               int shift, void (*set_map)(tile::TensorMapBytes&, const TensorMapSpec&));

}  // namespace tilewise::cuda
