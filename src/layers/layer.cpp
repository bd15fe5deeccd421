#include "layers/layer.h"

#include <cmath>

namespace tilewise::asam {
namespace {

/// The feed-forward network is so many times as wide as the layer.
constexpr std::int64_t kWidening = 4;

/// The projections that a layer with a gate has beside its attention's, as published: nothing reads
/// them.
template <class T>
void declare_unread(Parameters<T>& parameters, const std::string& prefix, const Config& config) {
  const std::int64_t inner = config.heads * config.head_dim;
  declare_linear(parameters, prefix + "to_qkv", config.dim, 3 * inner, false);
  declare_linear(parameters, prefix + "to_out.0", inner, config.dim, true);
}

/// A Linear without a bias whose weights torch's xavier_uniform draws.
template <class T>
LinearWeights declare_xavier(Parameters<T>& parameters, const std::string& name, std::int64_t in,
                             std::int64_t out) {
  const Start start{Start::Kind::uniform, std::sqrt(6.0 / static_cast<double>(in + out))};
  return {.in = in,
          .out = out,
          .weight = parameters.declare(name + ".weight", {out, in}, start),
          .bias = {},
          .has_bias = false};
}

}  // namespace

template <class T>
Layer<T>::Layer(Parameters<T>& parameters, const std::string& prefix, const Config& config,
                int index)
    : config_(config), index_(index) {
  const std::int64_t inner = config.heads * config.head_dim;
  if (!norms_twice()) {
    qkv_ = declare_xavier(parameters, prefix + "qkv", config.dim, 3 * inner);
    out_ = declare_xavier(parameters, prefix + "out_proj", inner, config.dim);
  } else {
    const bool gated = config.kind == LayerKind::adaptive || config.adaptive_gate;
    if (gated) declare_unread(parameters, prefix, config);
    const std::string part = gated ? prefix + "adaptive_attn." : prefix;
    qkv_ = declare_linear(parameters, part + "to_qkv", config.dim, 3 * inner, false);
    out_ = declare_linear(parameters, part + "to_out.0", inner, config.dim, true);
  }
  norm_ = declare_norm(parameters, prefix + "norm", config.dim);
  first_ = declare_linear(parameters, prefix + "ffn.0", config.dim, kWidening * config.dim, true);
  second_ = declare_linear(parameters, prefix + "ffn.3", kWidening * config.dim, config.dim, true);
  if (norms_twice()) norm2_ = declare_norm(parameters, prefix + "ffn_norm", config.dim);
  mixer_ = make_mixer(parameters, prefix, config, index);
}

template <class T>
void Layer<T>::forward(const Run<T>& run, const T* x, T* y, Attended<T>& attended,
                       LayerKept<T>& kept, LayerScratch<T>& scratch) {
  T* qkv = project(run, x, kept);
  T* a = attended.a.room(run.memory, run.shape().rows() * config_.heads * config_.head_dim);
  mixer_->forward(run, kept.h.get(), qkv, attended, kept.mixer);
  widen(run, x, a, kept, scratch);
  add_to(run, second_, kept.u.get(), kept.x1.get(), y, Place::network, scratch);
}

template <class T>
void Layer<T>::recompute(const Run<T>& run, const T* x, const Attended<T>& attended,
                         LayerKept<T>& kept, LayerScratch<T>& scratch) {
  mixer_->recompute(run, project(run, x, kept), kept.mixer);
  widen(run, x, attended.a.get(), kept, scratch);
}

template <class T>
T* Layer<T>::project(const Run<T>& run, const T* x, LayerKept<T>& kept) const {
  const std::int64_t rows = run.shape().rows(), dim = config_.dim;
  T* h = kept.h.room(run.memory, rows * dim);
  T* qkv = kept.qkv.room(run.memory, rows * qkv_.out);
  run.ops.layer_norm(x, run.parameters.value(norm_.gamma), run.parameters.value(norm_.beta), h,
                     kept.statistics.room(run.memory, 2 * rows), {rows, dim});
  linear<T>(run, qkv_, h, qkv, rows);
  return qkv;
}

template <class T>
void Layer<T>::widen(const Run<T>& run, const T* x, const T* a, LayerKept<T>& kept,
                     LayerScratch<T>& scratch) const {
  const std::int64_t rows = run.shape().rows(), dim = config_.dim;
  const Parameters<T>& p = run.parameters;
  T* x1 = kept.x1.room(run.memory, rows * dim);
  T* u = kept.u.room(run.memory, rows * first_.out);
  add_to(run, out_, a, x, x1, Place::projection, scratch);
  const T* h2 = x1;
  if (norms_twice()) {
    T* normal = kept.h2.room(run.memory, rows * dim);
    run.ops.layer_norm(x1, p.value(norm2_.gamma), p.value(norm2_.beta), normal,
                       kept.statistics2.room(run.memory, 2 * rows), {rows, dim});
    h2 = normal;
  }
  // Backward alone wants what the activation receives.
  T* z = run.training ? kept.z.room(run.memory, rows * first_.out) : nullptr;
  linear<T>(run, first_, h2, u, rows, {.z = z, .f = Activation::gelu});
  const Drop hidden = run.drop(config_.dropout, index_, Place::hidden);
  if (hidden.p > 0.0) run.ops.drop_add(nullptr, u, u, hidden, {rows, first_.out});
}

template <class T>
void Layer<T>::add_to(const Run<T>& run, const LinearWeights& w, const T* a, const T* x, T* y,
                      Place place, LayerScratch<T>& scratch) const {
  const std::int64_t rows = run.shape().rows();
  const Drop drop = run.drop(config_.dropout, index_, place);
  if (drop.p == 0.0) return linear<T>(run, w, a, y, rows, {.residual = x});
  T* projected = scratch.projected.room(run.memory, rows * config_.dim);
  linear<T>(run, w, a, projected, rows);
  run.ops.drop_add(x, projected, y, drop, {rows, config_.dim});
}

template <class T>
void Layer<T>::backward(const Run<T>& run, const T* x, T* dx, Attended<T>& attended,
                        LayerKept<T>& kept, LayerScratch<T>& scratch) {
  const std::int64_t rows = run.shape().rows(), dim = config_.dim;
  const std::int64_t inner = config_.heads * config_.head_dim;
  const Parameters<T>& p = run.parameters;
  T* narrow = scratch.narrow.room(run.memory, rows * dim);
  T* wide = scratch.wide.room(run.memory, rows * first_.out);
  T* dh = scratch.dh.room(run.memory, rows * dim);
  T* da = scratch.da.room(run.memory, rows * inner);
  T* dqkv = scratch.dqkv.room(run.memory, 3 * rows * inner);

  // The feed-forward network.
  run.ops.drop_add(nullptr, dx, narrow, run.drop(config_.dropout, index_, Place::network),
                   {rows, dim});
  linear_backward<T>(run, second_, kept.u.get(), nullptr, narrow, narrow, wide, Activation::none,
                     rows);
  const Drop hidden = run.drop(config_.dropout, index_, Place::hidden);
  if (hidden.p > 0.0) run.ops.drop_add(nullptr, wide, wide, hidden, {rows, first_.out});
  const T* h2 = norms_twice() ? kept.h2.get() : kept.x1.get();
  linear_backward(run, first_, h2, kept.z.get(), wide, wide, dh, Activation::gelu, rows);
  if (norms_twice()) {
    run.ops.layer_norm_backward(kept.x1.get(), p.value(norm2_.gamma), kept.statistics2.get(), dh,
                                dx, p.gradient(norm2_.gamma), p.gradient(norm2_.beta), {rows, dim});
  } else {
    run.ops.add(dh, dx, rows * dim);
  }

  // The attention.
  run.ops.drop_add(nullptr, dx, narrow, run.drop(config_.dropout, index_, Place::projection),
                   {rows, dim});
  linear_backward<T>(run, out_, attended.a.get(), nullptr, narrow, narrow, da, Activation::none,
                     rows);
  // NOTE: the gate adds to dh before the projection's product would overwrite it: it comes to
  // `narrow`, which nobody needs any more.
  run.ops.clear(narrow, rows * dim * static_cast<std::int64_t>(sizeof(T)));
  mixer_->backward(run, kept.h.get(), kept.qkv.get(), attended, da, dqkv, narrow, kept.mixer,
                   scratch.mixer);
  linear_backward<T>(run, qkv_, kept.h.get(), nullptr, dqkv, dqkv, dh, Activation::none, rows);
  if (norms_twice()) run.ops.add(narrow, dh, rows * dim);
  run.ops.layer_norm_backward(x, p.value(norm_.gamma), kept.statistics.get(), dh, dx,
                              p.gradient(norm_.gamma), p.gradient(norm_.beta), {rows, dim});
}

template class Layer<float>;
template class Layer<double>;

}  // namespace tilewise::asam
