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
  const T* h = project(run, x, kept, scratch);
  mixer_->forward(run, h, kept.qkv.get(), attended, kept.mixer, scratch.mixer);
  feed(run, x, mixer_->output(run, attended, scratch.a), y, kept, scratch);
}

template <class T>
void Layer<T>::recompute(const Run<T>& run, const T* x, Attended<T>& attended, LayerKept<T>& kept,
                         LayerScratch<T>& scratch) {
  project(run, x, kept, scratch);
  mixer_->recompute(run, kept.qkv.get(), kept.mixer);
  feed(run, x, mixer_->output(run, attended, scratch.a), nullptr, kept, scratch);
}

template <class T>
const T* Layer<T>::first_norm(const Run<T>& run, const T* x, T* h, std::int64_t first,
                              std::int64_t rows, LayerKept<T>& kept, bool again) const {
  const std::int64_t dim = config_.dim;
  const T *gamma = run.parameters.value(norm_.gamma), *beta = run.parameters.value(norm_.beta);
  T* statistics = kept.statistics.room(run.memory, 2 * run.shape().rows()) + 2 * first;
  if (again) {
    run.ops.normalise(x + first * dim, gamma, beta, statistics, h, {rows, dim});
  } else {
    run.ops.layer_norm(x + first * dim, gamma, beta, h, statistics, {rows, dim});
  }
  return h;
}

template <class T>
const T* Layer<T>::project(const Run<T>& run, const T* x, LayerKept<T>& kept,
                           LayerScratch<T>& scratch) const {
  const std::int64_t dim = config_.dim;
  const bool gated = mixer_->sees_tokens();
  const std::int64_t room = gated ? run.shape().rows() : run.most_rows();
  T* h = scratch.h.room(run.memory, room * dim);
  const Stored<T> qkv = kept.qkv.room(run.memory, run.shape().rows() * qkv_.out, run.half());
  run.each_part([&](std::int64_t first, std::int64_t rows) {
    T* part = gated ? h + first * dim : h;
    first_norm(run, x, part, first, rows, kept, false);
    const Stored<T> to = qkv.from(first * qkv_.out);
    T* wide =
        to.half == nullptr ? to.wide : scratch.wide.room(run.memory, run.most_rows() * qkv_.out);
    linear<T>(run, qkv_, part, wide, rows);
    if (to.half != nullptr) run.ops.to_half(wide, to.half, {rows, qkv_.out});
  });
  return h;
}

template <class T>
Factor<T> Layer<T>::residual(const Run<T>& run, const T* x, Stored<T> a, const T*& x1,
                             std::int64_t first, std::int64_t rows, LayerKept<T>& kept,
                             LayerScratch<T>& scratch) const {
  const std::int64_t dim = config_.dim, all = run.shape().rows();
  // Without a norm, backward wants x1 as a factor alone.
  const bool half = run.half() && !norms_twice();
  Stored<T> keep;
  if (run.training) keep = kept.x1.room(run.memory, all * dim, half).from(first * dim);
  T* to = keep.wide != nullptr ? keep.wide : scratch.x1.room(run.memory, run.most_rows() * dim);
  add_to(run, out_, a.from(first * out_.in), x + first * dim, to, Place::projection, first, rows,
         scratch);
  x1 = to;
  if (keep.half != nullptr) run.ops.to_half(to, keep.half, {rows, dim});
  if (!norms_twice()) return keep.half != nullptr ? Factor<T>(keep) : Factor<T>(to);
  T* h2 = scratch.h2.room(run.memory, run.most_rows() * dim);
  run.ops.layer_norm(to, run.parameters.value(norm2_.gamma), run.parameters.value(norm2_.beta), h2,
                     kept.statistics2.room(run.memory, 2 * all) + 2 * first, {rows, dim});
  return h2;
}

