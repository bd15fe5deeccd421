#include "layers/gate.h"

#include "layers/pools.h"

namespace tilewise::asam {

template <class T>
GateHead<T>::GateHead(Parameters<T>& parameters, const std::string& name, std::int64_t hidden,
                      std::int64_t outputs, Activation last)
    : last_(last),
      first_(declare_linear(parameters, name + ".0", hidden, hidden / 2, true)),
      second_(declare_linear(parameters, name + ".2", hidden / 2, outputs, true)) {}

template <class T>
void GateHead<T>::forward(const Run<T>& run, const T* x) {
  T* z1 = z1_.room(run.memory, run.batch * first_.out);
  T* u1 = u1_.room(run.memory, run.batch * first_.out);
  T* z2 = z2_.room(run.memory, run.batch * second_.out);
  linear<T>(run, first_, x, u1, run.batch, {.z = z1, .f = Activation::relu});
  if (last_ == Activation::none) return linear<T>(run, second_, u1, z2, run.batch);
  T* y = y_.room(run.memory, run.batch * second_.out);
  linear<T>(run, second_, u1, y, run.batch, {.z = z2, .f = last_});
}

template <class T>
void GateHead<T>::backward(const Run<T>& run, const T* x, const T* dy, T* d_hidden, T* scratch) {
  T* dz1 = dz1_.room(run.memory, run.batch * first_.out);
  T* dz2 = dz2_.room(run.memory, run.batch * second_.out);
  linear_backward(run, second_, u1_.get(), z2_.get(), dy, dz2, dz1, last_, run.batch);
  linear_backward(run, first_, x, z1_.get(), dz1, dz1, scratch, Activation::relu, run.batch);
  run.ops.add(scratch, d_hidden, run.batch * first_.in);
}

template <class T>
Gate<T>::Gate(Parameters<T>& parameters, const std::string& name, const Config& config, int layer)
    : sees_windows_(config.kind == LayerKind::adaptive),
      layer_(layer),
      projection_(
          declare_linear(parameters, name + ".feature_proj.0",
                         sees_windows_ ? kWindowFeatures * config.dim : pool_bin_count(config.dim),
                         config.gate_hidden, true)),
      norm_(declare_norm(parameters, name + ".feature_proj.1", config.gate_hidden)),
      complexity_(parameters, name + ".complexity_estimator", config.gate_hidden, config.heads,
                  Activation::none),
      confidence_(parameters, name + ".confidence_predictor", config.gate_hidden, config.heads,
                  Activation::sigmoid),
      selector_(parameters, name + ".pattern_selector", config.gate_hidden,
                sees_windows_ ? config.heads * 5 : 4, Activation::none),
      threshold_(parameters.declare(name + ".sparse_threshold", {config.heads},
                                    {Start::Kind::constant, 0.5})),
      temperature_(parameters.declare(name + ".gate_temp", {1}, {Start::Kind::constant, 0.1})) {}

template <class T>
void Gate<T>::forward(const Run<T>& run, const T* h) {
  const std::int64_t hidden = projection_.out;
  T* features = features_.room(run.memory, run.batch * projection_.in);
  if (sees_windows_) {
    run.ops.pool_windows(h, run.lengths, features, run.shape());
  } else {
    const std::int64_t kept = run.config.dim + 2 * run.tokens + 3 * projection_.in;
    run.ops.pool_bins(h, features, kept_.room(run.memory, run.batch * kept), run.shape());
  }
  T* z = z_.room(run.memory, run.batch * hidden);
  T* normal = normal_.room(run.memory, run.batch * hidden);
  T* activated = hidden_.room(run.memory, run.batch * hidden);
  T* g = g_.room(run.memory, run.batch * run.config.heads);
  linear<T>(run, projection_, features, z, run.batch);
  run.ops.layer_norm(z, run.parameters.value(norm_.gamma), run.parameters.value(norm_.beta), normal,
                     statistics_.room(run.memory, 2 * run.batch), {run.batch, hidden});
  run.ops.activate(normal, nullptr, activated, Activation::gelu, {run.batch, hidden});
  const Drop drop = run.drop(run.config.gate_dropout, layer_, Place::gate);
  if (drop.p > 0.0) {
    run.ops.drop_add(nullptr, activated, activated, drop, {run.batch, hidden});
  }
  complexity_.forward(run, activated);
  confidence_.forward(run, activated);
  selector_.forward(run, activated);
  run.ops.gate(complexity_.output(), confidence_.output(), run.parameters.value(threshold_),
               run.parameters.value(temperature_), g, {run.batch, run.config.heads});
}

template <class T>
void Gate<T>::backward(const Run<T>& run, const T* h, const T* dg, const T* d_logits, T* dh) {
  const std::int64_t hidden = projection_.out, heads = run.config.heads;
  T* d_complexity = d_complexity_.room(run.memory, run.batch * heads);
  T* d_confidence = d_confidence_.room(run.memory, run.batch * heads);
  T* d_hidden = d_hidden_.room(run.memory, run.batch * hidden);
  T* d_normal = d_normal_.room(run.memory, run.batch * hidden);
  T* scratch = scratch_.room(run.memory, run.batch * hidden);
  T* d_z = d_z_.room(run.memory, run.batch * hidden);
  T* d_features = d_features_.room(run.memory, run.batch * projection_.in);
  const std::int64_t bytes = run.batch * hidden * static_cast<std::int64_t>(sizeof(T));
  run.ops.gate_backward(complexity_.output(), confidence_.output(),
                        run.parameters.value(threshold_), run.parameters.value(temperature_),
                        g_.get(), dg, d_complexity, d_confidence,
                        run.parameters.gradient(threshold_), run.parameters.gradient(temperature_),
                        {run.batch, heads});
  run.ops.clear(d_hidden, bytes);
  complexity_.backward(run, hidden_.get(), d_complexity, d_hidden, scratch);
  confidence_.backward(run, hidden_.get(), d_confidence, d_hidden, scratch);
  if (d_logits != nullptr) selector_.backward(run, hidden_.get(), d_logits, d_hidden, scratch);
  const Drop drop = run.drop(run.config.gate_dropout, layer_, Place::gate);
  if (drop.p > 0.0) run.ops.drop_add(nullptr, d_hidden, d_hidden, drop, {run.batch, hidden});
  run.ops.activate_backward(normal_.get(), d_hidden, d_normal, nullptr, Activation::gelu,
                            {run.batch, hidden});
  run.ops.clear(d_z, bytes);
  run.ops.layer_norm_backward(z_.get(), run.parameters.value(norm_.gamma), statistics_.get(),
                              d_normal, d_z, run.parameters.gradient(norm_.gamma),
                              run.parameters.gradient(norm_.beta), {run.batch, hidden});
  linear_backward<T>(run, projection_, features_.get(), z_.get(), d_z, d_z, d_features,
                     Activation::none, run.batch);
  if (sees_windows_) {
    run.ops.pool_windows_backward(h, run.lengths, features_.get(), d_features, dh, run.shape());
  } else {
    run.ops.pool_bins_backward(h, kept_.get(), d_features, dh, run.shape());
  }
}

template class GateHead<float>;
template class GateHead<double>;
template class Gate<float>;
template class Gate<double>;

}  // namespace tilewise::asam
