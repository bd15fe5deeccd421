/// The verbs of layers on a CUDA device: cuBLAS, opened at run time, and small kernels
/// (cuda/kernels/layers). Everything runs on one stream, and nothing but download() waits for it.
#pragma once

#include <array>
#include <initializer_list>
#include <vector>

#include "cuda/driver/cublas.h"
#include "cuda/driver/launch.h"
#include "cuda/jit/kernel.h"
#include "cuda/kernels/layers/steps_args.h"
#include "layers/ops.h"
#include "layers/run.h"

namespace tilewise::asam {

/// The kernels, in the order of their names in cuda_ops.cpp.
enum class Step : std::uint8_t {
  copy,
  add,
  activate,
  activate_backward,
  gelu_backward,
  columns,
  norm_columns,
  layer_norm,
  normalise,
  layer_norm_backward,
  drop_add,
  gate,
  gate_backward,
  mix,
  mix_backward,
  twice,
  twice_backward,
  embed,
  embed_backward,
  join_masks,
  read_out,
  read_out_backward,
  cross_entropy,
  look_for_infinities,
  adam,
  end_step,
  bin_means,
  bin_tokens,
  bin_features,
  bin_tokens_backward,
  bin_means_backward,
  bin_inputs_backward,
  pool_windows,
  pool_windows_backward,
  choice_means,
  choice_shares,
  choice_heads,
  choice_rows,
  choice_lists,
  choice_logits_backward,
  choice_near,
  choice_shares_backward,
  choice_centroids_backward,
  choice_temperature_backward,
  narrow,
  widen,
  product_64,
  product_32,
};
inline constexpr int kSteps = static_cast<int>(Step::product_32) + 1;

/// The low word of a trainer's draws, where the device reads it; null without one.
inline const unsigned* counter_of(const Drop& drop) {
  return drop.state == nullptr ? nullptr : reinterpret_cast<const unsigned*>(&drop.state->draws);
}

/// The source of a step's kernel, in a model that computes in `compute`.
cuda::KernelUnit step_unit(Step step, DType compute = DType::float32);

inline layer_steps::Activation device_activation(Activation f) {
  return static_cast<layer_steps::Activation>(f);
}

/// What the choice's kernels are given, without the memory between them.
layer_steps::ChoiceArgs choice_args(const Choice<float>& choice);

class CudaOps final : public Ops<float> {
 public:
  /// `memory` is the model's and outlives it.
  CudaOps(const Config& config, const Launch& launch, Memory& memory);

