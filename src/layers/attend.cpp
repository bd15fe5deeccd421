#include "layers/attend.h"

#include <array>

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
  std::array all = {tensors.q, tensors.k, tensors.v, tensors.o};
  run.ops.narrow(all, 3);
  ForwardTensors narrow = tensors;
  narrow.q = all[0];
  narrow.k = all[1];
  narrow.v = all[2];
  narrow.o = all[3];
  execute(narrow, spec, run.launch, kernels_of<T>());
  run.ops.widen(std::span(&narrow.o, 1), std::span(&tensors.o, 1));
}

template <class T>
void attend_backward(const Run<T>& run, const BackwardTensors& tensors, const AttentionSpec& spec) {
  std::array all = {tensors.q,   tensors.k,  tensors.v,  tensors.o,
                    tensors.d_o, tensors.dq, tensors.dk, tensors.dv};
  run.ops.narrow(all, 5);
  BackwardTensors narrow = tensors;
  narrow.q = all[0];
  narrow.k = all[1];
  narrow.v = all[2];
  narrow.o = all[3];
  narrow.d_o = all[4];
  narrow.dq = all[5];
  narrow.dk = all[6];
  narrow.dv = all[7];
  execute(narrow, spec, run.launch, kernels_of<T>());
  const std::array wide = {tensors.dq, tensors.dk, tensors.dv};
  run.ops.widen(std::span(all).subspan(5), wide);
}

template void attend(const Run<float>&, const ForwardTensors&, const AttentionSpec&);
template void attend(const Run<double>&, const ForwardTensors&, const AttentionSpec&);
template void attend_backward(const Run<float>&, const BackwardTensors&, const AttentionSpec&);
template void attend_backward(const Run<double>&, const BackwardTensors&, const AttentionSpec&);

}  // namespace tilewise::asam
