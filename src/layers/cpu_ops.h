/// The verbs of layers on the CPU, in float and in double. Products in float are the BLAS's; those
/// in double, and where there is no BLAS, are loops.
#pragma once

#include <algorithm>
#include <functional>

#include "layers/ops.h"
#include "problem/blocks.h"

namespace tilewise::asam {

template <class T>
class CpuOps final : public Ops<T> {
 public:
  explicit CpuOps(Executor& executor) : executor_(executor) {}

  void synchronize() override {}
  void clear(void* x, std::int64_t bytes) override;
  void upload(void* to, const void* from, std::int64_t bytes) override;
  void download(void* to, const void* from, std::int64_t bytes) override;
  void copy(const T* x, T* y, std::int64_t elems) override;
  void add(const T* x, T* y, std::int64_t elems) override;
  void linear(const T* x, const T* w, T* y, const Epilogue<T>& epilogue,
              LinearShape shape) override;
  void linear_backward(const T* x, const T* w, const T* dy, T* dx, T* dw,
                       LinearShape shape) override;
  void activate(T* z, const T* bias, T* y, Activation f, Shape shape) override;
  void activate_backward(const T* z, const T* dy, T* dz, T* dbias, Activation f,
                         Shape shape) override;
  void layer_norm(const T* x, const T* gamma, const T* beta, T* y, T* statistics,
                  Shape shape) override;
  void layer_norm_backward(const T* x, const T* gamma, const T* statistics, const T* dy, T* dx,
                           T* dgamma, T* dbeta, Shape shape) override;
  void drop_add(const T* x, const T* a, T* y, const Drop& drop, Shape shape) override;
  void pool_bins(const T* x, T* features, T* kept, TokenShape shape) override;
  void pool_bins_backward(const T* x, const T* kept, const T* d_features, T* dx,
                          TokenShape shape) override;
  void pool_windows(const T* x, Lengths lengths, T* features, TokenShape shape) override;
  void pool_windows_backward(const T* x, Lengths lengths, const T* features, const T* d_features,
                             T* dx, TokenShape shape) override;
  void gate(const T* c, const T* p, const T* threshold, const T* tau, T* g, Shape shape) override;
  void gate_backward(const T* c, const T* p, const T* threshold, const T* tau, const T* g,
                     const T* dg, T* dc, T* dp, T* d_threshold, T* d_tau, Shape shape) override;
  void mix(const T* o, const T* g, T* a, HeadShape shape) override;
  void mix_backward(const T* o, const T* g, const T* da, T* d_o, T* dg, T* d_weight,
                    HeadShape shape) override;
  void twice(const T* qkv, T* q2, HeadShape shape) override;
  void twice_backward(const T* dq2, T* dqkv, HeadShape shape) override;
  void choose(const Choice<T>& choice) override;
  void choose_backward(const Choice<T>& choice) override;
  void clustered_mask(const T* qkv, const T* centroids, const T* temperature, std::uint8_t* mask,
                      HeadShape shape, std::int64_t clusters) override;
  void embed(const std::int32_t* ids, const T* table, T* y, Shape shape) override;
  void embed_backward(const std::int32_t* ids, const T* dy, T* d_table, Shape shape) override;
  void join_masks(const JoinedMask& masks) override;
  void read_out(const T* x, Lengths lengths, T* y, Readout readout, TokenShape shape) override;
  void read_out_backward(const T* dy, Lengths lengths, T* dx, Readout readout,
                         TokenShape shape) override;
  void cross_entropy(const T* logits, const std::int32_t* labels, T* d_logits, TrainState* state,
                     Shape shape) override;
  void look_for_infinities(const T* g, std::int64_t elems, TrainState* state) override;
  void adam(T* w, const T* g, T* m, T* v, std::int64_t elems, const TrainOptions& options,
            const TrainState* state) override;
  void end_step(TrainState* state, const TrainOptions& options) override;

 private:
  /// body(begin, end) over parts of [0, count), in parallel where `count` items of `work` elements
  /// are worth it.
  template <class Body>
  void each(std::int64_t count, std::int64_t work, const Body& body) {
    constexpr std::int64_t kLeastWork = 1 << 15;
    const std::int64_t most = std::int64_t{2} * executor_.concurrency();
    const std::int64_t parts = std::min({count, most, count * work / kLeastWork});
    if (parts <= 1) return body(std::int64_t{0}, count);
    executor_.parallel_for(parts, [&](std::int64_t part, int) {
      body(count * part / parts, count * (part + 1) / parts);
    });
  }

  Executor& executor_;
};

extern template class CpuOps<float>;
extern template class CpuOps<double>;

}  // namespace tilewise::asam
