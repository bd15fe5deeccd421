/// fwd_sm90 on the host: its row and what the pack holds of it. See fwd_sm90/README.md.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kFlashForwardSm90;

/// Why the row does not run a problem. Empty if it does.
std::string fwd_sm90_refusal(const Problem& problem, const Hardware& machine);

/// These units do not spill.
void add_fwd_sm90_units(std::vector<PackUnit>& units, int arch);

/// With sinks, a bool mask, dropout, a bias: compiled at first use.
void add_fwd_sm90_option_units(std::vector<PackUnit>& units, int arch);
/// The same for lists whose blocks are tiles of 64 x 64.
void add_fwd_sm90_listed_units(std::vector<PackUnit>& units, int arch);
/// The same for the tiles that a bool mask leaves.
void add_fwd_sm90_mask_units(std::vector<PackUnit>& units, int arch);

}  // namespace tilewise::cuda
