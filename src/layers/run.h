/// Data that all parts of a model share: memory, parameters, and the current pass.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "layers/ops.h"

namespace tilewise::asam {

/// Gives memory on the model's device and counts it.
class Memory {
 public:
  Memory(Device device, const Launch& launch)
      : device_(device),
        stream_(launch.stream),
        allocator_(launch.allocator != nullptr ? *launch.allocator : default_allocator()) {}

  void* take(std::int64_t bytes) {
    void* data = allocator_.allocate(bytes, device_, stream_);
    bytes_ += bytes;
    return data;
  }
  void give(void* data, std::int64_t bytes) noexcept {
    allocator_.release(data, bytes, device_, stream_);
    bytes_ -= bytes;
    ++epoch_;
  }
  std::int64_t bytes() const { return bytes_; }

  /// Changes when memory goes, or what stays in it is made anew: a graph captured in another epoch
  /// reads what is no longer there.
  std::int64_t epoch() const { return epoch_; }
  void begin_epoch() { ++epoch_; }

 private:
  Device device_;
  void* stream_;
  Allocator& allocator_;
  std::int64_t bytes_ = 0;
  std::int64_t epoch_ = 0;
};

/// An array of the model's: it grows when a larger batch comes, and goes with the model.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(elems_, other.elems_);
    return *this;
  }
  ~Buffer() { drop(); }

  /// Room for `elems` elements; what was there is lost where it had to grow.
  T* room(Memory& memory, std::int64_t elems) {
    if (elems <= elems_) return data_;
    drop();
    data_ = static_cast<T*>(memory.take(elems * static_cast<std::int64_t>(sizeof(T))));
    memory_ = &memory;
    elems_ = elems;
    return data_;
  }
  T* get() const { return data_; }

 private:
  void drop() noexcept {
    if (data_ != nullptr) memory_->give(data_, elems_ * static_cast<std::int64_t>(sizeof(T)));
    data_ = nullptr;
    elems_ = 0;
  }

  Memory* memory_ = nullptr;
  T* data_ = nullptr;
  std::int64_t elems_ = 0;
};

/// A Buffer of T, or of 16 bits.
template <class T>
class StoredBuffer {
 public:
  Stored<T> room(Memory& memory, std::int64_t elems, bool half) {
    if (half) return Stored<T>::halves(half_.room(memory, elems));
    return wide_.room(memory, elems);
  }
  Stored<T> get() const {
    return half_.get() != nullptr ? Stored<T>::halves(half_.get()) : Stored<T>(wide_.get());
  }

 private:
  Buffer<T> wide_;
  Buffer<std::uint16_t> half_;
};

/// Workspace of the attention's calls, which follow one another: one piece that stays, so that a
/// step of a known shape takes no memory.
class HeldWorkspace final : public Allocator {
 public:
  explicit HeldWorkspace(Memory& memory) : memory_(memory) {}
  void* allocate(std::int64_t bytes, Device, void*) override { return room_.room(memory_, bytes); }
  void release(void*, std::int64_t, Device, void*) noexcept override {}

 private:
  Memory& memory_;
  Buffer<std::byte> room_;
};

/// The initial value of a parameter.
struct Start {
  enum class Kind : std::uint8_t { constant, uniform, normal } kind = Kind::constant;
  double size = 0.0;  ///< the constant, the bound, the standard deviation
};

/// The place of a parameter in the arrays of values and of gradients.
struct Weight {
  std::int64_t offset = 0;
};

/// All parameters of a model in one array, and their gradients in another, so that an optimizer's
/// step is one pass.
template <class T>
class Parameters {
 public:
  /// Before make().
  Weight declare(std::string name, std::vector<std::int64_t> shape, Start start);
  /// Takes the memory and draws the first values.
  void make(Memory& memory, Ops<T>& ops, const Config& config);

