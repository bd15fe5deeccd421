/// The spec's expressions: lowered, and their captured tensors judged.
#pragma once

#include <string>

#include "problem/problem.h"

namespace tilewise {

/// "score_expression's slopes".
std::string captured_name(const char* argument, const Captured& capture);

void take_expressions(Problem& p, const AttentionSpec& spec);

/// The gradients of the score's captured tensors, and the derivative that backward needs.
void take_capture_gradients(Problem& p, const BackwardTensors& tensors, const AttentionSpec& spec,
                            Purpose purpose);

/// Captured tensors must have data pointers.
void require_capture_data(const AttentionSpec& spec);

}  // namespace tilewise