template <class T>
void Layer<T>::feed(const Run<T>& run, const T* x, Stored<T> a, T* y, LayerKept<T>& kept,
                    LayerScratch<T>& scratch) const {
  const std::int64_t dim = config_.dim, width = first_.out;
  Stored<T> z;
  if (run.training) z = kept.z.room(run.memory, run.shape().rows() * width, run.half());
  const Drop hidden = run.drop(config_.dropout, index_, Place::hidden);
  run.each_part([&](std::int64_t first, std::int64_t rows) {
    const T* x1 = nullptr;
    const Factor<T> h2 = residual(run, x, a, x1, first, rows, kept, scratch);
    T* u = scratch.wide.room(run.memory, run.most_rows() * width);
    if (z.half != nullptr) {
      linear<T>(run, first_, h2, u, rows);
      run.ops.to_half(u, z.half + first * width, {rows, width});
      if (y != nullptr) run.ops.activate(u, nullptr, u, Activation::gelu, {rows, width});
    } else if (y == nullptr) {
      linear<T>(run, first_, h2, z.wide + first * width, rows);
    } else {
      T* at = z.wide == nullptr ? nullptr : z.wide + first * width;
      linear<T>(run, first_, h2, u, rows, {.z = at, .f = Activation::gelu});
    }
    if (y == nullptr) return;
    if (hidden.p > 0.0) run.ops.drop_add(nullptr, u, u, hidden.from(first), {rows, width});
    add_to(run, second_, u, x1, y + first * dim, Place::network, first, rows, scratch);
  });
}

template <class T>
void Layer<T>::add_to(const Run<T>& run, const LinearWeights& w, Factor<T> a, const T* x, T* y,
                      Place place, std::int64_t first, std::int64_t rows,
                      LayerScratch<T>& scratch) const {
  const Drop drop = run.drop(config_.dropout, index_, place);
  if (drop.p == 0.0) return linear<T>(run, w, a, y, rows, {.residual = x});
  T* projected = scratch.projected.room(run.memory, run.most_rows() * config_.dim);
  linear<T>(run, w, a, projected, rows);
  run.ops.drop_add(x, projected, y, drop.from(first), {rows, config_.dim});
}

template <class T>
const T* Layer<T>::dropped(const Run<T>& run, const T* dx, Place place, std::int64_t first,
                           std::int64_t rows, LayerScratch<T>& scratch) const {
  const Drop drop = run.drop(config_.dropout, index_, place);
  if (drop.p == 0.0) return dx;
  T* to = scratch.projected.room(run.memory, run.most_rows() * config_.dim);
  run.ops.drop_add(nullptr, dx, to, drop.from(first), {rows, config_.dim});
  return to;
}

template <class T>
void Layer<T>::backward(const Run<T>& run, const T* x, T* dx, Attended<T>& attended,
                        LayerKept<T>& kept, LayerScratch<T>& scratch) {
  feed_backward(run, dx, kept, scratch);
  attention_backward(run, x, dx, attended, kept, scratch);
}