  void synchronize() override;
  void clear(void* x, std::int64_t bytes) override;
  void upload(void* to, const void* from, std::int64_t bytes) override;
  void download(void* to, const void* from, std::int64_t bytes) override;
  void copy(const float* x, float* y, std::int64_t elems) override;
  void add(const float* x, float* y, std::int64_t elems) override;
  void to_half(const float* x, std::uint16_t* half, Shape shape) override;
  void from_half(const std::uint16_t* half, float* x, Shape shape) override;
  void linear(Factor<float> x, const float* w, float* y, const Epilogue<float>& epilogue,
              LinearShape shape) override;
  void linear_backward(Factor<float> x, const float* w, Factor<float> dy, float* dx, float* dw,
                       LinearShape shape) override;
  void activate(float* z, const float* bias, float* y, Activation f, Shape shape) override;
  void activate_backward(const float* z, const float* dy, float* dz, float* dbias, Activation f,
                         Shape shape) override;
  void gelu_backward(const float* z, float* du, float* dz, const Drop& drop, Shape shape) override;
  void layer_norm(const float* x, const float* gamma, const float* beta, float* y,
                  float* statistics, Shape shape) override;
  void normalise(const float* x, const float* gamma, const float* beta, const float* statistics,
                 float* y, Shape shape) override;
  void layer_norm_backward(const float* x, const float* gamma, const float* statistics,
                           const float* dy, float* dx, float* dgamma, float* dbeta,
                           Shape shape) override;
  void drop_add(const float* x, const float* a, float* y, const Drop& drop, Shape shape) override;
  void pool_bins(const float* x, float* features, float* kept, TokenShape shape) override;
  void pool_bins_backward(const float* x, const float* kept, const float* d_features, float* dx,
                          TokenShape shape) override;
  void pool_windows(const float* x, Lengths lengths, float* features, TokenShape shape) override;
  void pool_windows_backward(const float* x, Lengths lengths, const float* features,
                             const float* d_features, float* dx, TokenShape shape) override;
  void gate(const float* c, const float* p, const float* threshold, const float* tau, float* g,
            Shape shape) override;
  void gate_backward(const float* c, const float* p, const float* threshold, const float* tau,
                     const float* g, const float* dg, float* dc, float* dp, float* d_threshold,
                     float* d_tau, Shape shape) override;
  void mix(Factor<float> o, const float* g, float* a, HeadShape shape) override;
  void mix_backward(Factor<float> o, const float* g, Factor<float> da, Stored<float> d_o, float* dg,
                    float* d_weight, HeadShape shape) override;
  void twice(Factor<float> qkv, Stored<float> q2, HeadShape shape) override;
  void twice_backward(Factor<float> dq2, Stored<float> dqkv, HeadShape shape) override;
  void choose(const Choice<float>& choice) override;
  void choose_backward(const Choice<float>& choice) override;
  void clustered_mask(Factor<float> qkv, const float* centroids, const float* temperature,
                      std::uint8_t* mask, HeadShape shape, std::int64_t clusters) override;
  void embed(const std::int32_t* ids, const float* table, float* y, Shape shape) override;
  void embed_backward(const std::int32_t* ids, const float* dy, float* d_table,
                      Shape shape) override;
  void join_masks(const JoinedMask& masks) override;
  void read_out(const float* x, Lengths lengths, float* y, Readout readout,
                TokenShape shape) override;
  void read_out_backward(const float* dy, Lengths lengths, float* dx, Readout readout,
                         TokenShape shape) override;
  void cross_entropy(const float* logits, const std::int32_t* labels, float* d_logits,
                     TrainState* state, Shape shape) override;
  void look_for_infinities(const float* g, std::int64_t elems, TrainState* state) override;
  void adam(float* w, const float* g, float* m, float* v, std::int64_t elems,
            const TrainOptions& options, const TrainState* state) override;
  void end_step(TrainState* state, const TrainOptions& options) override;

 private:
  template <class Args>
  void start(Step step, const Args& args, std::int64_t blocks, int rows = 1) {
    cuda::Kernel& kernel = kernels_[static_cast<std::size_t>(step)];
    if (kernel.function == nullptr) kernel = cuda::load(step_unit(step, compute_), device_);
    cuda::launch(kernel, {.x = blocks, .y = rows}, stream_, args);
  }
  /// Matrices as the products take them: of 16 bits where the model computes so.
  struct Matrix {
    Factor<float> data;
    std::int64_t rows, cols;
    bool transposed;
  };
  /// linear() by a kernel of its own, in float32.
  void multiply(const float* x, const float* w, float* y, const Epilogue<float>& epilogue,
                LinearShape shape);
  std::vector<cuda::MatrixBatch> factors(std::initializer_list<Matrix> matrices);

  /// What all kernels of a choice are given, and the first two of them: means and soft clusters.
  layer_steps::ChoiceArgs start_choice(const Choice<float>& choice);
  /// Blocks for a kernel that walks over `elems` elements by the whole grid.
  static std::int64_t blocks_for(std::int64_t elems);

  int device_;
  void* stream_;
  Memory& memory_;
  std::array<cuda::Kernel, kSteps> kernels_;  ///< loaded at their first use
  DType compute_;
  Buffer<std::byte> products_;  ///< cuBLAS's workspace
  std::array<Buffer<unsigned short>, 8> halves_;
  Buffer<float> d_tokens_, means_;
  Buffer<std::int32_t> highest_;
  /// Buffers of choose() and its backward.
  struct {
    Buffer<float> pooled, extremes, norms, cosine, share, d_cosine, d_scaled;
    Buffer<unsigned char> seen;
    Buffer<std::int32_t> counts;
  } choice_;
  std::int64_t vocabulary_;
};

}  // namespace tilewise::asam
