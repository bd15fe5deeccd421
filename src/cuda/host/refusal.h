/// Problems that no CUDA kernel of any family supports yet.
#pragma once

#include <string>

#include "problem/problem.h"

namespace tilewise::cuda {

/// Options that only some kernels take.
struct Takes {
  bool packed = false;
  bool paged = false;
  bool mask = false;  ///< a bool mask
  bool bias = false;
  bool sinks = false;
  bool dropout = false;
  bool lists = false;        ///< a block list
  bool gradients = false;    ///< of bias and sinks
  bool expressions = false;  ///< score functions and masks as expressions
  int most_head_dim = 256;
};

/// True when dropout may drop something: p is at least 2^-32.
bool drops(const Problem& problem);

/// Names the first type or option that the kernel does not take; empty when there is none.
std::string option_refusal(const Problem& problem, const Takes& takes = {});

}  // namespace tilewise::cuda
