/// Indices of captured tensors that leave their axes, found before a launch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "expression/interpret.h"
#include "expression/program.h"

namespace tilewise::expression {

/// The pairs that a call may ask a program about.
struct Domain {
  std::int64_t batch = 1, heads = 1;
  std::int64_t queries = 1, keys = 1;  ///< longest lengths
  bool same_lengths = true;            ///< of every batch entry
  bool operator==(const Domain&) const = default;
};

/// A pair at which an index leaves its axis.
struct Outside {
  std::int32_t capture = -1;
  int axis = 0;
  std::int64_t index = 0;
  Point pair;
};

/// Ranges of all indices say at once where nothing can be outside. Where they do not, pairs all
/// over the domain are tried, its edges among them, so that what is reported is there. Indices that
/// depend on elements of captured tensors, on a lane, or on lengths that differ, are not looked at:
/// kernels cut them to the axis.
std::optional<Outside> find_outside(const Program& program, std::span<const Tensor> captures,
                                    const Domain& domain);

}  // namespace tilewise::expression
