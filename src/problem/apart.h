/// Outputs share memory with nothing.
#pragma once

#include <cstdint>
#include <span>

#include "problem/problem.h"
#include "tilewise/attention.h"
#include "tilewise/kv_cache.h"

namespace tilewise {

struct Named {
  const char* name;
  const Tensor* tensor;
};

/// Throws InvalidArgument where an output has an element of an input or of another output. Views
/// that interleave without a common element are apart, as those of one packed gradient are.
void require_apart(const ForwardTensors& tensors, const AttentionSpec& spec);
void require_apart(const BackwardTensors& tensors, const AttentionSpec& spec);
void require_apart(std::span<const Named> outputs, std::span<const Named> inputs);
/// The two caches may share memory with each other: latent rows are keys and values.
void require_apart(const AppendTensors& tensors, const AppendSpec& spec);

/// The caller's memory, workspace or saved state, of which a kernel uses `bytes`. Throws where a
/// tensor of the problem has an element there, or where a GPU's kernels cannot use the address.
void require_usable(const char* name, const void* data, std::int64_t bytes, const Problem& p);

}  // namespace tilewise
