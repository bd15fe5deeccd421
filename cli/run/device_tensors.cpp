#include "cli/run/device_tensors.h"

#include "problem/problem.h"

namespace tilewise::cli {

DeviceTensors::DeviceTensors(const RunTensors& host, DeviceMemory& memory)
    : memory_(memory), forward_(host.forward()), backward_(host.backward()), spec_(host.spec()) {
  if (memory.is_host()) return;
  const Problem problem = make_problem(host.forward(), host.spec(), Purpose::run);
  if (problem.packed) {  // offsets on a device cannot be read for the longest sequence
    const auto bound = [](std::int64_t longest) { return longest > 0 ? longest : kNoRows; };
    spec_.max_seqlen_q = bound(problem.seq_q);
    spec_.max_seqlen_k = bound(problem.seq_k);
  }
  for (Tensor* t :
       {&forward_.q, &forward_.k, &forward_.v, &backward_.q, &backward_.k, &backward_.v,
        &backward_.d_o, &backward_.d_lse, &spec_.bias, &spec_.mask, &spec_.sinks,
        &spec_.alibi_slopes, &spec_.key_lengths, &spec_.cu_seqlens_q, &spec_.cu_seqlens_k}) {
    move(*t, false);
  }
  for (Tensor* t : {&forward_.o, &forward_.lse, &backward_.o, &backward_.lse, &backward_.dq,
                    &backward_.dk, &backward_.dv, &backward_.dbias, &backward_.dsinks}) {
    move(*t, true);
  }
}

DeviceTensors::~DeviceTensors() {
  for (const auto& [host, copy] : copies_) memory_.release(copy.device, copy.bytes);
}

/// NOTE: every tensor of a run covers a whole array without gaps, so its bytes are its elements'.
void DeviceTensors::move(Tensor& tensor, bool result) {
  if (!tensor.defined()) return;
  tensor.device = memory_.device();
  const std::int64_t bytes = tensor.numel() * dtype_bytes(tensor.dtype);
  if (bytes == 0) return;
  Copy& copy = copies_[tensor.data];
  if (copy.device == nullptr) {
    copy = {memory_.allocate(bytes), bytes, result};
    memory_.copy_in(copy.device, tensor.data, bytes);
  }
  tensor.data = copy.device;
}

void DeviceTensors::download() {
  for (const auto& [host, copy] : copies_) {
    if (copy.result) memory_.copy_out(host, copy.device, copy.bytes);
  }
}

}  // namespace tilewise::cli
