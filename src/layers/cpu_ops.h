/// The verbs of layers on the CPU, in float and in double. Products in float are the BLAS's; those
/// in double, and where there is no BLAS, are loops. A model of 16 bits computes in float too.
#pragma once

#include <algorithm>
#include <functional>

#include "layers/run.h"
#include "problem/blocks.h"

namespace tilewise::asam {

/// `count` elements from `at` on, in `room` where they are of the 16-bit type `half`.
const float* read_row(const Factor<float>& x, DType half, std::int64_t at, std::int64_t count,
                      float* room);
const double* read_row(const Factor<double>& x, DType half, std::int64_t at, std::int64_t count,
                       double* room);
/// Where to write those elements, and to bring what was written in `room` into its place.
template <class T>
T* row_of(const Stored<T>& x, std::int64_t at, T* room) {
  return x.half != nullptr ? room : x.wide + at;
}
void write_row(const Stored<float>& x, DType half, std::int64_t at, std::int64_t count,
               const float* room);
void write_row(const Stored<double>& x, DType half, std::int64_t at, std::int64_t count,
               const double* room);

template <class T>
class CpuOps final : public Ops<T> {
 public:
  explicit CpuOps(Executor& executor) : executor_(executor) {}
  /// Of a model whose kept elements are of type `half`.
  CpuOps(Executor& executor, DType half, Memory& memory)
      : executor_(executor), half_(half), memory_(&memory) {}

  void synchronize() override {}
  void clear(void* x, std::int64_t bytes) override;
  void upload(void* to, const void* from, std::int64_t bytes) override;
  void download(void* to, const void* from, std::int64_t bytes) override;
  void copy(const T* x, T* y, std::int64_t elems) override;
  void add(const T* x, T* y, std::int64_t elems) override;
  void to_half(const T* x, std::uint16_t* half, Shape shape) override;
  void from_half(const std::uint16_t* half, T* x, Shape shape) override;
  void linear(Factor<T> x, const T* w, T* y, const Epilogue<T>& epilogue,
              LinearShape shape) override;
  void linear_backward(Factor<T> x, const T* w, Factor<T> dy, T* dx, T* dw,
                       LinearShape shape) override;
  void activate(T* z, const T* bias, T* y, Activation f, Shape shape) override;
  void activate_backward(const T* z, const T* dy, T* dz, T* dbias, Activation f,
                         Shape shape) override;
  void gelu_backward(const T* z, T* du, T* dz, const Drop& drop, Shape shape) override;
  void layer_norm(const T* x, const T* gamma, const T* beta, T* y, T* statistics,
                  Shape shape) override;
  void normalise(const T* x, const T* gamma, const T* beta, const T* statistics, T* y,
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
  void mix(Factor<T> o, const T* g, T* a, HeadShape shape) override;
  void mix_backward(Factor<T> o, const T* g, Factor<T> da, Stored<T> d_o, T* dg, T* d_weight,
                    HeadShape shape) override;
  void twice(Factor<T> qkv, Stored<T> q2, HeadShape shape) override;
  void twice_backward(Factor<T> dq2, Stored<T> dqkv, HeadShape shape) override;
  void choose(const Choice<T>& choice) override;
  void choose_backward(const Choice<T>& choice) override;
  void clustered_mask(Factor<T> qkv, const T* centroids, const T* temperature, std::uint8_t* mask,
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

  /// A factor's elements as T, in `room` where they are of 16 bits.
  const T* wide(const Factor<T>& x, Buffer<T>& room, Shape shape);

  Executor& executor_;
  DType half_ = DType::float32;
  Memory* memory_ = nullptr;
  Buffer<T> x_, dy_;
};

extern template class CpuOps<float>;
extern template class CpuOps<double>;

}  // namespace tilewise::asam