template <class T>
void Layer<T>::feed_backward(const Run<T>& run, T* d, LayerKept<T>& kept,
                             LayerScratch<T>& scratch) const {
  const std::int64_t dim = config_.dim, width = first_.out, most = run.most_rows();
  T* du = scratch.wide.room(run.memory, most * width);
  T* dh = scratch.dh.room(run.memory, most * std::max(dim, out_.in));
  const Drop hidden = run.drop(config_.dropout, index_, Place::hidden);
  run.each_part([&](std::int64_t first, std::int64_t rows) {
    T* dx = d + first * dim;
    const T* dy = dropped(run, dx, Place::network, first, rows, scratch);
    linear_gradients<T>(run, second_, {}, dy, du, rows);
    const Stored<T> z = kept.z.get().from(first * width);
    const bool stays = z.half == nullptr && run.consumes();
    T* dz = stays ? z.wide : scratch.z.room(run.memory, most * width);
    if (z.half != nullptr) run.ops.from_half(z.half, dz, {rows, width});
    T* u = du;
    run.ops.gelu_backward(z.half != nullptr ? dz : z.wide, u, dz, hidden.from(first),
                          {rows, width});
    linear_gradients<T>(run, second_, u, dy, nullptr, rows);
    const Stored<T> x1 = kept.x1.get().from(first * dim);
    if (!norms_twice()) {
      linear_gradients<T>(run, first_, x1, dz, dh, rows);
      return run.ops.add(dh, dx, rows * dim);
    }
    const Parameters<T>& p = run.parameters;
    T* h2 = scratch.h2.room(run.memory, most * dim);
    const T* statistics = kept.statistics2.get() + 2 * first;
    run.ops.normalise(x1.wide, p.value(norm2_.gamma), p.value(norm2_.beta), statistics, h2,
                      {rows, dim});
    linear_gradients<T>(run, first_, h2, dz, dh, rows);
    run.ops.layer_norm_backward(x1.wide, p.value(norm2_.gamma), statistics, dh, dx,
                                p.gradient(norm2_.gamma), p.gradient(norm2_.beta), {rows, dim});
  });
}

template <class T>
Stored<T> Layer<T>::gradients(const Run<T>& run, LayerKept<T>& kept,
                              LayerScratch<T>& scratch) const {
  // z has had its last reader, and has room for them.
  if (run.consumes() && out_.in <= config_.dim) return kept.z.get();
  return scratch.gradients.room(run.memory, 4 * run.shape().rows() * out_.in, run.half());
}

template <class T>
void Layer<T>::attention_backward(const Run<T>& run, const T* x, T* d, Attended<T>& attended,
                                  LayerKept<T>& kept, LayerScratch<T>& scratch) {
  const std::int64_t dim = config_.dim, inner = out_.in, all = run.shape().rows();
  const Parameters<T>& p = run.parameters;
  const Stored<T> da = gradients(run, kept, scratch), dqkv = da.from(all * inner);
  const Stored<T> a = mixer_->output(run, attended, scratch.a);
  T* dh = scratch.dh.get();
  run.each_part([&](std::int64_t first, std::int64_t rows) {
    const T* dy = dropped(run, d + first * dim, Place::projection, first, rows, scratch);
    const Stored<T> to = da.from(first * inner);
    T* wide = to.half == nullptr ? to.wide : dh;
    linear_gradients<T>(run, out_, a.from(first * inner), dy, wide, rows);
    if (to.half != nullptr) run.ops.to_half(wide, to.half, {rows, inner});
  });
  const bool gated = mixer_->sees_tokens();
  T* h = scratch.h.room(run.memory, (gated ? all : run.most_rows()) * dim);
  T* d_gate = nullptr;
  if (gated) {
    d_gate = scratch.d_gate.room(run.memory, all * dim);
    run.ops.clear(d_gate, all * dim * static_cast<std::int64_t>(sizeof(T)));
    first_norm(run, x, h, 0, all, kept, true);
  }
  mixer_->backward(run, h, kept.qkv.get(), attended, da, dqkv, d_gate, kept.mixer, scratch.mixer);
  run.each_part([&](std::int64_t first, std::int64_t rows) {
    const T* part = gated ? h + first * dim : first_norm(run, x, h, first, rows, kept, true);
    linear_gradients<T>(run, qkv_, part, dqkv.from(first * qkv_.out), dh, rows);
    if (gated) run.ops.add(d_gate + first * dim, dh, rows * dim);
    run.ops.layer_norm_backward(x + first * dim, p.value(norm_.gamma),
                                kept.statistics.get() + 2 * first, dh, d + first * dim,
                                p.gradient(norm_.gamma), p.gradient(norm_.beta), {rows, dim});
  });
}

template class Layer<float>;
template class Layer<double>;

}  // namespace tilewise::asam
