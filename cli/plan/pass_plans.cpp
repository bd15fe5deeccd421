#include "cli/plan/pass_plans.h"

namespace tilewise::cli {
namespace {

void require(const std::string& refusal) {
  if (!refusal.empty()) throw Unsupported(refusal);
}

}  // namespace

void PassPlans::require_forward() const { require(forward_refusal); }
void PassPlans::require_backward() const { require(backward_refusal); }

PassPlans plan_passes(ForwardTensors forward, const BackwardTensors* backward,
                      const AttentionSpec& spec, const Choice& forward_choice,
                      const Choice& backward_choice, const Hardware& machine) {
  PassPlans plans;
  forward.saved = {};
  try {
    plans.forward = plan(forward, spec, forward_choice, &machine);
    if (backward != nullptr && plans.forward.saved_bytes > 0) {
      forward.saved.bytes = plans.forward.saved_bytes;  // known now: it is not dropped
      plans.forward = plan(forward, spec, forward_choice, &machine);
    }
  } catch (const Unsupported& error) {
    plans.forward_refusal = error.what();
  }
  if (backward == nullptr) return plans;
  try {
    BackwardTensors with_state = *backward;
    with_state.saved = forward.saved;
    plans.backward = plan(with_state, spec, backward_choice, &machine);
  } catch (const Unsupported& error) {
    plans.backward_refusal = error.what();
  }
  return plans;
}

}  // namespace tilewise::cli
