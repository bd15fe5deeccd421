/// One problem with its memory, run by a named implementation: for the tests of baseline, eager and
/// fused.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tilewise/attention.h"

namespace tilewise {

using Floats = std::vector<float>;

struct Textbook {
  std::int64_t batch = 1, heads_q = 2, heads_k = 1, seq_q = 40, seq_k = 70, dim = 8, dim_v = 12;
  AttentionSpec spec;
  Floats q, k, v, d_o;
  Floats o, lse, dq, dk, dv;
  std::vector<std::byte> saved, workspace;

  static Floats random(std::int64_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    Floats x(static_cast<std::size_t>(count));
    for (float& value : x) value = normal(generator);
    return x;
  }
  static Floats poison(std::int64_t count) {
    return Floats(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN());
  }

  /// Random inputs, poisoned results.
  void fill() {
    q = random(batch * heads_q * seq_q * dim, 1);
    k = random(batch * heads_k * seq_k * dim, 2);
    v = random(batch * heads_k * seq_k * dim_v, 3);
    d_o = random(batch * heads_q * seq_q * dim_v, 4);
    o = poison(batch * heads_q * seq_q * dim_v);
    lse = poison(batch * heads_q * seq_q);
    dq = poison(batch * heads_q * seq_q * dim);
    dk = poison(batch * heads_k * seq_k * dim);
    dv = poison(batch * heads_k * seq_k * dim_v);
  }

  Tensor view(Floats& x, std::int64_t heads, std::int64_t seq, std::int64_t d) const {
    return Tensor::bhsd(x.data(), DType::float32, batch, heads, seq, d);
  }

  Tensor statistics() {
    if (spec.cu_seqlens_q.defined()) {
      return Tensor::contiguous(lse.data(), DType::float32, {heads_q, seq_q});
    }
    return Tensor::contiguous(lse.data(), DType::float32, {batch, heads_q, seq_q});
  }

  ForwardTensors forward_tensors() {
    return {.q = view(q, heads_q, seq_q, dim),
            .k = view(k, heads_k, seq_k, dim),
            .v = view(v, heads_k, seq_k, dim_v),
            .o = view(o, heads_q, seq_q, dim_v),
            .lse = statistics(),
            .saved = {}};
  }

  BackwardTensors backward_tensors() {
    const ForwardTensors f = forward_tensors();
    return {.q = f.q,
            .k = f.k,
            .v = f.v,
            .o = f.o,
            .lse = f.lse,
            .d_o = view(d_o, heads_q, seq_q, dim_v),
            .d_lse = {},
            .dq = view(dq, heads_q, seq_q, dim),
            .dk = view(dk, heads_k, seq_k, dim),
            .dv = view(dv, heads_k, seq_k, dim_v),
            .dbias = {},
            .dsinks = {},
            .saved = {}};
  }

  /// A workspace of NaN for the plan, 256-byte aligned.
  Launch launch(const Plan& plan) {
    workspace.assign(static_cast<std::size_t>(plan.workspace_bytes) + 256, std::byte{0xFF});
    return {.stream = nullptr,
            .allocator = nullptr,
            .workspace = aligned(workspace),
            .workspace_bytes = plan.workspace_bytes,
            .executor = nullptr};
  }

  static void* aligned(std::vector<std::byte>& memory) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (256 - at % 256) % 256;
  }

  /// Forward, then backward; with `keep`, forward saves its state for backward.
  void run(const std::string& implementation, bool keep) {
    const Choice choice{.implementation = implementation, .kernel = ""};
    ForwardTensors f = forward_tensors();
    BackwardTensors b = backward_tensors();
    if (keep) {
      const std::int64_t bytes = plan(f, spec, choice).saved_bytes;
      saved.assign(static_cast<std::size_t>(bytes) + 256, std::byte{0xFF});
      f.saved = b.saved = {aligned(saved), bytes};
    }
    const Plan forward_plan = plan(f, spec, choice);
    tilewise::run(forward_plan, f, spec, launch(forward_plan));
    const Plan backward_plan = plan(b, spec, choice);
    tilewise::run(backward_plan, b, spec, launch(backward_plan));
  }
};

/// Same bits, NaN included.
inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::int64_t item_bytes(const Plan& plan, const std::string& name, MemoryItem::Role role) {
  std::int64_t bytes = 0;
  for (const MemoryItem& item : plan.memory) {
    if (item.name == name && item.role == role) bytes += item.bytes;
  }
  return bytes;
}

}  // namespace tilewise
