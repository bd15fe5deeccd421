#include "layers/model.h"

#include <limits>
#include <optional>

#include "layers/backend.h"
#include "layers/layer.h"
#include "layers/replay.h"
#include "problem/arguments.h"
#include "problem/blocks.h"

namespace tilewise::asam {
namespace {

void require(bool holds, const char* name, const Tensor& t, const std::string& expected) {
  if (!holds) {
    throw InvalidArgument(std::string(name) + " is " +
                          (t.defined() ? t.describe() : std::string("not given")) + ": expected " +
                          expected);
  }
}

bool lies_without_gaps(const Tensor& t) {
  std::int64_t stride = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    const auto at = static_cast<std::size_t>(axis);
    if (t.sizes[at] != 1 && t.strides[at] != stride) return false;
    stride *= t.sizes[at];
  }
  return t.data != nullptr;
}

/// Throws InvalidArgument where a number of `t` is not in [0, end). On the host alone: a device's
/// kernels give NaN for it.
void require_below(const char* name, const Tensor& t, std::int64_t end) {
  if (t.device.type != DeviceType::cpu) return;
  const auto* values = static_cast<const std::int32_t*>(t.data);
  for (std::int64_t n = 0; n < t.numel(); ++n) {
    if (values[n] >= 0 && values[n] < end) continue;
    throw InvalidArgument(std::string(name) + ": entry " + std::to_string(n) + " is " +
                          std::to_string(values[n]) + ": expected 0 to " + std::to_string(end - 1));
  }
}

template <class T>
class ModelOf final : public Model::Impl {
 public:
  ModelOf(const Config& c, const Launch& l)
      : memory_(c.device, l), held_(memory_), ops_(make_ops<T>(c, l, memory_)) {
    config = c;
    launch = l;
    if (c.vocabulary > 0) {
      embedding_ = parameters_.declare("embedding.weight", {c.vocabulary, c.dim},
                                       {Start::Kind::normal, 1.0});
    }
    for (int n = 0; n < c.layers; ++n) {
      layers_.push_back(
          std::make_unique<Layer<T>>(parameters_, "layers." + std::to_string(n) + ".", config, n));
    }
    if (c.final_norm) norm_ = declare_norm(parameters_, "norm", c.dim);
    if (c.classes > 0) head_ = declare_linear(parameters_, "head", c.dim, c.classes, true);
    parameters_.make(memory_, *ops_, config);
  }

  const std::vector<Parameter>& parameters() const override { return parameters_.list(); }

  void forward(const Tensor& x, const Tensor& y, bool training, std::uint32_t draw,
               const Visible& visible) override {
    check_input(x);
    check_output("y", y, x);
    const Run<T> run = make_run(x, training, draw, visible);
    T* const out = static_cast<T*>(y.data);
    begin(run);
    if (!training) return replayed(inference_, run, x, y, {}, [&] { forward_pass(run, x, out); });
    forward_pass(run, x, out);
    saved_ = Saved{.batch = run.batch, .tokens = run.tokens, .draw = draw, .visible = visible};
  }

  void backward(const Tensor& x, const Tensor& dy, const Tensor& dx) override {
    check_input(x);
    check_output("dy", dy, x);
    if (!saved_) {
      throw InvalidArgument(
          "backward(): expected a forward() before it, without infer() or a step between them");
    }
    if (saved_->batch != x.sizes[0] || saved_->tokens != x.sizes[1]) {
      throw InvalidArgument("x is " + x.describe() + ": expected the shape of the last forward()");
    }
    require(!dx.defined() || config.vocabulary == 0, "dx", dx, "no gradient for token numbers");
    if (dx.defined()) {
      require(dx.rank == 3 && dx.sizes == x.sizes && dx.dtype == x.dtype && lies_without_gaps(dx),
              "dx", dx, "the shape and type of x");
    }
    backward_pass(make_run(x, true, saved_->draw, saved_->visible), x,
                  static_cast<const T*>(dy.data), static_cast<T*>(dx.data));
  }

