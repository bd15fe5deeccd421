/// bwd_sm90 on the host: its row and what the pack holds of it. See bwd_sm90/README.md.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kFlashBackwardSm90;
/// The same where half of a tile is a block of a list: each consumer passes over what does not list
/// its keys.
extern const KernelRow kFlashBackwardPassingSm90;

/// Why the row does not run a problem; empty when it does.
std::string bwd_sm90_refusal(const Problem& problem, const Hardware& machine);
/// Why the copy engine cannot read or write a tensor of the problem; empty when it can all.
std::string bwd_sm90_maps_refusal(const Problem& problem);

void add_bwd_sm90_units(std::vector<PackUnit>& units, int arch);
/// Head dims above 128, with bwd_dq_sm90's: left to their first use, watched by a test.
void add_bwd_sm90_large_dim_units(std::vector<PackUnit>& units, int arch);
/// With grouped heads under a causal mask, whose tiles are cut.
void add_bwd_sm90_grouped_units(std::vector<PackUnit>& units, int arch);
/// With a bool mask, with dropout: compiled at first use.
void add_bwd_sm90_option_units(std::vector<PackUnit>& units, int arch);
/// The same for the tiles that a bool mask leaves.
void add_bwd_sm90_mask_units(std::vector<PackUnit>& units, int arch);
/// Lists whose blocks are half of a tile: the same.
void add_bwd_sm90_passing_units(std::vector<PackUnit>& units, int arch);

}  // namespace tilewise::cuda
