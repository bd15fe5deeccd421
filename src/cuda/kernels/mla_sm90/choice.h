/// mla_sm90 on the host: what it refuses, config and parts of the keys for a problem, parameters.
/// The numbers are measured (mla_sm90/README.md).
#pragma once

#include <string>

#include "cuda/driver/tensor_map.h"
#include "cuda/jit/unit.h"
#include "cuda/kernels/decode_sm90/items.h"
#include "cuda/kernels/mla_sm90/args.h"
#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise::cuda {

using MlaChoice = ItemChoice<mla_sm90::Config>;

/// Why the kernel cannot run a problem; empty when it can.
std::string mla_refusal(const Problem& problem, const Hardware& machine);

/// The parts with the least predicted time. Precondition: mla_refusal() is empty.
MlaChoice mla_choose(const Problem& problem, const Hardware& machine);

/// The same with `keys` (a multiple of mla_sm90::kBlockN) in a part.
MlaChoice mla_with_parts(const Problem& problem, std::int64_t keys, const Hardware& machine);

/// Everything of Args but the counter and what parts leave. `set_map` encodes a tensor map (tests
/// look at what it is made of instead).
void mla_fill(mla_sm90::Args& args, const Problem& problem, const MlaChoice& choice,
              void (*set_map)(tile::TensorMapBytes&, const TensorMapSpec&));

KernelUnit mla_unit(const mla_sm90::Config& config);

}  // namespace tilewise::cuda
