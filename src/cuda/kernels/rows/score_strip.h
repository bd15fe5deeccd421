/// What a score function has of each distance, worked out ahead of a kernel for Hopper.
#pragma once

#include <vector>

#include "cuda/host/common.h"
#include "cuda/jit/unit.h"
#include "cuda/tile/expression_args.h"
#include "plan/kernel_row.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Whether the score function of a problem has parts of i - j that are worth it. Of packed
/// sequences where their lengths are alike.
bool strips_score(const Problem& problem);

KernelUnit score_strip_unit(const Problem& problem);

/// `any`: of a config's Expressions; else nothing is done.
class ScoreStrip {
 public:
  ScoreStrip(const Problem& problem, bool any) : problem_(problem), any_(any) {}
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the strip's memory and fills it.
  tile::Strip make(WorkspaceCutter& workspace, void* stream) const;

 private:
  std::int64_t count() const;
  std::int64_t words() const;

  const Problem& problem_;
  bool any_;
};

}  // namespace tilewise::cuda
