/// The yardstick of CONTRACT 18: how far the textbook's own arithmetic is from float64. Not a
/// kernel.
///
/// Products of the given inputs in float32, S and P rounded to the input type, sums accumulated in
/// float32, results rounded to the input type as a tensor of that type holds them. A finite S that
/// the type cannot hold keeps its float32 value, so that float16 has a yardstick at large logits
/// too. float64 inputs are measured as float32. With Precision::tf32 every factor of a product
/// (Q, K, V, dO, P, dS) is rounded as the unit rounds it, and nothing else is.
#pragma once

#include "reference/reference.h"

namespace tilewise::reference {

/// Shapes as forward_f64; lse is float32 accurate.
Forward unfused_forward(const Problem& problem, Executor& executor = default_executor());

/// Shapes as backward_f64.
Backward unfused_backward(const Problem& problem, Executor& executor = default_executor());

}  // namespace tilewise::reference
