/// A problem's tensors and numbers as fwd_sm90 takes them.
#pragma once

#include <string>

#include "cuda/driver/tensor_map.h"
#include "cuda/kernels/fwd_sm90/args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Why the copy engine cannot read or write a tensor of the problem. Empty if it can.
std::string sm90_maps_refusal(const Problem& problem);

/// Fills Args, except the order of tiles, their counter, the parts of split keys and the lists.
/// `shift` is fwd_sm90_pack_shift(). `set_map` encodes a tensor map; tests pass a function that
/// reads the map instead.
void fwd_sm90_fill(fwd_sm90::PagedArgs& args, const Problem& problem,
                   const fwd_sm90::Config& config, int shift,
                   void (*set_map)(tile::TensorMapBytes&, const TensorMapSpec&));

}  // namespace tilewise::cuda