  void clear_gradients() override {
    ops_->clear(parameters_.gradients(), parameters_.elems() * kElementBytes);
  }

  LayerInfo info(int index) const override {
    if (index < 0 || index >= config.layers) {
      throw InvalidArgument("index is " + std::to_string(index) + ": the model has " +
                            std::to_string(config.layers) + " layers");
    }
    if (last_batch_ == 0) throw InvalidArgument("info(): expected a forward() before it");
    return layers_[static_cast<std::size_t>(index)]->info(*ops_, last_batch_);
  }

  std::int64_t bytes() const override { return memory_.bytes(); }
  void synchronize() const override { ops_->synchronize(); }

  void start_training(const TrainOptions& options) override {
    TrainState first;
    first.scale = options.scale_loss ? static_cast<float>(options.initial_scale) : 1.0F;
    ops_->upload(state_.room(memory_, 1), &first, sizeof(first));
    for (Buffer<T>* moment : {&m_, &v_}) {
      ops_->clear(moment->room(memory_, parameters_.elems()), parameters_.elems() * kElementBytes);
    }
  }

  void train(const Tensor& x, const Tensor& labels, const TrainOptions& options,
             const Visible& visible) override {
    check_input(x);
    require(labels.rank == 1 && labels.sizes[0] == x.sizes[0] && labels.dtype == DType::int32 &&
                labels.device == config.device && lies_without_gaps(labels),
            "labels", labels, "int32 (B) on " + device_name(config.device));
    require_below("labels", labels, config.classes);
    Run<T> run = make_run(x, true, 0, visible);
    begin(run);
    run.state = state_.get();
    T* logits = logits_.room(memory_, run.batch * config.classes);
    T* d_logits = d_logits_.room(memory_, run.batch * config.classes);
    replayed(training_, run, x, labels, options,
             [&] { train_pass(run, x, labels, logits, d_logits, options); });
  }

  TrainStatus status() const override {
    TrainState state;
    ops_->download(&state, state_.get(), sizeof(state));
    return {
        .loss = state.loss, .scale = state.scale, .steps = state.steps, .skipped = state.skipped};
  }

 private:
  static constexpr auto kElementBytes = static_cast<std::int64_t>(sizeof(T));

  /// What the last forward() in training says to its backward().
  struct Saved {
    std::int64_t batch = 0, tokens = 0;
    std::uint32_t draw = 0;
    Visible visible;
  };

  /// A pass writes over what the last forward() saved.
  void begin(const Run<T>& run) {
    saved_.reset();
    last_batch_ = run.batch;
  }

  /// Does the work, as a graph where the model is asked to. `options`: a step's.
  void replayed(Replay& replay, const Run<T>& run, const Tensor& x, const Tensor& y,
                const TrainOptions& options, const std::function<void()>& work) {
    if (!config.graph) return work();
    const Replay::Key key{.x = x.data,
                          .y = y.data,
                          .lengths = run.lengths,
                          .mask = run.mask.data,
                          .mask_strides = {run.mask.strides[0], run.mask.strides[1],
                                           run.mask.strides[2], run.mask.strides[3]},
                          .batch = run.batch,
                          .tokens = run.tokens,
                          .options = options};
    replay.run(config.device.index, launch.stream, memory_, key, work);
  }

  void train_pass(const Run<T>& run, const Tensor& x, const Tensor& labels, T* logits, T* d_logits,
                  const TrainOptions& options) {
    clear_gradients();
    forward_pass(run, x, logits);
    ops_->cross_entropy(logits, static_cast<const std::int32_t*>(labels.data), d_logits,
                        state_.get(), {run.batch, config.classes});
    backward_pass(run, x, d_logits, nullptr);
    ops_->look_for_infinities(parameters_.gradients(), parameters_.elems(), state_.get());
    ops_->adam(parameters_.values(), parameters_.gradients(), m_.get(), v_.get(),
               parameters_.elems(), options, state_.get());
    ops_->end_step(state_.get(), options);
  }

