/// Gradients of captured tensors from sums of dS by i - j, which a backward kernel makes beside dQ.
/// See bwd_sm80/captures.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/host/common.h"
#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Which of a backward problem's wanted gradients of captured tensors can be made so: of tensors of
/// which i - j, the batch entry and the head decide the element and its derivative.
std::vector<bool> diagonal_captures(const Problem& problem);

class DiagonalGradients {
 public:
  /// `which`: of diagonal_captures(), or nothing. `queries`, `keys`: of a head, padded as the
  /// kernel has them.
  DiagonalGradients(const Problem& problem, std::vector<bool> which, std::int64_t queries,
                    std::int64_t keys);

  bool any() const { return any_; }
  /// The problem without the gradients that are made here.
  Problem others() const;

  void add_memory(std::vector<MemoryPart>& items) const;
  /// Cuts the sums and clears them.
  void take(WorkspaceCutter& workspace, void* stream);
  float* sums() const { return sums_; }
  std::int64_t count() const { return queries_ + keys_; }
  std::int64_t last_key() const { return keys_ - 1; }
  /// From the sums to the gradients.
  void make(void* stream) const;

  KernelUnit unit() const;

 private:
  std::int64_t floats(std::int64_t sums) const;

  const Problem& problem_;
  std::vector<bool> which_;
  std::int64_t queries_, keys_;
  bool any_;
  float* sums_ = nullptr;
  std::vector<float*> elements_;  ///< of each captured tensor
};

}  // namespace tilewise::cuda
