/// decode_sm90 on the host: config and parts of the keys for a problem, and what they would take.
/// Pure functions; the numbers are measured (decode_sm90/README.md).
#pragma once

#include <string>

#include "cuda/jit/unit.h"
#include "cuda/kernels/decode_sm90/args.h"
#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise::cuda {

/// What a launch goes by.
struct DecodeChoice {
  decode_sm90::Config config;
  int row_tiles = 1;
  int keys = 0;        ///< of a part
  int most_parts = 1;  ///< of an entry
  double ms = 0.0;     ///< predicted
};

/// Why the kernel cannot run a problem; empty when it can.
std::string decode_refusal(const Problem& problem, const Hardware& machine);

/// The parts with the least predicted time. Precondition: decode_refusal() is empty.
DecodeChoice decode_choose(const Problem& problem, const Hardware& machine);

/// The same with `keys` (a multiple of decode_sm90::kBlockN) in a part.
DecodeChoice decode_with_parts(const Problem& problem, std::int64_t keys, const Hardware& machine);

tile::KeyParts decode_key_parts(const Problem& problem, int keys);

KernelUnit decode_unit(const decode_sm90::Config& config);

}  // namespace tilewise::cuda
