/// combine on the host: merges the partial results of split keys. See rows/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/tile/key_parts_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// Merges `parts` normalised results o (parts, B, Hq, Sq, padded Dv) with their statistics m, then
/// l, (2, parts, B, Hq, Sq) into the problem's O and LSE. `keys`: every batch entry has the parts
/// that it says, at most `parts`; what has one is done.
void combine_parts(const Problem& problem, const float* o, const float* statistics, int parts,
                   void* stream, const tile::KeyParts* keys = nullptr);

/// Groups of lanes that share a row's parts: several where rows would leave the card idle.
int combine_shares(const Problem& problem, int parts);

void add_combine_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
