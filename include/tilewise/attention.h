/// Exact attention, forward and backward.
///
///   tilewise::ForwardTensors t{.q = Tensor::bshd(q, DType::bfloat16, B, S, H, D), ...};
///   tilewise::forward(t, {.causal = Causal::bottom_right});
///
/// Shapes (logical axes; any strides): q (B, Hq, Sq, D), k (B, Hk, Sk, D), v (B, Hk, Sk, Dv), o (B,
/// Hq, Sq, Dv), lse float32 (B, Hq, Sq). Rank 3 is (B, S, D) with one head. Packed: q (1, Hq,
/// total_q, D), k (1, Hk, total_k, D), lse (Hq, total_q). Hq is a multiple of Hk. q, k, v have one
/// type, and o has it too.
///
/// Every function checks all arguments first (InvalidArgument names the one at fault) and writes
/// nothing on an error. Safe from many threads at once. docs/numerics.md says what is guaranteed;
/// CONTRACT rules are cited by number.
#pragma once

#include <vector>

#include "tilewise/error.h"
#include "tilewise/expression.h"
#include "tilewise/plan.h"
#include "tilewise/runtime.h"
#include "tilewise/spec.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// What an implementation keeps from its forward for its own backward beyond O and LSE:
/// Plan::saved_bytes of memory on the tensors' device, 256-byte aligned. flash keeps nothing. Not
/// given: forward drops it, backward recomputes it.
struct SavedState {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

struct ForwardTensors {
  Tensor q, k, v;
  Tensor o;    ///< written: every row; fully masked rows are 0
  Tensor lse;  ///< written when given: natural log, every row; fully masked rows are -inf
  SavedState saved = {};
};

struct BackwardTensors {
  Tensor q, k, v;
  Tensor o, lse;      ///< from forward with the same spec
  Tensor d_o;         ///< gradient of O; any strides, 0 too
  Tensor d_lse;       ///< gradient of LSE, float32, shape of lse; may be not given
  Tensor dq, dk, dv;  ///< written; shapes and type of q, k, v
  Tensor dbias;       ///< written when given: shape and type of spec.bias, summed in float32
  Tensor dsinks;      ///< written when given: float32 (Hq)
  SavedState saved = {};
  /// Written where given: one for each of spec.score_expression.captures(), of its shape and type,
  /// summed in float32. Empty: no gradients of captured tensors.
  std::vector<Tensor> dcaptures = {};
};

/// Chooses a kernel for a problem. Only sizes, strides, types and devices are read; data may be
/// null. `machine` is the one at hand when null. Throws InvalidArgument, Unsupported (with every
/// kernel's reason), DeviceError.
TILEWISE_API Plan plan(const ForwardTensors& tensors, const AttentionSpec& spec = {},
                       const Choice& choice = {}, const Hardware* machine = nullptr);
TILEWISE_API Plan plan(const BackwardTensors& tensors, const AttentionSpec& spec = {},
                       const Choice& choice = {}, const Hardware* machine = nullptr);

/// O = softmax(...) V and its log-sum-exp. FlashAttention-2, Dao 2023, Algorithm 1, for the flash
/// kernels. Returns the plan that ran; calls of one shape plan once. Asynchronous on CUDA: the
/// stream is never synchronised. Throws InvalidArgument, Unsupported, OutOfMemory, DeviceError,
/// CompileError.
TILEWISE_API Plan forward(const ForwardTensors& tensors, const AttentionSpec& spec = {},
                          const Launch& launch = {}, const Choice& choice = {});

/// The gradients of a scalar loss through O and LSE. FlashAttention-2, Algorithm 2, for the flash
/// kernels.
TILEWISE_API Plan backward(const BackwardTensors& tensors, const AttentionSpec& spec = {},
                           const Launch& launch = {}, const Choice& choice = {});

/// Runs a plan made earlier for tensors of the same sizes, types and strides and the same spec
/// (data may differ). With others its kernel decides anew: InvalidArgument where it refuses them or
/// needs more workspace than the plan has, or where the plan's numbers were changed.
TILEWISE_API void run(const Plan& plan, const ForwardTensors& tensors,
                      const AttentionSpec& spec = {}, const Launch& launch = {});
TILEWISE_API void run(const Plan& plan, const BackwardTensors& tensors,
                      const AttentionSpec& spec = {}, const Launch& launch = {});

/// Merges two partial results over disjoint keys, in place into (o, lse): the split-key identity
/// LSE = log(exp(LSE_a) + exp(LSE_b)), O = exp(LSE_a - LSE) O_a + exp(LSE_b - LSE) O_b, without
/// overflow. A part that saw no key (LSE = -inf) leaves the other's bits. o: (B, Hq, Sq, Dv) of any
/// float type, lse: float32 (B, Hq, Sq). CPU tensors.
TILEWISE_API void merge(Tensor o, Tensor lse, Tensor o_other, Tensor lse_other);

/// Library version, "0.1.0".
TILEWISE_API const char* version();

}  // namespace tilewise
