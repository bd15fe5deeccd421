/// Outputs share memory with nothing.
#pragma once

#include "tilewise/attention.h"
#include "tilewise/kv_cache.h"

namespace tilewise {

/// Throws InvalidArgument where an output has an element of an input or of another output. Views
/// that interleave are taken to be apart, as those of one packed gradient are.
void require_apart(const ForwardTensors& tensors, const AttentionSpec& spec);
void require_apart(const BackwardTensors& tensors, const AttentionSpec& spec);
/// The two caches may share memory with each other: latent rows are keys and values.
void require_apart(const AppendTensors& tensors);

}  // namespace tilewise
