/// Planning both passes of a problem together: the forward keeps its state for the backward.
#pragma once

#include <string>

#include "tilewise/attention.h"

namespace tilewise::cli {

/// A forward's plan, or one line for each kernel on why there is none; and so for a backward.
struct PassPlans {
  Plan forward, backward;
  std::string forward_refusal, backward_refusal;

  /// Throws Unsupported for what was refused.
  void require_forward() const;
  void require_backward() const;
};

/// Plans the forward and, with `backward`, the backward that uses what the forward saved. The
/// tensors' own saved state is not looked at.
PassPlans plan_passes(ForwardTensors forward, const BackwardTensors* backward,
                      const AttentionSpec& spec, const Choice& forward_choice,
                      const Choice& backward_choice, const Hardware& machine);

}  // namespace tilewise::cli
