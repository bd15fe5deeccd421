/// A layer: attention and a feed-forward network, each around a residual.
///
///   h = LN(x)                       flash, efficient: h2 = x1, the published layers' missing norm
///   x1 = x + drop(W_o mix(W_qkv h))
///   h2 = LN2(x1)
///   y = x1 + drop(W_2 drop(gelu(W_1 h2)))
#pragma once

#include "layers/mixer.h"

namespace tilewise::asam {

/// State that a layer's forward saves for its backward, beside what its attention does. The rest
/// follows from it: norms from their statistics, the activation's output from its input z.
template <class T>
struct LayerKept {
  Buffer<T> statistics, statistics2;
  StoredBuffer<T> qkv, x1, z;
  MixerKept<T> mixer;
};
/// Memory of one step, which the layers share. The first seven have the rows of a part.
template <class T>
struct LayerScratch {
  Buffer<T> projected, wide, z, x1, h2, dh, h;
  Buffer<T> a, d_gate;
  StoredBuffer<T> gradients;  ///< of a and of qkv
  MixerScratch<T> mixer;
};

template <class T>
class Layer {
 public:
  /// `prefix` names the parameters: "layers.0.".
  Layer(Parameters<T>& parameters, const std::string& prefix, const Config& config, int index);

  /// y (B, n, dim) from x; y may be x.
  void forward(const Run<T>& run, const T* x, T* y, Attended<T>& attended, LayerKept<T>& kept,
               LayerScratch<T>& scratch);
  /// `kept` of the last forward from its x and its attention, where another layer's has replaced
  /// it.
  void recompute(const Run<T>& run, const T* x, Attended<T>& attended, LayerKept<T>& kept,
                 LayerScratch<T>& scratch);
  /// dx from dy, in place.
  void backward(const Run<T>& run, const T* x, T* dx, Attended<T>& attended, LayerKept<T>& kept,
                LayerScratch<T>& scratch);
  /// Describes the last forward.
  LayerInfo info(Ops<T>& ops, std::int64_t batch) const { return mixer_->info(ops, batch); }

 private:
  bool norms_twice() const {
    return config_.kind == LayerKind::original || config_.kind == LayerKind::adaptive;
  }
  /// The first norm of rows from `first` on: anew with its statistics, or again from them.
  const T* first_norm(const Run<T>& run, const T* x, T* h, std::int64_t first, std::int64_t rows,
                      LayerKept<T>& kept, bool again) const;
  /// qkv from x, and the tokens that the gate sees where there is one.
  const T* project(const Run<T>& run, const T* x, LayerKept<T>& kept,
                   LayerScratch<T>& scratch) const;
  /// From x and its attention to y; without y no further than z.
  void feed(const Run<T>& run, const T* x, Stored<T> a, T* y, LayerKept<T>& kept,
            LayerScratch<T>& scratch) const;
  /// x1 of rows from `first` on, and what the network's first Linear takes.
  Factor<T> residual(const Run<T>& run, const T* x, Stored<T> a, const T*& x1, std::int64_t first,
                     std::int64_t rows, LayerKept<T>& kept, LayerScratch<T>& scratch) const;
  /// y = x + drop(a w^T + bias) for rows from `first` on; y is not x.
  void add_to(const Run<T>& run, const LinearWeights& w, Factor<T> a, const T* x, T* y, Place place,
              std::int64_t first, std::int64_t rows, LayerScratch<T>& scratch) const;
  /// drop(dx), which may be dx.
  const T* dropped(const Run<T>& run, const T* dx, Place place, std::int64_t first,
                   std::int64_t rows, LayerScratch<T>& scratch) const;
  /// dx of x1 from that of y, in place.
  void feed_backward(const Run<T>& run, T* dx, LayerKept<T>& kept, LayerScratch<T>& scratch) const;
  /// dx of x from that of x1, in place.
  void attention_backward(const Run<T>& run, const T* x, T* dx, Attended<T>& attended,
                          LayerKept<T>& kept, LayerScratch<T>& scratch);
  /// Room for the gradients of a and of qkv, in turn.
  Stored<T> gradients(const Run<T>& run, LayerKept<T>& kept, LayerScratch<T>& scratch) const;

  const Config& config_;
  int index_;
  LinearWeights qkv_, out_, first_, second_;
  NormWeights norm_, norm2_;
  std::unique_ptr<Mixer<T>> mixer_;
};

}  // namespace tilewise::asam
