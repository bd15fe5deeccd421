#include "layers/attend.h"

#include "api/execute.h"

namespace tilewise::asam {
namespace {

/// float64 has the oracle alone.
template <class T>
tilewise::Choice kernels_of() {
  return {.implementation = std::is_same_v<T, double> ? "reference" : "", .kernel = ""};
}

}  // namespace

template <class T>
void attend(const Run<T>& run, const ForwardTensors& tensors, const AttentionSpec& spec) {
  execute(tensors, spec, run.launch, kernels_of<T>());
}

template <class T>
void attend_backward(const Run<T>& run, const BackwardTensors& tensors, const AttentionSpec& spec) {
  execute(tensors, spec, run.launch, kernels_of<T>());
}

template void attend(const Run<float>&, const ForwardTensors&, const AttentionSpec&);
template void attend(const Run<double>&, const ForwardTensors&, const AttentionSpec&);
template void attend_backward(const Run<float>&, const BackwardTensors&, const AttentionSpec&);
template void attend_backward(const Run<double>&, const BackwardTensors&, const AttentionSpec&);

}  // namespace tilewise::asam
