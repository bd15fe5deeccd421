/// All of a Problem that planning reads, as bytes: what plans are kept by.
#pragma once

#include <string>
#include <string_view>

#include "problem/problem.h"

namespace tilewise {

/// True when V is the first columns of K, the same elements, as in multi-head latent attention.
/// Where there is no memory yet the strides tell.
bool has_values_in_keys(const Problem& problem);

/// Sizes, strides, types, places and (on a GPU) alignment of every tensor, and every option; `more`
/// behind them. Two problems of one key have the same plan on a machine, unless
/// reads_host_lengths().
std::string problem_key(const Problem& problem, std::string_view more = {});

/// True when a plan's predicted time counts numbers that lie in host memory: lengths, offsets,
/// block lists. Such a plan is one call's.
bool reads_host_lengths(const Problem& problem);

}  // namespace tilewise