  T* value(Weight w) const { return values_.get() + w.offset; }
  T* gradient(Weight w) const { return gradients_.get() + w.offset; }
  T* values() const { return values_.get(); }
  T* gradients() const { return gradients_.get(); }
  std::int64_t elems() const { return elems_; }
  const std::vector<Parameter>& list() const { return list_; }

 private:
  std::vector<Parameter> list_;
  std::vector<Weight> weights_;
  std::vector<Start> starts_;
  std::int64_t elems_ = 0;
  Buffer<T> values_, gradients_;
};

/// The places where a layer draws random numbers.
enum class Place : std::uint32_t { projection, hidden, network, gate, pattern };

/// One pass over a batch.
template <class T>
struct Run {
  const Config& config;
  Ops<T>& ops;
  Memory& memory;
  Parameters<T>& parameters;
  Launch launch;
  std::int64_t batch = 0, tokens = 0;
  bool training = false;
  std::uint32_t draw = 0;
  const TrainState* state = nullptr;  ///< a trainer's
  Lengths lengths = nullptr;
  Tensor mask;  ///< (B, heads, n, n), strides of 0 where it broadcasts; may be undefined

  /// The model computes in 16 bits, and keeps what they leave.
  bool half() const { return config.compute != DType::float32; }
  /// A trainer's step: backward may write over what forward has kept.
  bool consumes() const { return state != nullptr; }
  /// Rows that steps between attentions take at a time: what lies between them has no more.
  std::int64_t most_rows() const {
    constexpr std::int64_t kRowsOfCpu = 4096, kRowsOfGpu = 8192;
    const bool on_host = config.device.type == DeviceType::cpu;
    return std::min(shape().rows(), on_host ? kRowsOfCpu : kRowsOfGpu);
  }
  /// body(first, rows) for all rows, most_rows() at a time.
  template <class Body>
  void each_part(const Body& body) const {
    const std::int64_t rows = shape().rows(), most = most_rows();
    for (std::int64_t at = 0; at < rows; at += most) body(at, std::min(most, rows - at));
  }

  TokenShape shape() const { return {batch, tokens, config.dim}; }
  HeadShape heads() const { return {batch, tokens, config.heads, config.head_dim}; }
  /// Dropout at `place` of layer `layer`. Nothing is dropped outside training.
  Drop drop(double p, int layer, Place place) const {
    constexpr std::uint32_t kPlacesOfLayer = 8;
    // Sites of layers begin where the attention's batch times heads does not reach.
    const std::uint32_t site = (1U << 31) + static_cast<std::uint32_t>(layer) * kPlacesOfLayer;
    return {.p = training ? p : 0.0,
            .seed = config.seed,
            .site = site + static_cast<std::uint32_t>(place),
            .draw = draw,
            .state = state};
  }
};

/// Linear(in -> out), with or without a bias.
struct LinearWeights {
  std::int64_t in = 0, out = 0;
  Weight weight, bias;
  bool has_bias = false;
};
template <class T>
LinearWeights declare_linear(Parameters<T>& parameters, const std::string& name, std::int64_t in,
                             std::int64_t out, bool bias);
/// y = f(x w^T + bias) + residual. The bias is that of w.
template <class T>
void linear(const Run<T>& run, const LinearWeights& w, Factor<T> x, T* y, std::int64_t rows,
            Epilogue<T> epilogue = {});
/// From dy to dz (which may be dy), dx where given, and the weights' gradients.
template <class T>
void linear_backward(const Run<T>& run, const LinearWeights& w, const T* x, const T* z, const T* dy,
                     T* dz, T* dx, Activation f, std::int64_t rows);

/// From the gradient dy: dx where given, and the gradients of w and of its bias where x is.
template <class T>
void linear_gradients(const Run<T>& run, const LinearWeights& w, Factor<T> x, Factor<T> dy, T* dx,
                      std::int64_t rows);

struct NormWeights {
  Weight gamma, beta;
};
template <class T>
NormWeights declare_norm(Parameters<T>& parameters, const std::string& name, std::int64_t dim);

}  // namespace tilewise::asam
