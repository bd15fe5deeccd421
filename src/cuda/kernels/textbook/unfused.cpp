#include "cuda/kernels/textbook/unfused.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "cuda/driver/cublas.h"
#include "cuda/kernels/rows/copy.h"
#include "cuda/kernels/textbook/softmax_rows.h"
#include "cuda/kernels/textbook/textbook.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using Role = MemoryItem::Role;

/// Share of Hardware's sustained rates that cuBLAS's products of these shapes reach: on tensor
/// cores, in float32.
constexpr double kMatrixEfficiency = 0.555, kFloat32Efficiency = 0.63;

struct Kind {
  bool one_pass;
};
constexpr Kind kEager = {false};
constexpr Kind kFused = {true};

bool one_pass(const KernelRow& row) { return static_cast<const Kind*>(row.config)->one_pass; }

/// True when the rows of all heads lie one after another: what one call of cuBLAS takes, key heads
/// as its batches, the query heads of a key head below each other in one matrix.
bool is_dense(const Tensor& t) {
  std::int64_t stride = 1;
  for (std::size_t axis = 4; axis-- > 0;) {
    if (t.sizes[axis] != 1 && t.strides[axis] != stride) return false;
    stride *= t.sizes[axis];
  }
  return true;
}

/// Tensors of a pass that take part in matrix products, by the names that their copies have in the
/// plan.
struct Named {
  const char* name;
  const Tensor* tensor;
};
std::vector<Named> product_inputs(const Problem& p) {
  std::vector<Named> named = {{"Q copy", &p.q}, {"K copy", &p.k}, {"V copy", &p.v}};
  if (p.pass == Pass::backward) named.push_back({"dO copy", &p.d_o});
  return named;
}
std::vector<Named> product_outputs(const Problem& p) {
  if (p.pass == Pass::forward) return {{"O copy", &p.o}};
  return {{"dQ copy", &p.dq}, {"dK copy", &p.dk}, {"dV copy", &p.dv}};
}

/// Whether position leaves some rows no key, the first or the last then: their dO may hold
/// anything. CONTRACT 3.
bool hides_rows(const Problem& p) {
  if (p.batch == 0 || p.seq_q == 0) return false;
  const Sequence all = p.sequence(0);
  return p.visible_keys(all, 0).empty() || p.visible_keys(all, p.seq_q - 1).empty();
}

/// True when the call brings no saved state, and S and P lie in workspace. In planning its size
/// stands for it.
bool state_is_dropped(const Problem& p) { return p.saved.data == nullptr && p.saved.bytes == 0; }

/// Saved state and workspace, in the order in which they lie in memory.
std::vector<MemoryPart> memory_items(const KernelRow& row, const Problem& p) {
  std::vector<MemoryPart> items;
  const std::array scores = {p.batch, p.heads_q, p.seq_q, p.seq_k};
  const std::array rows = {p.batch, p.heads_q, p.seq_q};
  const std::array pairs = {p.batch, p.heads_q, p.seq_q, std::int64_t{2}};
  const auto add = [&](const char* name, Role role, DType dtype,
                       std::span<const std::int64_t> shape) {
    items.push_back(memory_part(name, role, dtype, shape));
  };
  if (p.pass == Pass::forward || !state_is_dropped(p)) {  // what forward keeps, in this call or not
    add("S", Role::saved, DType::float32, scores);
    add("P", Role::saved, p.dtype, scores);
  }
  if (state_is_dropped(p)) {
    add("S of this call", Role::workspace, DType::float32, scores);
    add("P of this call", Role::workspace, p.dtype, scores);
  }
  const bool makes_p = p.pass == Pass::forward || state_is_dropped(p);
  if (makes_p && !one_pass(row)) add("statistics", Role::workspace, DType::float32, pairs);
  if (p.pass == Pass::backward) {
    add("dP", Role::workspace, DType::float32, scores);
    if (!one_pass(row)) add("delta", Role::workspace, DType::float32, rows);
  }
  for (const auto& list : {product_inputs(p), product_outputs(p)}) {
    for (const Named& named : list) {
      if (is_dense(*named.tensor) && !(named.tensor == &p.d_o && hides_rows(p))) continue;
      add(named.name, Role::workspace, p.dtype, named.tensor->sizes);
    }
  }
  add("cuBLAS workspace", Role::workspace, DType::uint8, std::array{kCublasWorkspaceBytes});
  return items;
}

