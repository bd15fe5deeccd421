/// The parameters of decode_sm90: fill_items() of items.h, and the tensor maps of its boxes.
#pragma once

#include "cuda/driver/tensor_map.h"
#include "cuda/kernels/decode_sm90/choice.h"

namespace tilewise::cuda {

/// Everything of Args but the counter and what parts leave. `set_map` encodes a tensor map (tests
/// look at what it is made of instead).
void decode_fill(decode_sm90::Args& args, const Problem& problem, const DecodeChoice& choice,
                 void (*set_map)(tile::TensorMapBytes&, const TensorMapSpec&));

}  // namespace tilewise::cuda