  Run<T> make_run(const Tensor& x, bool training, std::uint32_t draw, const Visible& visible) {
    Run<T> run{
        .config = config,
        .ops = *ops_,
        .memory = memory_,
        .parameters = parameters_,
        .launch = {.stream = launch.stream, .allocator = &held_, .executor = launch.executor},
        .batch = x.sizes[0],
        .tokens = x.sizes[1],
        .training = training,
        .draw = draw};
    if (visible.lengths.defined()) {
      arguments::require_shape("lengths", visible.lengths, DType::int32, {run.batch}, "(B)");
      arguments::require_device("lengths", visible.lengths, config.device);
      require(lies_without_gaps(visible.lengths), "lengths", visible.lengths, "no gaps");
      run.lengths = static_cast<const std::int32_t*>(visible.lengths.data);
      const bool on_host = config.device.type == DeviceType::cpu;
      for (std::int64_t b = 0; on_host && b < run.batch; ++b) {
        if (run.lengths[b] >= 0 && run.lengths[b] <= run.tokens) continue;
        throw InvalidArgument("lengths: entry " + std::to_string(b) + " is " +
                              std::to_string(run.lengths[b]) + ": expected 0 to " +
                              std::to_string(run.tokens));
      }
    }
    if (visible.mask.defined()) {
      arguments::require_device("mask", visible.mask, config.device);
      require(visible.mask.dtype == DType::boolean && visible.mask.data != nullptr, "mask",
              visible.mask, "bool");
      run.mask =
          arguments::expand("mask", visible.mask, {run.batch, config.heads, run.tokens, run.tokens},
                            "(B, heads, n, n)");
    }
    if (config.kind == LayerKind::adaptive) check_lists(x);
    return run;
  }

  /// The adaptive layer's lists have room for every pair of blocks, for every head twice, and count
  /// in 32 bits.
  void check_lists(const Tensor& x) const {
    const std::int64_t blocks = ceil_div(x.sizes[1], config.block_size);
    const std::int64_t pairs = 2 * config.heads * blocks * blocks;
    require(pairs <= std::numeric_limits<std::int32_t>::max() / x.sizes[0], "x", x,
            "block lists of fewer than 2^31 pairs: take a larger config.block_size or a smaller "
            "batch");
  }

  void check_input(const Tensor& x) const {
    const bool ids = config.vocabulary > 0;
    const DType dtype = ids ? DType::int32 : config.dtype;
    const bool shaped = ids ? x.rank == 2 : x.rank == 3 && x.sizes[2] == config.dim;
    const std::string shape = ids ? " (B, n)" : " (B, n, " + std::to_string(config.dim) + ")";
    require(
        shaped && x.dtype == dtype && x.device == config.device && x.numel() > 0 &&
            lies_without_gaps(x),
        "x", x,
        std::string(dtype_name(dtype)) + shape + " without gaps on " + device_name(config.device));
    if (ids) require_below("x", x, config.vocabulary);
  }
  void check_output(const char* name, const Tensor& y, const Tensor& x) const {
    const bool tokens = config.classes == 0;
    const std::int64_t last = tokens ? config.dim : config.classes;
    const bool shaped = tokens ? y.rank == 3 && y.sizes[1] == x.sizes[1] && y.sizes[2] == last
                               : y.rank == 2 && y.sizes[1] == last;
    require(shaped && y.sizes[0] == x.sizes[0] && y.dtype == config.dtype &&
                y.device == config.device && lies_without_gaps(y),
            name, y,
            std::string(dtype_name(config.dtype)) +
                (tokens ? " with the sizes of the tokens" : " (B, classes)") + " without gaps on " +
                device_name(config.device));
  }

