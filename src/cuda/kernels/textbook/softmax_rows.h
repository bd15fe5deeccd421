/// The passes of eager and fused over their S x S matrices, started one by one. See
/// textbook/README.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/textbook/softmax_rows_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// S to P and LSE; with `one_pass` S stays what it is, without it becomes the logits.
void softmax_forward(const Problem& problem, const softmax_rows::Args& args, bool one_pass,
                     void* stream);

/// dP to dS, in place. S as the forward of the same kind left it.
void softmax_backward(const Problem& problem, const softmax_rows::Args& args, bool one_pass,
                      void* stream);

/// Walks through S x S elements of memory, by the size of the element: what the passes cost.
struct Walks {
  double floats = 0.0;    ///< S, dP
  double elements = 0.0;  ///< P, dS, of the inputs' type
};
Walks softmax_walks(Pass pass, bool one_pass, DType dtype);

void add_softmax_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
