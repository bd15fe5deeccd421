/// Parts of a large problem that the reference can afford. Used by conformance.
#pragma once

#include <cstdint>
#include <vector>

#include "problem/problem.h"

namespace tilewise {

/// Query heads [head_begin, head_end) of one key head of one batch entry, query rows [row_begin,
/// row_end).
struct Sample {
  std::int64_t b = 0, head_k = 0;
  std::int64_t head_begin = 0, head_end = 0;
  std::int64_t row_begin = 0, row_end = 0;
};

/// Multiply-adds of one forward, over the pairs that positions and lengths leave.
double reference_work(const Problem& problem);

/// Whether parts of the problem are problems of their own: not with options that depend on absolute
/// positions.
bool can_sample(const Problem& problem);

/// The same rows of as many other query heads of the batch, at most `most` times, spread evenly.
std::vector<Sample> other_heads(const Problem& problem, const Sample& sample, int most);

/// First, last and some random parts that cost `max_work` together.
std::vector<Sample> choose_samples(const Problem& problem, double max_work, std::uint64_t seed);

/// The part as a problem: views into the same tensors, masks moved so that they hide the same
/// pairs.
Problem sample_problem(const Problem& problem, const Sample& sample);

/// True when the part holds every query row and head that its keys meet, so that dK and dV are
/// whole.
bool whole_keys(const Problem& problem, const Sample& sample);

}  // namespace tilewise
