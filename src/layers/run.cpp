#include "layers/run.h"

#include <cmath>
#include <numbers>

#include "problem/blocks.h"
#include "problem/philox.h"

namespace tilewise::asam {
namespace {

constexpr std::int64_t kAlignedElems = 64;

/// Numbers that a seed and a parameter's number decide.
class Random {
 public:
  Random(std::uint64_t seed, std::uint32_t stream)
      : mask_({.p = 0.0, .seed = seed}), stream_(stream) {}
  /// In (0, 1).
  double uniform(std::int64_t i, int which = 0) const {
    const PhiloxCounter words = mask_.words(stream_, i >> 32, i & 0xffffffff);
    return (static_cast<double>(words[static_cast<std::size_t>(which)]) + 0.5) * 0x1p-32;
  }
  double normal(std::int64_t i) const {
    return std::sqrt(-2.0 * std::log(uniform(i, 0))) *
           std::cos(2.0 * std::numbers::pi * uniform(i, 1));
  }

 private:
  DropoutMask mask_;
  std::uint32_t stream_;
};

}  // namespace

template <class T>
Weight Parameters<T>::declare(std::string name, std::vector<std::int64_t> shape, Start start) {
  Parameter p{.name = std::move(name), .value = {}, .gradient = {}};
  p.value.dtype = std::is_same_v<T, float> ? DType::float32 : DType::float64;
  p.value.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    p.value.sizes[axis] = shape[axis];
    p.value.strides[axis] = stride;
    stride *= shape[axis];
  }
  const Weight weight{elems_};
  elems_ += round_up(stride, kAlignedElems);
  list_.push_back(std::move(p));
  weights_.push_back(weight);
  starts_.push_back(start);
  return weight;
}

template <class T>
void Parameters<T>::make(Memory& memory, Ops<T>& ops, const Config& config) {
  values_.room(memory, elems_);
  gradients_.room(memory, elems_);
  std::vector<T> first(static_cast<std::size_t>(elems_));
  for (std::size_t n = 0; n < list_.size(); ++n) {
    Parameter& p = list_[n];
    const std::int64_t elems = p.value.numel();
    const Random random(config.seed, static_cast<std::uint32_t>(n));
    T* values = first.data() + weights_[n].offset;
    for (std::int64_t i = 0; i < elems; ++i) {
      const double size = starts_[n].size;
      values[i] = static_cast<T>(starts_[n].kind == Start::Kind::constant ? size
                                 : starts_[n].kind == Start::Kind::uniform
                                     ? size * (2.0 * random.uniform(i) - 1.0)
                                     : size * random.normal(i));
    }
    p.value.device = config.device;
    p.gradient = p.value;
    p.value.data = value(weights_[n]);
    p.gradient.data = gradient(weights_[n]);
  }
  const auto bytes = elems_ * static_cast<std::int64_t>(sizeof(T));
  ops.upload(values_.get(), first.data(), bytes);
  ops.clear(gradients_.get(), bytes);
}

template <class T>
LinearWeights declare_linear(Parameters<T>& parameters, const std::string& name, std::int64_t in,
                             std::int64_t out, bool bias) {
  const Start start{Start::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(in))};
  LinearWeights w{.in = in, .out = out, .weight = {}, .bias = {}, .has_bias = bias};
  w.weight = parameters.declare(name + ".weight", {out, in}, start);
  if (bias) w.bias = parameters.declare(name + ".bias", {out}, start);
  return w;
}

template <class T>
void linear(const Run<T>& run, const LinearWeights& w, Factor<T> x, T* y, std::int64_t rows,
            Epilogue<T> epilogue) {
  if (w.has_bias) epilogue.bias = run.parameters.value(w.bias);
  run.ops.linear(x, run.parameters.value(w.weight), y, epilogue, {rows, w.in, w.out});
}

template <class T>
void linear_backward(const Run<T>& run, const LinearWeights& w, const T* x, const T* z, const T* dy,
                     T* dz, T* dx, Activation f, std::int64_t rows) {
  T* dbias = w.has_bias ? run.parameters.gradient(w.bias) : nullptr;
  if (dbias != nullptr || f != Activation::none) {
    run.ops.activate_backward(z, dy, dz, dbias, f, {rows, w.out});
  }
  run.ops.linear_backward(x, run.parameters.value(w.weight), dz, dx,
                          run.parameters.gradient(w.weight), {rows, w.in, w.out});
}

template <class T>
void linear_gradients(const Run<T>& run, const LinearWeights& w, Factor<T> x, Factor<T> dy, T* dx,
                      std::int64_t rows) {
  const bool trains = x.wide != nullptr || x.half != nullptr;
  if (trains && w.has_bias) {
    T* same = const_cast<T*>(dy.wide);  // which is not written without an activation
    run.ops.activate_backward(nullptr, same, same, run.parameters.gradient(w.bias),
                              Activation::none, {rows, w.out});
  }
  run.ops.linear_backward(x, run.parameters.value(w.weight), dy, dx,
                          trains ? run.parameters.gradient(w.weight) : nullptr,
                          {rows, w.in, w.out});
}

template <class T>
NormWeights declare_norm(Parameters<T>& parameters, const std::string& name, std::int64_t dim) {
  NormWeights w;
  w.gamma = parameters.declare(name + ".weight", {dim}, {Start::Kind::constant, 1.0});
  w.beta = parameters.declare(name + ".bias", {dim}, {Start::Kind::constant, 0.0});
  return w;
}

template class Parameters<float>;
template class Parameters<double>;
template LinearWeights declare_linear(Parameters<float>&, const std::string&, std::int64_t,
                                      std::int64_t, bool);
template LinearWeights declare_linear(Parameters<double>&, const std::string&, std::int64_t,
                                      std::int64_t, bool);
template void linear(const Run<float>&, const LinearWeights&, Factor<float>, float*, std::int64_t,
                     Epilogue<float>);
template void linear(const Run<double>&, const LinearWeights&, Factor<double>, double*,
                     std::int64_t, Epilogue<double>);
template void linear_backward(const Run<float>&, const LinearWeights&, const float*, const float*,
                              const float*, float*, float*, Activation, std::int64_t);
template void linear_backward(const Run<double>&, const LinearWeights&, const double*,
                              const double*, const double*, double*, double*, Activation,
                              std::int64_t);
template void linear_gradients(const Run<float>&, const LinearWeights&, Factor<float>,
                               Factor<float>, float*, std::int64_t);
template void linear_gradients(const Run<double>&, const LinearWeights&, Factor<double>,
                               Factor<double>, double*, std::int64_t);
template NormWeights declare_norm(Parameters<float>&, const std::string&, std::int64_t);
template NormWeights declare_norm(Parameters<double>&, const std::string&, std::int64_t);

}  // namespace tilewise::asam
