/// forward_prefix(): the prefix with all queries as rows, each sequence's own keys, the merge.
#include <algorithm>
#include <string>

#include "api/execute.h"
#include "api/plan_cache.h"
#include "api/workspace.h"
#include "cuda/kernels/rows/merge.h"
#include "problem/arguments.h"
#include "problem/blocks.h"
#include "problem/problem.h"
#include "tilewise/kv_cache.h"

namespace tilewise {
namespace {

using arguments::fail;
using arguments::fail_value;

constexpr std::int64_t kAlignment = 256;

void refuse(bool given, const char* name) {
  if (given) fail_value(name, "given", "expected a call without it, because the prefix is shared");
}

void check(const PrefixTensors& t, const AttentionSpec& spec) {
  refuse(spec.window.left.has_value() || spec.window.right.has_value(), "window");
  refuse(spec.alibi_slopes.defined(), "alibi_slopes");
  refuse(spec.bias.defined(), "bias");
  refuse(spec.mask.defined(), "mask");
  refuse(spec.score_mod != nullptr, "score_mod");
  refuse(spec.score_expression.defined(), "score_expression");
  refuse(spec.dropout.p != 0.0, "dropout");
  refuse(spec.block_list.defined(), "block_list");
  refuse(spec.causal == Causal::top_left, "causal = top_left");
  refuse(spec.deterministic, "deterministic");  // the parts of the prefix depend on all rows
  for (const auto& [name, tensor] : {std::pair{"q", &t.q},
                                     {"k_prefix", &t.k_prefix},
                                     {"v_prefix", &t.v_prefix},
                                     {"k", &t.k},
                                     {"v", &t.v},
                                     {"o", &t.o}}) {
    if (tensor->rank != 4) fail(name, *tensor, "expected four axes (B, H, S, D)");
  }
  const auto require = [](const char* name, const Tensor& prefix, const Tensor& own,
                          std::int64_t keys) {
    if (prefix.sizes[0] != 1)
      fail(name, prefix, "expected a batch axis of 1, because all sequences share the prefix");
    if (prefix.dtype != own.dtype || prefix.sizes[1] != own.sizes[1] ||
        prefix.sizes[3] != own.sizes[3])
      fail(name, prefix, "expected the type, heads and head dim of " + own.describe());
    if (prefix.sizes[2] != keys)
      fail(name, prefix, "expected as many keys as k_prefix has, " + std::to_string(keys));
  };
  require("k_prefix", t.k_prefix, t.k, t.k_prefix.sizes[2]);
  require("v_prefix", t.v_prefix, t.v, t.k_prefix.sizes[2]);
}

/// (B, H, S, D) as (1, H, B * S, D).
Tensor as_one_sequence(const char* name, const Tensor& t) {
  Tensor one = t;
  const std::int64_t batch = t.sizes[0], rows = t.sizes[2];
  if (batch == 1) return one;
  if (rows == 1) {
    one.strides[2] = t.strides[0];
  } else if (batch > 0 && rows > 0 && t.strides[0] != rows * t.strides[2]) {
    fail(name, t, "its batch and sequence axes must form one axis in memory, as in (B, S, H, D)");
  }
  one.sizes[0] = 1;
  one.sizes[2] = batch * rows;
  return one;
}

/// The two problems, and where their results lie in the workspace.
class Prefixed {
 public:
  Prefixed(const PrefixTensors& t, const AttentionSpec& spec) : own_spec_(spec) {
    check(t, spec);
    prefix_spec_.scale = spec.scale;
    prefix_spec_.softcap = spec.softcap;
    prefix_spec_.sinks = spec.sinks;  // one key of its own: in one of the two
    prefix_spec_.precision = spec.precision;
    own_spec_.sinks = {};
    own_ = {.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    prefix_ = {.q = as_one_sequence("q", t.q), .k = t.k_prefix, .v = t.v_prefix};
    const std::int64_t heads = t.q.sizes[1], rows = prefix_.q.sizes[2], dim_v = t.o.sizes[3];
    prefix_.o = Tensor::bshd(nullptr, t.q.dtype, 1, rows, heads, dim_v, t.q.device);
    prefix_.lse = Tensor::contiguous(nullptr, DType::float32, {1, heads, rows}, t.q.device);
    if (!t.lse.defined()) {
      own_.lse = spec.cu_seqlens_q.defined()
                     ? Tensor::contiguous(nullptr, DType::float32, {heads, rows}, t.q.device)
                     : Tensor::contiguous(nullptr, DType::float32,
                                          {t.q.sizes[0], heads, t.q.sizes[2]}, t.q.device);
    }
    lse_at_ = round_up(rows * heads * dim_v * dtype_bytes(t.q.dtype), kAlignment);
    own_lse_at_ = lse_at_ + round_up(rows * heads * 4, kAlignment);
    calls_at_ = own_lse_at_ + (t.lse.defined() ? 0 : round_up(rows * heads * 4, kAlignment));
    gives_lse_ = t.lse.defined();
  }

  PrefixPlan plan(Purpose purpose) const {
    // What lies in the workspace has no address yet.
    if (purpose == Purpose::run) make_problem(own_with_data(), own_spec_, Purpose::run);
    PrefixPlan made{.prefix = *kept_plan(make_problem(prefix_, prefix_spec_, Purpose::plan), {}),
                    .own = *kept_plan(make_problem(own_, own_spec_, Purpose::plan), {})};
    made.workspace_bytes =
        calls_at_ + std::max(made.prefix.workspace_bytes, made.own.workspace_bytes);
    return made;
  }

  void run(const PrefixPlan& made, std::byte* memory, const Launch& launch) {
    prefix_.o.data = memory;
    prefix_.lse.data = memory + lse_at_;
    if (!gives_lse_) own_.lse.data = memory + own_lse_at_;
    Launch inner = launch;
    inner.workspace = memory + calls_at_;
    inner.workspace_bytes = made.workspace_bytes - calls_at_;
    tilewise::run(made.prefix, prefix_, prefix_spec_, inner);
    tilewise::run(made.own, own_, own_spec_, inner);
    merge_into_own(launch);
  }

 private:
  AttentionSpec prefix_spec_, own_spec_;
  ForwardTensors prefix_, own_;
  std::int64_t lse_at_ = 0, own_lse_at_ = 0, calls_at_ = 0;
  bool gives_lse_ = false;

  /// The caller's tensors alone.
  ForwardTensors own_with_data() const {
    ForwardTensors t = own_;
    if (!gives_lse_) t.lse = {};
    return t;
  }
  void merge_into_own(const Launch& launch) const {
    Tensor lse = own_.lse;
    if (lse.rank == 2) {  // packed
      lse.rank = 3;
      lse.sizes = {1, lse.sizes[0], lse.sizes[1]};
      lse.strides = {0, lse.strides[0], lse.strides[1]};
    }
    // Rows of the prefix's problem as those of each entry.
    Tensor o = prefix_.o, other_lse = prefix_.lse;
    o.sizes = own_.o.sizes;
    o.strides[0] = o.sizes[2] * o.strides[2];
    other_lse.sizes = lse.sizes;
    other_lse.strides[0] = lse.sizes[2] * other_lse.strides[2];
    if (own_.o.device.type == DeviceType::cuda) {
      cuda::merge(own_.o, lse, o, other_lse, launch.stream);
    } else {
      merge(own_.o, lse, o, other_lse);
    }
  }
};

}  // namespace

Plan as_one(const PrefixPlan& plan) {
  Plan both = plan.own;
  both.kernel = plan.prefix.kernel + "+" + plan.own.kernel;
  both.workspace_bytes = plan.workspace_bytes;
  both.flops += plan.prefix.flops;
  both.bytes_moved += plan.prefix.bytes_moved;
  both.predicted_ms += plan.prefix.predicted_ms;
  return both;
}

PrefixPlan plan_prefix(const PrefixTensors& tensors, const AttentionSpec& spec) {
  return Prefixed(tensors, spec).plan(Purpose::plan);
}

PrefixPlan forward_prefix(const PrefixTensors& tensors, const AttentionSpec& spec,
                          const Launch& launch) {
  Prefixed call(tensors, spec);
  PrefixPlan made = call.plan(Purpose::run);
  const Workspace workspace(made.workspace_bytes, tensors.q.device, "forward_prefix", launch);
  call.run(made, workspace.data(), launch);
  return made;
}

}  // namespace tilewise
