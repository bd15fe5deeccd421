/// Sinks, bool masks, dropout and biases on the host side of the kernels for Hopper: what a config
/// and a unit have of them, and how they reach a kernel.
#pragma once

#include <string>

#include "cuda/host/expressions.h"
#include "cuda/tile/options_args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// The options of a kernel's Config. In backward LSE includes sinks, so no kernel needs them.
tile::OptionKinds options_of(const Problem& problem);
/// True when elements of neighbouring keys lie side by side and every row begins at an even one. Of
/// its strides alone where the data is not there yet.
bool bias_begins_even(const Problem& problem);
/// Whether the problem's mask is a tree whose words a kernel may read instead of its function.
bool has_tree_words(const Problem& problem);
/// The problem as such a kernel takes it: without the function.
Problem by_tree_words(const Problem& problem);
tile::TreeBits tree_words(const Problem& problem);

/// ", .options = {...}" of a Config, nothing without any.
std::string options_text(const tile::OptionKinds& kinds);
/// The arguments that the kernel reads, with the bits of the mask.
tile::Options kernel_options(const Problem& problem, const tile::MaskBits& mask);

/// A unit that takes options.
KernelUnit optioned_unit(KernelUnit unit);

/// As load_expressed(), of a unit that may take options too.
template <class Config, class MakeUnit>
Kernel load_optioned(const Problem& problem, const Config& config, int device, MakeUnit make_unit) {
  if (!config.options.any()) return load_expressed(problem, config, device, make_unit);
  const auto optioned = [&](const Config& c) {
    KernelUnit unit = make_unit(c);
    if (c.expressions.any()) {
      const std::string args = unit.args;
      unit = with_expressions(std::move(unit), problem, c.expressions.strip);
      unit.args = args;
    }
    return optioned_unit(std::move(unit));
  };
  if (!config.expressions.any()) return host::load_config(config, device, optioned);
  return load_by_key(expressions_key(problem), config, device, optioned);
}

/// As launch_expressed(), with the options.
template <class Args>
void launch_optioned(const Problem& problem, const Kernel& kernel, const Grid& grid, void* stream,
                     const Args& args, const tile::MaskBits& mask, const tile::Strip& strip = {},
                     const tile::BiasTiles& bias = {}, const tile::BiasSums& sums = {}) {
  if (!options_of(problem).any())
    return launch_expressed(problem, kernel, grid, stream, args, strip);
  tile::Optioned<Args> optioned = {args, captures_of(problem, strip),
                                   kernel_options(problem, mask)};
  optioned.options.bias_tiles = bias;
  optioned.options.bias_sums = sums;
  launch(kernel, grid, stream, optioned);
}

}  // namespace tilewise::cuda
