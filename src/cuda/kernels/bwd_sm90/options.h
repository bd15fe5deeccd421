/// bwd_sm90 on the host: bool masks, dropout and biases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/kernels/bwd_sm90/args.h"
#include "plan/kernel_row.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// What bool masks, sinks, dropout and biases do not go with here; empty when nothing.
std::string bwd_sm90_options_refusal(const Problem& problem);
/// Whether the kernel sums the gradient of the bias itself.
bool bwd_sm90_sums_bias(const Problem& problem, const bwd_sm90::Config& config);
/// Those sums: their workspace, where they lie, and the gradient of them.
class BiasSumsMaker {
 public:
  /// Makes nothing where the problem's kernel wants none.
  BiasSumsMaker(const Problem& problem, const bwd_sm90::Config& config);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory(), and starts its clearing.
  tile::BiasSums take(WorkspaceCutter& workspace, void* stream);
  /// After the kernel.
  void make_gradient(void* stream) const;

 private:
  const Problem& problem_;
  bool defined_ = false;
  Tensor own_;  ///< the gradient, axes along which it broadcasts have one element
  std::int64_t rows_ = 0, keys_ = 0;
  float* sums_ = nullptr;

  std::int64_t floats() const;
};

/// The bias as the producer copies it. In a context: it makes a tensor map.
tile::BiasTiles bwd_sm90_bias_tiles(const Problem& problem, const bwd_sm90::Config& config);

}  // namespace tilewise::cuda
