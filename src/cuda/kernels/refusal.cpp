#include "cuda/kernels/refusal.hpp"

namespace tilewise::cuda {

std::string option_refusal(const Problem& p, bool takes_packed) {
  if (p.dtype == DType::float64) return "float64 runs on the reference";
  if (p.packed && !takes_packed) return "packed sequences are not supported by this kernel";
  if (p.paged) return "paged K and V are not supported by this kernel";
  if (p.block_list.defined()) return "block lists are not supported by this kernel";
  if (p.mask.defined()) return "a bool mask is not supported by this kernel";
  if (p.bias.defined()) return "a bias is not supported by this kernel";
  if (p.sinks.defined()) return "sinks are not supported by this kernel";
  if (p.dropout.p > 0.0) return "dropout is not supported by this kernel";
  if (p.score_mod != nullptr) return "a score function runs on the CPU";
  return "";
}

}  // namespace tilewise::cuda
