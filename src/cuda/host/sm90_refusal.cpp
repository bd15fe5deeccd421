#include "cuda/host/sm90_refusal.h"

#include "cuda/host/common.h"

namespace tilewise::cuda {

std::string sm90_card_refusal(const Problem& p, const Hardware& machine) {
  if (machine.arch != 90) {
    return "it is for compute capability 9.0 (Hopper), the device has " +
           std::to_string(machine.arch / 10) + "." + std::to_string(machine.arch % 10);
  }
  if (p.dtype != DType::bfloat16 && p.dtype != DType::float16) {
    return std::string(dtype_name(p.dtype)) +
           " is not supported by this kernel (bfloat16, float16)";
  }
  return {};
}

std::string sm90_refusal(const Problem& p, const Hardware& machine) {
  std::string reason = sm90_card_refusal(p, machine);
  if (!reason.empty()) return reason;
  return host::refusal(p, machine,
                       {.packed = true,
                        .paged = true,
                        .mask = true,
                        .bias = true,
                        .sinks = true,
                        .dropout = true,
                        .lists = true,
                        .gradients = true,
                        .expressions = true});
}

}  // namespace tilewise::cuda