/// The parts of memory by name.
class Parts {
 public:
  Parts(const std::vector<MemoryPart>& items, const Problem& p, const Context& context) {
    std::int64_t needed = 0;
    WorkspaceCutter saved(p.saved.data), workspace(context.workspace);
    for (const MemoryPart& item : items) {
      if (item.role == Role::workspace) needed += align_workspace(item.bytes);
      if (item.role == Role::saved && p.saved.data == nullptr) continue;
      WorkspaceCutter& cutter = item.role == Role::saved ? saved : workspace;
      parts_[item.name] = cutter.take<std::byte>(item.bytes);
    }
    if (needed > context.plan.workspace_bytes) {
      throw InvalidArgument("plan has " + std::to_string(context.plan.workspace_bytes) +
                            " workspace bytes: this call needs " + std::to_string(needed) +
                            "; plan with the same saved state");
    }
  }
  template <class T>
  T* find(const std::string& name) const {
    const auto found = parts_.find(name);
    return found == parts_.end() ? nullptr : reinterpret_cast<T*>(found->second);
  }
  /// Saved, or made by this call.
  template <class T>
  T* state(const std::string& name) const {
    T* kept = find<T>(name);
    return kept != nullptr ? kept : find<T>(name + " of this call");
  }

 private:
  std::map<std::string, std::byte*> parts_;
};

/// The dense tensor that stands for `t` in products: itself, or its copy.
Tensor dense(const Tensor& t, void* copy_data) {
  if (copy_data == nullptr) return t;
  return Tensor::contiguous(copy_data, t.dtype, {t.sizes[0], t.sizes[1], t.sizes[2], t.sizes[3]},
                            t.device);
}

/// One call's state.
class Call {
 public:
  Call(const KernelRow& row, const Problem& p, const Context& context)
      : p_(p),
        one_pass_(one_pass(row)),
        stream_(context.stream),
        parts_(context.decided<std::vector<MemoryPart>>(), p, context),
        products_(p.device.index, context.stream, parts_.find<void>("cuBLAS workspace"),
                  kCublasWorkspaceBytes, p.precision == Precision::tf32) {
    args_.s = parts_.state<float>("S");
    args_.p = parts_.state<void>("P");
    if (args_.s == nullptr) throw InvalidArgument("saved.data is null: expected saved state");
    args_.dp = parts_.find<float>("dP");
    args_.statistics = parts_.find<float>("statistics");
    args_.delta = parts_.find<float>("delta");
    args_.rule = logit_rule(p);
    q_ = input("Q copy", p.q);
    k_ = input("K copy", p.k);
    v_ = input("V copy", p.v);
  }

  void forward() {
    args_.lse = row_view(p_.lse);
    probabilities();
    const Tensor o = dense(p_.o, parts_.find<void>("O copy"));
    multiply(weights(args_.p, p_.dtype, p_.seq_k, false), rows(v_, false), p_.head_dim_v, o);
    finish(o, p_.o);
  }

  void backward() {
    // Without the forward's state it is made again.
    if (p_.saved.data == nullptr) probabilities();
    const Tensor d_o = gradient_of_o();
    const Tensor dq = dense(p_.dq, parts_.find<void>("dQ copy"));
    const Tensor dk = dense(p_.dk, parts_.find<void>("dK copy"));
    const Tensor dv = dense(p_.dv, parts_.find<void>("dV copy"));
    args_.lse = row_view(p_.lse);
    args_.d_lse = row_view(p_.d_lse);

    // (B3) dV = P^T dO
    multiply(weights(args_.p, p_.dtype, p_.seq_k, true), rows(d_o, false), p_.head_dim_v, dv);
    // (B4) dP = dO V^T
    multiply_scores(rows(d_o, false), rows(v_, true), p_.head_dim_v, args_.dp);
    softmax_backward(p_, args_, one_pass_, stream_);
    // dS lies in dP's rows, in the inputs' type.
    const std::int64_t stride = p_.seq_k * dtype_bytes(DType::float32) / dtype_bytes(p_.dtype);
    // (B8) dQ = scale * dS K, (B9) dK = scale * dS^T Q
    multiply(weights(args_.dp, p_.dtype, stride, false), rows(k_, false), p_.head_dim, dq);
    multiply(weights(args_.dp, p_.dtype, stride, true), rows(q_, false), p_.head_dim, dk);
    finish(dq, p_.dq);
    finish(dk, p_.dk);
    finish(dv, p_.dv);
  }

 private:
  /// S = Q K^T, then P.
  void probabilities() {
    multiply_scores(rows(q_, false), rows(k_, true), p_.head_dim, args_.s);
    softmax_forward(p_, args_, one_pass_, stream_);
  }

  Tensor input(const char* copy_name, const Tensor& t) {
    const Tensor stands_for = dense(t, parts_.find<void>(copy_name));
    if (stands_for.data != t.data) copy_elements(t, stands_for, stream_);
    return stands_for;
  }

  Tensor gradient_of_o() {
    if (!hides_rows(p_)) return input("dO copy", p_.d_o);
    const Tensor seen = dense(p_.d_o, parts_.find<void>("dO copy"));
    copy_seen_rows(p_.d_o, seen, p_.lse, stream_);
    return seen;
  }

  void finish(const Tensor& from, const Tensor& to) {
    if (from.data != to.data) copy_elements(from, to, stream_);
  }

