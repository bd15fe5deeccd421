/// What all random problems share: the draws that do not depend on sizes.
#pragma once

#include <cstdint>

#include "harness/case.h"
#include "harness/draw.h"

namespace tilewise {

/// Visible pairs of all heads of one problem: what the reference takes milliseconds for. Half as
/// many where the head dims of small problems pass 128.
inline constexpr std::int64_t kMostPairs = std::int64_t{1} << 17;

/// Type and head dims: few of them in problems that follow each other, because on a GPU each is a
/// set of kernels to compile. One in three is above 128; one in four has a Dv of its own.
void draw_type(std::uint64_t seed, std::int64_t index, Draw& draw, Case& c);
/// Bias, softcap, ALiBi, sinks, dropout, score functions, scale; sizes are drawn before.
void draw_scores(Draw& draw, Draw& of_values, Case& c);
/// Layouts, LSE and its gradient.
void draw_memory(Draw& draw, Case& c);

}  // namespace tilewise
