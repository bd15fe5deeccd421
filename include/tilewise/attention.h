/// Exact attention, forward and backward.
///
///   tilewise::ForwardTensors t{.q = Tensor::bshd(q, DType::bfloat16, B, S, H, D), ...};
///   tilewise::forward(t, {.causal = Causal::bottom_right});
///
/// Shapes, in logical axes with any strides:
///   dense: q (B, Hq, Sq, D), k (B, Hk, Sk, D), v (B, Hk, Sk, Dv), o (B, Hq, Sq, Dv)
///   packed: q (1, Hq, total_q, D), k (1, Hk, total_k, D)
///   lse: float32 (B, Hq, Sq), packed (Hq, total_q)
/// Rank 3 is (B, S, D) with one head. Hq is a multiple of Hk. q, k, v and o have one type.
///
/// Every function validates all arguments first. InvalidArgument names the wrong one, and nothing
/// is written on an error. Functions are thread-safe. docs/numerics.md lists the guarantees;
/// comments cite its rules as CONTRACT n. Outputs share no element with another tensor.
#pragma once

#include <vector>

#include "tilewise/error.h"
#include "tilewise/expression.h"
#include "tilewise/plan.h"
#include "tilewise/runtime.h"
#include "tilewise/spec.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// State that an implementation's forward saves for its backward, besides O and LSE. It has
/// Plan::saved_bytes on the tensors' device, aligned to 256 bytes. flash saves nothing. If not
/// given, forward saves nothing and backward recomputes it.
struct SavedState {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

struct ForwardTensors {
  Tensor q = {}, k = {}, v = {};
  Tensor o = {};    ///< output, every row; fully masked rows are 0
  Tensor lse = {};  ///< optional output: natural log, every row; fully masked rows are -inf
  SavedState saved = {};
};

struct BackwardTensors {
  Tensor q = {}, k = {}, v = {};
  Tensor o = {}, lse = {};           ///< from forward with the same spec
  Tensor d_o = {};                   ///< gradient of O; any strides, including 0
  Tensor d_lse = {};                 ///< optional gradient of LSE: float32, shape of lse
  Tensor dq = {}, dk = {}, dv = {};  ///< outputs with the shapes and type of q, k, v
  Tensor dbias = {};   ///< optional output: shape and type of spec.bias, summed in float32
  Tensor dsinks = {};  ///< optional output: float32 (Hq)
  SavedState saved = {};
  /// Optional outputs: one tensor per entry of spec.score_expression.captures(), with its shape and
  /// type, summed in float32. An empty vector requests no gradients of captured tensors.
  std::vector<Tensor> dcaptures = {};
};

/// Chooses a kernel for a problem. It reads only sizes, strides, types and devices; data may be
/// null. A null `machine` means this machine. Throws InvalidArgument, Unsupported (with every
/// kernel's reason), DeviceError.
TILEWISE_API Plan plan(const ForwardTensors& tensors, const AttentionSpec& spec = {},
                       const Choice& choice = {}, const Hardware* machine = nullptr);
TILEWISE_API Plan plan(const BackwardTensors& tensors, const AttentionSpec& spec = {},
                       const Choice& choice = {}, const Hardware* machine = nullptr);

/// Computes O = softmax(...) V and its log-sum-exp. The flash kernels follow FlashAttention-2 (Dao
/// 2023), Algorithm 1. Returns the plan that ran. Calls of the same shape share one plan. On CUDA
/// the call is asynchronous and never synchronises the stream. Throws InvalidArgument, Unsupported,
/// OutOfMemory, DeviceError, CompileError.
TILEWISE_API Plan forward(const ForwardTensors& tensors, const AttentionSpec& spec = {},
                          const Launch& launch = {}, const Choice& choice = {});

/// Computes the gradients of a scalar loss through O and LSE. The flash kernels follow
/// FlashAttention-2, Algorithm 2. Throws the same errors as forward().
TILEWISE_API Plan backward(const BackwardTensors& tensors, const AttentionSpec& spec = {},
                           const Launch& launch = {}, const Choice& choice = {});

/// Runs an earlier plan on tensors with the same sizes, types and strides, and with the same spec.
/// Data may differ. For other tensors, the plan's kernel decides again. Throws InvalidArgument if
/// the kernel refuses them or needs more workspace than the plan has, or if the plan's numbers were
/// changed.
TILEWISE_API void run(const Plan& plan, const ForwardTensors& tensors,
                      const AttentionSpec& spec = {}, const Launch& launch = {});
TILEWISE_API void run(const Plan& plan, const BackwardTensors& tensors,
                      const AttentionSpec& spec = {}, const Launch& launch = {});

/// Merges two partial results over disjoint keys in place into (o, lse), by the split-key identity
/// LSE = log(exp(LSE_a) + exp(LSE_b)), O = exp(LSE_a - LSE) O_a + exp(LSE_b - LSE) O_b, without
/// overflow. A part that saw no key (LSE = -inf) leaves the other's bits unchanged. o: (B, Hq, Sq,
/// Dv), any float type; lse: float32 (B, Hq, Sq). CPU tensors. Throws InvalidArgument.
TILEWISE_API void merge(Tensor o, Tensor lse, Tensor o_other, Tensor lse_other);

/// Version of the loaded library, "MAJOR.MINOR.PATCH". tilewise/version.h has the headers' version.
TILEWISE_API const char* version();

}  // namespace tilewise