  /// Memory that layer n keeps for its backward: `all`'s entry n, or the first where nothing is
  /// kept.
  template <class Kept>
  Kept& kept_by(std::vector<Kept>& all, bool keeps, std::size_t n) {
    const std::size_t count = keeps ? layers_.size() : 1;
    if (all.size() < count) all.resize(count);
    return all[keeps ? n : 0];
  }
  LayerKept<T>& kept_by(const Run<T>& run, std::size_t n) {
    return kept_by(kept_, run.training && !config.recompute, n);
  }
  Attended<T>& attended_by(const Run<T>& run, std::size_t n) {
    return kept_by(attended_, run.training, n);
  }

  /// Inputs of the layers, and the output of the last: all in training, else one.
  T* tokens(const Run<T>& run, std::size_t n) {
    const std::size_t at = run.training ? n : 0;
    if (tokens_.size() <= at) tokens_.resize(at + 1);
    return tokens_[at].room(memory_, run.shape().elems());
  }

  void forward_pass(const Run<T>& run, const Tensor& x, T* y) {
    const TokenShape shape = run.shape();
    T* h = tokens(run, 0);
    if (config.vocabulary > 0) {
      ops_->embed(static_cast<const std::int32_t*>(x.data), parameters_.value(embedding_), h,
                  {shape.rows(), shape.dim});
    } else {
      ops_->copy(static_cast<const T*>(x.data), h, shape.elems());
    }
    recent_ = layers_.size();  // no layer's, should one fail
    for (std::size_t n = 0; n < layers_.size(); ++n) {
      T* next = tokens(run, n + 1);
      layers_[n]->forward(run, tokens(run, n), next, attended_by(run, n), kept_by(run, n),
                          scratch_);
      recent_ = n;
    }
    T* const features = tokens(run, layers_.size());
    const bool reads = config.classes > 0;
    const T* out = features;
    if (config.final_norm) {
      T* normal = reads ? passing(shape) : y;
      ops_->layer_norm(features, parameters_.value(norm_.gamma), parameters_.value(norm_.beta),
                       normal, statistics_.room(memory_, 2 * shape.rows()),
                       {shape.rows(), shape.dim});
      out = normal;
    } else if (!reads) {
      ops_->copy(features, y, shape.elems());
    }
    if (!reads) return;
    T* pooled = pooled_.room(memory_, run.batch * shape.dim);
    ops_->read_out(out, run.lengths, pooled, config.readout, shape);
    linear<T>(run, head_, pooled, y, run.batch);
  }

  void backward_pass(const Run<T>& run, const Tensor& x, const T* dy, T* dx) {
    const TokenShape shape = run.shape();
    T* features = tokens(run, layers_.size());
    T* d = run.consumes() ? features : d_tokens_.room(memory_, shape.elems());
    T* d_out = config.final_norm ? passing(shape) : d;
    if (config.classes > 0) {
      T* d_pooled = d_pooled_.room(memory_, run.batch * shape.dim);
      T* dz = dz_.room(memory_, run.batch * config.classes);
      ops_->copy(dy, dz, run.batch * config.classes);
      linear_backward<T>(run, head_, pooled_.get(), nullptr, dz, dz, d_pooled, Activation::none,
                         run.batch);
      ops_->read_out_backward(d_pooled, run.lengths, d_out, config.readout, shape);
    } else {
      ops_->copy(dy, d_out, shape.elems());
    }
    if (config.final_norm) norm_backward(run, features, d_out, d);
    for (std::size_t n = layers_.size(); n-- > 0;) {
      LayerKept<T>& kept = kept_by(run, n);
      Attended<T>& attended = attended_by(run, n);
      if (config.recompute && recent_ != n) {
        recent_ = layers_.size();  // no layer's, should this fail
        layers_[n]->recompute(run, tokens(run, n), attended, kept, scratch_);
        recent_ = n;
      }
      layers_[n]->backward(run, tokens(run, n), d, attended, kept, scratch_);
    }
    if (config.vocabulary > 0) {
      ops_->embed_backward(static_cast<const std::int32_t*>(x.data), d,
                           parameters_.gradient(embedding_), {shape.rows(), shape.dim});
    } else if (dx != nullptr) {
      ops_->copy(d, dx, shape.elems());
    }
  }

