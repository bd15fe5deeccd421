#include "cuda/host/refusal.h"

#include "cuda/host/expressions.h"
#include "problem/philox.h"

namespace tilewise::cuda {

bool drops(const Problem& p) { return DropoutMask(p.dropout).threshold() > 0; }

std::string option_refusal(const Problem& p, const Takes& takes) {
  if (p.dtype == DType::float64)
    return "float64 is not supported by this kernel (only by the reference)";
  if (p.packed && !takes.packed) return "packed sequences are not supported by this kernel";
  if (p.paged && !takes.paged) return "paged K and V are not supported by this kernel";
  if (p.block_list.defined() && !takes.lists) return "block lists are not supported by this kernel";
  if (p.mask.defined() && !takes.mask) return "a bool mask is not supported by this kernel";
  if (p.bias.defined() && !takes.bias) return "a bias is not supported by this kernel";
  if (p.bias.defined() && p.bias.dtype == DType::float64)
    return "a bias of float64 is not supported by this kernel";
  if (p.dbias.defined() && !takes.gradients)
    return "the gradient of a bias is not supported by this kernel";
  if (p.sinks.defined() && !takes.sinks) return "sinks are not supported by this kernel";
  if (p.dsinks.defined() && !takes.gradients)
    return "the gradient of sinks is not supported by this kernel";
  if (drops(p) && !takes.dropout) return "dropout is not supported by this kernel";
  const char* const unsupported = " is not supported by this kernel";
  if (p.score_function.defined() && !takes.expressions) {
    return std::string("a score expression") + unsupported;
  }
  if (p.mask_function.defined() && !takes.expressions) {
    return std::string("a mask expression") + unsupported;
  }
  if (takes.expressions) {
    const std::string reason = expressions_refusal(p);
    if (!reason.empty()) return reason;
  }
  if (p.score_mod != nullptr)
    return "a score function in C++ is not supported by this kernel (only on the CPU)";
  return "";
}

}  // namespace tilewise::cuda
