/// combine on the host: merges the partial results of split keys. See rows/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/tile/key_parts_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// What the parts of split keys leave in the workspace.
struct PartialResults {
  float* o = nullptr;           ///< (parts, B, Hq, Sq, padded Dv), normalised
  float* statistics = nullptr;  ///< m, then l: (2, parts, B, Hq, Sq)
};
void add_partial_results(std::vector<MemoryPart>& memory, const Problem& problem, int parts);
PartialResults take_partial_results(WorkspaceCutter& workspace, const Problem& problem, int parts);
double partial_bytes(const Problem& problem, int parts);

/// Merges the results of `parts` parts into the problem's O and LSE. `keys`: every batch entry has
/// the parts that it says, at most `parts`; what has one is done.
void combine_parts(const Problem& problem, const PartialResults& partial, int parts, void* stream,
                   const tile::KeyParts* keys = nullptr);

/// Groups of lanes that share a row's parts: several where rows would leave the card idle.
int combine_shares(const Problem& problem, int parts);

void add_combine_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
