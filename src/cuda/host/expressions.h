/// Score functions and masks of a problem on the host side of the CUDA kernels: what a config and a
/// unit have of them, and how captured tensors reach a kernel.
#pragma once

#include <string>
#include <vector>

#include "cuda/driver/launch.h"
#include "cuda/host/common.h"
#include "cuda/host/expression_text.h"
#include "cuda/jit/kernel.h"
#include "cuda/tile/expression_args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// What the kernels hold of them is named by its first fault; empty when there is none.
std::string expressions_refusal(const Problem& problem);

/// Whether the score function may move whole rows so far that a float32 LSE has too few digits
/// left, as far as the host can tell: by its constants, or by captured reals that an affine
/// function adds.
bool moves_rows_far(const Problem& problem);
/// The expressions of a kernel's Config. What a captured tensor of reals adds may be huge too,
/// unless the function is affine: then it counts as a slope.
tile::Expressions expressions_of(const Problem& problem);
/// True when the derivative of the score function by the score is not 1. Backward only.
bool is_gated(const Problem& problem);
/// ", .expressions = {1, 0}" of a Config, nothing without one.
std::string expressions_text(const tile::Expressions& expressions);

/// The captured tensors of the score function, then of the mask.
tile::Captures captures_of(const Problem& problem, const tile::Strip& strip = {});

/// The unit of a config that has expressions: the functions before its source. In backward the
/// score function comes with its derivative. `strip`: of the config's Expressions.
KernelUnit with_expressions(KernelUnit unit, const Problem& problem, bool strip = false);
/// The text of the score function alone.
std::string score_function_text(const Problem& problem, bool strip);
/// The same with this text for the score function.
KernelUnit with_functions(KernelUnit unit, const Problem& problem, const std::string& score);
/// The mask function's name in such a unit. Its tensors follow those of the score function.
FunctionName mask_name(const Problem& problem);
/// The text that distinguishes such units, besides their configs.
std::string expressions_key(const Problem& problem);

/// As host::load_config(), of units that `key` tells apart beside their configs.
template <class Config, class MakeUnit>
Kernel load_by_key(std::string key, const Config& config, int device, MakeUnit make_unit) {
  struct Entry {
    Config config;
    int device;
    std::string key;
    Kernel kernel;
  };
  thread_local std::vector<Entry> entries;
  for (const Entry& entry : entries) {
    if (entry.device == device && entry.config == config && entry.key == key) return entry.kernel;
  }
  entries.push_back({config, device, std::move(key), load(make_unit(config), device)});
  return entries.back().kernel;
}
/// As host::load_config(), the expressions being those of `problem`.
template <class Config, class MakeUnit>
Kernel load_expressed(const Problem& problem, const Config& config, int device,
                      MakeUnit make_unit) {
  if (!config.expressions.any()) return host::load_config(config, device, make_unit);
  return load_by_key(expressions_key(problem), config, device, [&](const Config& c) {
    return with_expressions(make_unit(c), problem, c.expressions.strip);
  });
}

/// As launch(), with the captured tensors where the problem has expressions.
template <class Args>
void launch_expressed(const Problem& problem, const Kernel& kernel, const Grid& grid, void* stream,
                      const Args& args, const tile::Strip& strip = {}) {
  if (!expressions_of(problem).any()) return launch(kernel, grid, stream, args);
  launch(kernel, grid, stream, tile::Expressed<Args>{args, captures_of(problem, strip)});
}

}  // namespace tilewise::cuda