  /// Features of all tokens for a moment: where attention has its workspace.
  T* passing(const TokenShape& shape) {
    return static_cast<T*>(held_.allocate(shape.elems() * kElementBytes, {}, nullptr));
  }

  /// dx of the last norm's input x from dy. dx may be x.
  void norm_backward(const Run<T>& run, const T* x, const T* dy, T* dx) {
    const std::int64_t dim = config.dim;
    T* copied =
        scratch_.dh.room(memory_, run.most_rows() * std::max(dim, config.heads * config.head_dim));
    run.each_part([&](std::int64_t first, std::int64_t rows) {
      const std::int64_t at = first * dim;
      ops_->copy(x + at, copied, rows * dim);
      ops_->clear(dx + at, rows * dim * kElementBytes);
      ops_->layer_norm_backward(
          copied, parameters_.value(norm_.gamma), statistics_.get() + 2 * first, dy + at, dx + at,
          parameters_.gradient(norm_.gamma), parameters_.gradient(norm_.beta), {rows, dim});
    });
  }

  Memory memory_;
  HeldWorkspace held_;
  std::unique_ptr<Ops<T>> ops_;
  Parameters<T> parameters_;
  Weight embedding_;
  std::vector<std::unique_ptr<Layer<T>>> layers_;
  NormWeights norm_;
  LinearWeights head_;

  std::vector<LayerKept<T>> kept_;
  std::vector<Attended<T>> attended_;
  std::vector<Buffer<T>> tokens_;
  LayerScratch<T> scratch_;
  Buffer<T> statistics_, pooled_, d_tokens_, d_pooled_, dz_;
  std::size_t recent_ = 0;  ///< the layer whose state is in memory that all share
  std::int64_t last_batch_ = 0;
  std::optional<Saved> saved_;
  Replay inference_, training_;

  Buffer<TrainState> state_;
  Buffer<T> m_, v_, logits_, d_logits_;
};

}  // namespace

Model::Model(const Config& config, const Launch& launch) {
  Config c = config;
  if (c.kind == LayerKind::original) c.gate_hidden = 128;
  check_config(c);
  if (c.graph && launch.stream == nullptr) {
    throw InvalidArgument("launch.stream is the default stream: config.graph needs another stream");
  }
  if (c.dtype == DType::float64) {
    impl_ = std::make_unique<ModelOf<double>>(c, launch);
  } else {
    impl_ = std::make_unique<ModelOf<float>>(c, launch);
  }
}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const Config& Model::config() const { return impl_->config; }
const std::vector<Parameter>& Model::parameters() const { return impl_->parameters(); }
void Model::infer(const Tensor& x, const Tensor& y, const Visible& visible) {
  impl_->forward(x, y, false, 0, visible);
}
void Model::forward(const Tensor& x, const Tensor& y, std::uint32_t draw, const Visible& visible) {
  impl_->forward(x, y, true, draw, visible);
}
void Model::backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  impl_->backward(x, dy, dx);
}
void Model::clear_gradients() { impl_->clear_gradients(); }
LayerInfo Model::info(int index) const { return impl_->info(index); }
void Model::synchronize() const { impl_->synchronize(); }
std::int64_t Model::bytes() const { return impl_->bytes(); }

class Trainer::Impl {
 public:
  Model::Impl& model;
  TrainOptions options;
};

Trainer::Trainer(Model& model, const TrainOptions& options)
    : impl_(new Impl{.model = model.impl(), .options = options}) {
  if (model.config().classes < 1) {
    throw InvalidArgument("config.classes is 0: a trainer needs a model with classes");
  }
  check_options(options);
  model.impl().start_training(options);
}
Trainer::~Trainer() = default;
void Trainer::step(const Tensor& x, const Tensor& labels, const Visible& visible) {
  impl_->model.train(x, labels, impl_->options, visible);
}
TrainStatus Trainer::status() const { return impl_->model.status(); }

}  // namespace tilewise::asam
