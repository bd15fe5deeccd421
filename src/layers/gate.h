/// The gates: a small network on pooled features that says how far each head attends sparsely. The
/// published one and the working one differ in their features.
#pragma once

#include "layers/run.h"

namespace tilewise::asam {

/// Linear, ReLU, Linear and perhaps a sigmoid: from the gate's hidden features to a number a head.
template <class T>
class GateHead {
 public:
  GateHead(Parameters<T>& parameters, const std::string& name, std::int64_t hidden,
           std::int64_t outputs, Activation last);
  void forward(const Run<T>& run, const T* x);
  /// d_hidden += the gradient from dy [batch, outputs].
  void backward(const Run<T>& run, const T* x, const T* dy, T* d_hidden, T* scratch);
  T* output() const { return last_ == Activation::none ? z2_.get() : y_.get(); }
  std::int64_t outputs() const { return second_.out; }

 private:
  Activation last_;
  LinearWeights first_, second_;
  Buffer<T> z1_, u1_, z2_, y_, dz1_, dz2_;
};

template <class T>
class Gate {
 public:
  Gate(Parameters<T>& parameters, const std::string& name, const Config& config, int layer);

  /// From the layer's normalised tokens h (B, n, dim).
  void forward(const Run<T>& run, const T* h);
  /// dh += the gradients from dg (B, heads) and, where given, d_logits.
  void backward(const Run<T>& run, const T* h, const T* dg, const T* d_logits, T* dh);

  T* values() const { return g_.get(); }  ///< (B, heads)
  T* confidence() const { return confidence_.output(); }
  T* logits() const { return selector_.output(); }
  std::int64_t logits_of_sequence() const { return selector_.outputs(); }

 private:
  bool sees_windows_;
  int layer_;
  LinearWeights projection_;
  NormWeights norm_;
  GateHead<T> complexity_, confidence_, selector_;
  Weight threshold_, temperature_;
  Buffer<T> features_, kept_, z_, statistics_, normal_, hidden_, g_;
  Buffer<T> d_features_, d_hidden_, d_normal_, d_z_, d_complexity_, d_confidence_, scratch_;
};

}  // namespace tilewise::asam
