/// A layer: attention and a feed-forward network, each around a residual.
///
///   h = LN(x)                       flash, efficient: h2 = x1, the published layers' missing norm
///   x1 = x + drop(W_o mix(W_qkv h))
///   h2 = LN2(x1)
///   y = x1 + drop(W_2 drop(gelu(W_1 h2)))
#pragma once

#include "layers/mixer.h"

namespace tilewise::asam {

/// State that a layer's forward saves for its backward, beside what its attention does.
template <class T>
struct LayerKept {
  Buffer<T> h, statistics, qkv, x1, h2, statistics2, z, u;
  MixerKept<T> mixer;
};
/// Memory of one step, which the layers share.
template <class T>
struct LayerScratch {
  Buffer<T> projected, wide, narrow, da, dqkv, dh;
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
  void recompute(const Run<T>& run, const T* x, const Attended<T>& attended, LayerKept<T>& kept,
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
  /// qkv from x.
  T* project(const Run<T>& run, const T* x, LayerKept<T>& kept) const;
  /// From x and its attention to what the network's second Linear takes.
  void widen(const Run<T>& run, const T* x, const T* a, LayerKept<T>& kept,
             LayerScratch<T>& scratch) const;
  /// y = x + drop(a w^T + bias); y is not x.
  void add_to(const Run<T>& run, const LinearWeights& w, const T* a, const T* x, T* y, Place place,
              LayerScratch<T>& scratch) const;

  const Config& config_;
  int index_;
  LinearWeights qkv_, out_, first_, second_;
  NormWeights norm_, norm2_;
  std::unique_ptr<Mixer<T>> mixer_;
};

}  // namespace tilewise::asam
