/// decode_sm90 on the host: config and parts of the keys for a problem, and what they would take.
/// Pure functions; the numbers are measured (decode_sm90/README.md).
#pragma once

#include <string>

#include "cuda/jit/unit.h"
#include "cuda/kernels/decode_sm90/items.h"
#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise::cuda {

using DecodeChoice = ItemChoice<decode_sm90::Config>;

/// Why the kernel cannot run a problem; empty when it can.
std::string decode_refusal(const Problem& problem, const Hardware& machine);

/// The parts with the least predicted time. Precondition: decode_refusal() is empty.
DecodeChoice decode_choose(const Problem& problem, const Hardware& machine);

/// The same with `keys` (a multiple of decode_sm90::kBlockN) in a part.
DecodeChoice decode_with_parts(const Problem& problem, std::int64_t keys, const Hardware& machine);

/// What it takes where lengths are on the device, to compare with fwd_sm90_times::served_ms().
double decode_served_ms(const Problem& problem, const DecodeChoice& choice,
                        const Hardware& machine);

KernelUnit decode_unit(const decode_sm90::Config& config);

}  // namespace tilewise::cuda