  /// A dense tensor as one matrix a key head: its rows, those of all query heads of the key head.
  MatrixBatch rows(const Tensor& t, bool transposed) const {
    const std::int64_t heads = t.sizes[1] / std::max<std::int64_t>(p_.heads_k, 1);
    const std::int64_t elements = heads * t.sizes[2] * t.sizes[3];
    return {t.data, t.dtype, transposed, t.sizes[3], elements};
  }

  /// P or dS.
  MatrixBatch weights(const void* data, DType dtype, std::int64_t stride, bool transposed) const {
    return {data, dtype, transposed, stride, query_rows() * stride};
  }

  std::int64_t query_rows() const { return p_.group() * p_.seq_q; }

  /// out = W x: W is (query rows, keys) or its transpose, x has `columns`.
  void multiply(const MatrixBatch& w, const MatrixBatch& x, std::int64_t columns,
                const Tensor& out) {
    const std::int64_t m = w.transposed ? p_.seq_k : query_rows();
    const std::int64_t k = w.transposed ? query_rows() : p_.seq_k;
    products_.multiply({.m = m,
                        .n = columns,
                        .k = k,
                        .batches = p_.batch * p_.heads_k,
                        .a = w,
                        .b = x,
                        .c = out.data,
                        .c_dtype = out.dtype,
                        .c_row_stride = columns,
                        .c_batch_stride = m * columns});
  }

  /// out = x y^T, (query rows, keys), float32.
  void multiply_scores(const MatrixBatch& x, const MatrixBatch& y, std::int64_t inner, float* out) {
    products_.multiply({.m = query_rows(),
                        .n = p_.seq_k,
                        .k = inner,
                        .batches = p_.batch * p_.heads_k,
                        .a = x,
                        .b = y,
                        .c = out,
                        .c_dtype = DType::float32,
                        .c_row_stride = p_.seq_k,
                        .c_batch_stride = query_rows() * p_.seq_k});
  }

  const Problem& p_;
  bool one_pass_;
  void* stream_;
  Parts parts_;
  CublasSession products_;
  softmax_rows::Args args_;
  Tensor q_, k_, v_;
};

Preparation prepare(const KernelRow& row, const Problem& p, const Hardware& machine) {
  std::string reason = textbook_refusal(p);
  if (!reason.empty()) return reason;
  // The cap's slope comes from the logits, of which ALiBi leaves little of a small cap.
  const bool from_logits = p.pass == Pass::backward && !one_pass(row);
  if (from_logits && p.softcap > 0.0 && p.softcap < 1.0 && p.alibi_slopes.defined())
    return "a softcap below 1 beside ALiBi is not supported by this kernel";
  Cost cost;
  cost.memory = memory_items(row, p);
  const auto scores = static_cast<double>(score_rows(p)) * static_cast<double>(p.seq_k);
  const auto element = static_cast<double>(dtype_bytes(p.dtype));
  const bool forward = p.pass == Pass::forward;
  // The products write S, read P; backward writes dP, reads P once and dS twice.
  const Walks walks = softmax_walks(p.pass, one_pass(row), p.dtype);
  cost.bytes_moved =
      scores * (4.0 * (walks.floats + 1.0) + element * (walks.elements + (forward ? 1.0 : 3.0)));
  const auto d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.head_dim_v);
  const double flops = 2.0 * scores * (forward ? d + dv : 2.0 * (d + dv));
  const bool exact = p.dtype == DType::float32 && p.precision != Precision::tf32;
  const double rate = exact ? kFloat32Efficiency * machine.float32_tflops
                            : kMatrixEfficiency * machine.matrix_tflops;
  cost.ms = 1e-6 * cost.bytes_moved / machine.bandwidth_gbps + 1e-9 * flops / rate +
            6e-3 * machine.launch_us;
  auto parts = remember(cost.memory);
  return Prepared{std::move(cost), std::move(parts)};
}

void run(const KernelRow& row, const Problem& p, const Context& context) {
  Call call(row, p, context);
  p.pass == Pass::forward ? call.forward() : call.backward();
}

constexpr KernelRow make_row(const char* name, const char* implementation, Pass pass,
                             const char* summary, const Kind& kind) {
  return {name, implementation, DeviceType::cuda, pass, summary, prepare, run, &kind};
}

}  // namespace

const KernelRow kEagerForward = make_row("eager_fwd_cuda", "eager", Pass::forward,
                                         "cuBLAS products, a pass over S x S a step", kEager);
const KernelRow kEagerBackward = make_row("eager_bwd_cuda", "eager", Pass::backward,
                                          "cuBLAS products, a pass over S x S a step", kEager);
const KernelRow kFusedForward = make_row("fused_fwd_cuda", "fused", Pass::forward,
                                         "cuBLAS products, one softmax pass over S x S", kFused);
const KernelRow kFusedBackward = make_row("fused_bwd_cuda", "fused", Pass::backward,
                                          "cuBLAS products, one softmax pass over S x S", kFused);

}  // namespace tilewise::cuda
