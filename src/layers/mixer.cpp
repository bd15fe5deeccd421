#include "layers/mixer.h"

#include <algorithm>

#include "layers/mask.h"

namespace tilewise::asam {
namespace {

Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> sizes,
                  Device device) {
  return Tensor::contiguous(data, dtype, sizes, device);
}

template <class T>
std::vector<float> floats(Ops<T>& ops, const T* data, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  if (data != nullptr) {
    ops.download(values.data(), data, count * static_cast<std::int64_t>(sizeof(T)));
  }
  return {values.begin(), values.end()};
}

/// What every gate says.
template <class T>
LayerInfo gate_info(Ops<T>& ops, std::int64_t batch, std::int64_t heads, const Gate<T>& gate) {
  LayerInfo info;
  info.gate = floats(ops, gate.values(), batch * heads);
  info.confidence = floats(ops, gate.confidence(), batch * heads);
  info.logits = floats(ops, gate.logits(), batch * gate.logits_of_sequence());
  const auto sparse =
      std::count_if(info.gate.begin(), info.gate.end(), [](float g) { return g > 0.5F; });
  info.sparse_ratio = static_cast<double>(sparse) / static_cast<double>(info.gate.size());
  return info;
}

/// A mask of pairs as join_masks() reads it.
JoinedMask::Part part_of(const Tensor& mask) {
  JoinedMask::Part part{.data = static_cast<const std::uint8_t*>(mask.data)};
  std::copy_n(mask.strides.begin(), 4, part.strides.begin());
  return part;
}

/// `first` (broadcast to 4 axes) and the batch's mask, each head `repeat` times, in `room`.
template <class T>
Tensor joined(const Run<T>& run, const Tensor& first, std::int64_t repeat,
              Buffer<std::uint8_t>& room) {
  const auto axis = [&](std::size_t n, std::int64_t full) {
    const bool spread = (first.defined() && first.strides[n] == 0) || !first.defined();
    return spread && run.mask.strides[n] == 0 ? 1 : full;
  };
  JoinedMask m;
  m.sizes = {axis(0, run.batch), axis(1, run.config.heads), run.tokens, run.tokens};
  m.repeat = m.sizes[1] == 1 ? 1 : repeat;
  m.first = part_of(first);
  m.second = part_of(run.mask);
  const std::int64_t heads = m.sizes[1] * m.repeat;
  m.out = room.room(run.memory, m.sizes[0] * heads * run.tokens * run.tokens);
  run.ops.join_masks(m);
  return contiguous(m.out, DType::boolean, {m.sizes[0], heads, run.tokens, run.tokens},
                    run.config.device);
}

/// The batch's mask and its lengths as one mask.
template <class T>
Tensor with_lengths(const Run<T>& run, Buffer<std::uint8_t>& room) {
  const bool masked = run.mask.defined();
  JoinedMask m;
  m.first = masked ? part_of(run.mask) : JoinedMask::Part{};
  m.lengths = run.lengths;
  m.sizes = {run.batch, m.first.strides[1] != 0 ? run.config.heads : 1,
             m.first.strides[2] != 0 ? run.tokens : 1, run.tokens};
  m.out = room.room(run.memory, m.sizes[0] * m.sizes[1] * m.sizes[2] * m.sizes[3]);
  run.ops.join_masks(m);
  return contiguous(m.out, DType::boolean, {m.sizes[0], m.sizes[1], m.sizes[2], m.sizes[3]},
                    run.config.device);
}

/// FlashASAMLayer's: every pair; EfficientASAMLayer's: those in a window.
template <class T>
class DenseMixer final : public Mixer<T> {
 public:
  using Mixer<T>::Mixer;

  void forward(const Run<T>& run, const T*, Stored<T> qkv, Attended<T>& attended,
               MixerKept<T>& kept, MixerScratch<T>&) override {
    const std::int64_t heads = run.config.heads, rows = run.shape().rows();
    float* lse = attended.lse.room(run.memory, rows * heads);
    const Stored<T> o = attended.o.room(run.memory, rows * heads * run.config.head_dim, run.half());
    attend(run,
           {.q = this->part(run, qkv, 0),
            .k = this->part(run, qkv, 1),
            .v = this->part(run, qkv, 2),
            .o = merged(run, o),
            .lse = this->lse_view(run, lse, heads)},
           spec(run, kept));
  }
  Stored<T> output(const Run<T>&, const Attended<T>& attended, Buffer<T>&) override {
    return attended.o.get();
  }

  void backward(const Run<T>& run, const T*, Stored<T> qkv, Attended<T>& attended, Stored<T> da,
                Stored<T> dqkv, T*, MixerKept<T>& kept, MixerScratch<T>&) override {
    attend_backward(run,
                    {.q = this->part(run, qkv, 0),
                     .k = this->part(run, qkv, 1),
                     .v = this->part(run, qkv, 2),
                     .o = merged(run, attended.o.get()),
                     .lse = this->lse_view(run, attended.lse.get(), run.config.heads),
                     .d_o = merged(run, da),
                     .dq = this->part(run, dqkv, 0),
                     .dk = this->part(run, dqkv, 1),
                     .dv = this->part(run, dqkv, 2)},
                    spec(run, kept));
  }

 private:
  static Tensor merged(const Run<T>& run, Stored<T> a) {
    const HeadShape s = run.heads();
    return head_view(run, a, s.heads, s.dim, s.heads * s.dim);
  }
  AttentionSpec spec(const Run<T>& run, MixerKept<T>& kept) const {
    const Config& config = run.config;
    const bool windowed = config.kind == LayerKind::efficient && run.tokens > config.window_size;
    AttentionSpec spec = visible_spec(run, run.mask);
    if (windowed) {
      spec.window = {.left = config.window_size / 2, .right = config.window_size / 2};
      // A window's diagonal goes with the lengths, and this layer's does not: they become a mask.
      if (run.lengths != nullptr) {
        spec.key_lengths = {};
        spec.mask = with_lengths(run, kept.joined);
      }
    }
    // A key of its own for each layer.
    const std::uint64_t seed = run.config.seed ^ (static_cast<std::uint64_t>(this->layer_) + 1)
                                                     << 32;
    if (run.training && config.dropout > 0.0) {
      spec.dropout = {.p = config.dropout, .seed = seed, .offset = run.draw};
      if (run.state != nullptr) {
        auto* draws = const_cast<std::int64_t*>(&run.state->draws);
        spec.dropout_counter = contiguous(draws, DType::int64, {1}, config.device);
      }
    }
    return spec;
  }
};

/// The published one: a masked attention and a dense one, mixed by the gate.
template <class T>
class PublishedMixer final : public Mixer<T> {
 public:
  PublishedMixer(Parameters<T>& parameters, const std::string& prefix, const Config& config,
                 int layer)
      : Mixer<T>(config, layer) {
    if (config.adaptive_gate) {
      gate_ = std::make_unique<Gate<T>>(parameters, prefix + "adaptive_attn.gate", config, layer);
    }
    const std::string pattern = prefix + "_pattern_modules." +
                                std::string(pattern_name(config.pattern)) + "_" +
                                std::to_string(config.pattern_tokens) + ".";
    const Start ones{Start::Kind::constant, 1.0};
    if (config.pattern == Pattern::hierarchical) {
      scales_ = parameters.declare(pattern + "scale_weights", {3, config.heads}, ones);
    } else if (config.pattern == Pattern::clustered) {
      centroids_ = parameters.declare(pattern + "centroids",
                                      {config.heads, config.clusters, config.head_dim},
                                      {Start::Kind::normal, 0.02});
      temperature_ = parameters.declare(pattern + "temperature", {1}, {Start::Kind::constant, 0.5});
    }
  }

  bool sees_tokens() const override { return gate_ != nullptr; }

  void forward(const Run<T>& run, const T* h, Stored<T> qkv, Attended<T>& attended,
               MixerKept<T>& kept, MixerScratch<T>&) override {
    const HeadShape s = run.heads();
    const std::int64_t rows = s.rows() * s.heads, branches = gate_ == nullptr ? 1 : 2;
    float* lse = attended.lse.room(run.memory, branches * rows);
    const Stored<T> o = attended.o.room(run.memory, branches * rows * s.dim, run.half());
    make_mask(run, qkv, kept);
    attention(run, qkv, o, branches * s.dim, lse, masked(run, kept));
    if (gate_ == nullptr) return;
    gate_->forward(run, h);
    attention(run, qkv, o.from(s.dim), 2 * s.dim, lse + rows, visible_spec(run, run.mask));
  }
  Stored<T> output(const Run<T>& run, const Attended<T>& attended, Buffer<T>& room) override {
    if (gate_ == nullptr) return attended.o.get();
    return this->mixed(run, attended, gate_->values(), room);
  }

  void recompute(const Run<T>& run, Stored<T> qkv, MixerKept<T>& kept) override {
    make_mask(run, qkv, kept);
  }

  void backward(const Run<T>& run, const T* h, Stored<T> qkv, Attended<T>& attended, Stored<T> da,
                Stored<T> dqkv, T* dh, MixerKept<T>& kept, MixerScratch<T>& scratch) override {
    const HeadShape s = run.heads();
    const std::int64_t rows = s.rows() * s.heads;
    float* lse = attended.lse.get();
    const AttentionSpec pattern = masked(run, kept);
    if (gate_ == nullptr) {
      return gradients(run, qkv, attended.o.get(), da, dqkv, s.dim, lse, pattern);
    }
    const Stored<T> d_o = scratch.d_o.room(run.memory, 2 * rows * s.dim, run.half());
    T* dg = scratch.dg.room(run.memory, s.batch * s.heads);
    const Stored<T> dense = scratch.dqkv.room(run.memory, 3 * rows * s.dim, run.half());
    const Stored<T> o = attended.o.get();
    run.ops.mix_backward(o, gate_->values(), da, d_o, dg, nullptr, s);
    gradients(run, qkv, o, d_o, dqkv, 2 * s.dim, lse, pattern);
    gradients(run, qkv, o.from(s.dim), d_o.from(s.dim), dense, 2 * s.dim, lse + rows,
              visible_spec(run, run.mask));
    add(run, dense, dqkv, scratch);
    gate_->backward(run, h, dg, nullptr, dh);
  }

  LayerInfo info(Ops<T>& ops, std::int64_t batch) const override {
    return gate_ == nullptr ? LayerInfo{} : gate_info(ops, batch, this->config_.heads, *gate_);
  }

 private:
  /// `stride`: from head to head of o.
  void attention(const Run<T>& run, Stored<T> qkv, Stored<T> o, std::int64_t stride, float* lse,
                 const AttentionSpec& spec) const {
    const std::int64_t heads = run.config.heads;
    attend(run,
           {.q = this->part(run, qkv, 0),
            .k = this->part(run, qkv, 1),
            .v = this->part(run, qkv, 2),
            .o = head_view(run, o, heads, stride, heads * stride),
            .lse = this->lse_view(run, lse, heads)},
           spec);
  }
  void gradients(const Run<T>& run, Stored<T> qkv, Stored<T> o, Stored<T> d_o, Stored<T> dqkv,
                 std::int64_t stride, float* lse, const AttentionSpec& spec) const {
    const std::int64_t heads = run.config.heads;
    attend_backward(run,
                    {.q = this->part(run, qkv, 0),
                     .k = this->part(run, qkv, 1),
                     .v = this->part(run, qkv, 2),
                     .o = head_view(run, o, heads, stride, heads * stride),
                     .lse = this->lse_view(run, lse, heads),
                     .d_o = head_view(run, d_o, heads, stride, heads * stride),
                     .dq = this->part(run, dqkv, 0),
                     .dk = this->part(run, dqkv, 1),
                     .dv = this->part(run, dqkv, 2)},
                    spec);
  }

  /// to += from, which have the shape of qkv.
  void add(const Run<T>& run, Stored<T> from, Stored<T> to, MixerScratch<T>& scratch) const {
    const std::int64_t width = 3 * run.config.heads * run.config.head_dim;
    if (!run.half()) return run.ops.add(from.wide, to.wide, run.shape().rows() * width);
    T* sum = scratch.sum.room(run.memory, run.most_rows() * width);
    T* addend = scratch.addend.room(run.memory, run.most_rows() * width);
    run.each_part([&](std::int64_t first, std::int64_t rows) {
      std::uint16_t* half = to.half + first * width;
      run.ops.from_half(half, sum, {rows, width});
      run.ops.from_half(from.half + first * width, addend, {rows, width});
      run.ops.add(addend, sum, rows * width);
      run.ops.to_half(sum, half, {rows, width});
    });
  }

  void make_mask(const Run<T>& run, Stored<T> qkv, MixerKept<T>& kept) {
    const std::int64_t square = run.tokens * run.tokens;
    if (run.config.pattern == Pattern::clustered) {
      std::uint8_t* mask = kept.mask.room(run.memory, run.batch * run.config.heads * square);
      return run.ops.clustered_mask(qkv, run.parameters.value(centroids_),
                                    run.parameters.value(temperature_), mask, run.heads(),
                                    run.config.clusters);
    }
    // No gradient reaches the weights: on a GPU they are read once, because reading waits.
    if (tokens_ == run.tokens && run.config.device.type == DeviceType::cuda) return;
    std::vector<float> weights;
    if (run.config.pattern == Pattern::hierarchical) {
      weights = floats(run.ops, run.parameters.value(scales_), 3 * run.config.heads);
    }
    if (tokens_ == run.tokens && weights == weights_) return;
    const std::int64_t bytes = mask_heads(run.config) * square;
    std::uint8_t* room = mask_.room(run.memory, bytes);  // a budget refuses it before it is made
    run.ops.upload(room, pattern_mask(run.config, run.tokens, weights).data(), bytes);
    run.memory.begin_epoch();
    tokens_ = run.tokens;
    weights_ = weights;
  }
  /// The pattern, and the batch's mask with it.
  AttentionSpec masked(const Run<T>& run, MixerKept<T>& kept) const {
    const bool clustered = run.config.pattern == Pattern::clustered;
    const std::int64_t square = run.tokens * run.tokens;
    const std::int64_t heads = clustered ? run.config.heads : mask_heads(run.config);
    Tensor pattern =
        contiguous(clustered ? kept.mask.get() : mask_.get(), DType::boolean,
                   {run.batch, run.config.heads, run.tokens, run.tokens}, run.config.device);
    pattern.strides[0] = clustered ? heads * square : 0;
    pattern.strides[1] = heads == 1 ? 0 : square;
    const Tensor all = run.mask.defined() ? joined(run, pattern, 1, kept.joined) : pattern;
    return visible_spec(run, all);
  }

  std::unique_ptr<Gate<T>> gate_;
  Weight scales_, centroids_, temperature_;
  Buffer<std::uint8_t> mask_;  ///< but clustered's
  std::int64_t tokens_ = 0;    ///< that it was made for
  std::vector<float> weights_;
};

/// The working one. Every head stands twice in one call, with the blocks of its pattern and with
/// all; a list is empty where the gate routes the head past it.
template <class T>
class RoutedMixer final : public Mixer<T> {
 public:
  RoutedMixer(Parameters<T>& parameters, const std::string& prefix, const Config& config, int layer)
      : Mixer<T>(config, layer),
        gate_(parameters, prefix + "adaptive_attn.gate", config, layer),
        centroids_(parameters.declare(prefix + "adaptive_attn.centroids",
                                      {config.heads, config.clusters, config.head_dim},
                                      {Start::Kind::normal, 0.02})),
        temperature_(parameters.declare(prefix + "adaptive_attn.temperature", {1},
                                        {Start::Kind::constant, 0.5})) {}

  bool sees_tokens() const override { return true; }

  void forward(const Run<T>& run, const T* h, Stored<T> qkv, Attended<T>& attended,
               MixerKept<T>& kept, MixerScratch<T>& scratch) override {
    const HeadShape s = run.heads();
    const std::int64_t rows = s.rows() * s.heads;
    const Stored<T> q2 = scratch.q2.room(run.memory, 2 * rows * s.dim, run.half());
    const Stored<T> o = attended.o.room(run.memory, 2 * rows * s.dim, run.half());
    float* lse = attended.lse.room(run.memory, 2 * rows);
    gate_.forward(run, h);
    const Choice<T> choice = make_choice(run, qkv);
    run.ops.choose(choice);
    run.ops.twice(qkv, q2, s);
    attend(run,
           {.q = doubled(run, q2),
            .k = this->part(run, qkv, 1),
            .v = this->part(run, qkv, 2),
            .o = doubled(run, o),
            .lse = this->lse_view(run, lse, 2 * s.heads)},
           listed(run, choice, kept));
  }
  Stored<T> output(const Run<T>& run, const Attended<T>& attended, Buffer<T>& room) override {
    return this->mixed(run, attended, mixing_.get(), room);
  }

  void backward(const Run<T>& run, const T* h, Stored<T> qkv, Attended<T>& attended, Stored<T> da,
                Stored<T> dqkv, T* dh, MixerKept<T>& kept, MixerScratch<T>& scratch) override {
    const HeadShape s = run.heads();
    const std::int64_t rows = s.rows() * s.heads;
    const Stored<T> q2 = scratch.q2.room(run.memory, 2 * rows * s.dim, run.half());
    const Stored<T> d_o = scratch.d_o.room(run.memory, 2 * rows * s.dim, run.half());
    const Stored<T> dq2 = scratch.dq2.room(run.memory, 2 * rows * s.dim, run.half());
    T* dg = scratch.dg.room(run.memory, s.batch * s.heads);
    Choice<T> choice = make_choice(run, qkv);
    run.ops.twice(qkv, q2, s);
    T* d_weight = scratch.d_weight.room(run.memory, s.batch * s.heads);
    choice.d_weight = d_weight;
    choice.d_logits = scratch.d_logits.room(run.memory, s.batch * s.heads * 5);
    choice.d_qkv = dqkv;
    choice.d_centroids = run.parameters.gradient(centroids_);
    choice.d_temperature = run.parameters.gradient(temperature_);
    const Stored<T> o = attended.o.get();
    run.ops.mix_backward(o, choice.mixing, da, d_o, dg, d_weight, s);
    attend_backward(run,
                    {.q = doubled(run, q2),
                     .k = this->part(run, qkv, 1),
                     .v = this->part(run, qkv, 2),
                     .o = doubled(run, o),
                     .lse = this->lse_view(run, attended.lse.get(), 2 * s.heads),
                     .d_o = doubled(run, d_o),
                     .dq = doubled(run, dq2),
                     .dk = this->part(run, dqkv, 1),
                     .dv = this->part(run, dqkv, 2)},
                    listed(run, choice, kept));
    run.ops.twice_backward(dq2, dqkv, s);
    run.ops.choose_backward(choice);
    if (!run.config.adaptive_gate) {  // the gate is a constant 1
      run.ops.clear(dg, s.batch * s.heads * static_cast<std::int64_t>(sizeof(T)));
    }
    gate_.backward(run, h, dg, choice.d_logits, dh);
  }

  LayerInfo info(Ops<T>& ops, std::int64_t batch) const override {
    const std::int64_t heads = this->config_.heads, count = batch * heads;
    LayerInfo info = gate_info(ops, batch, heads, gate_);
    std::vector<std::int32_t> patterns(static_cast<std::size_t>(count));
    info.density.resize(patterns.size());
    ops.download(patterns.data(), pattern_.get(), count * 4);
    ops.download(info.density.data(), density_.get(), count * 4);
    for (const std::int32_t p : patterns) info.pattern.push_back(static_cast<Pattern>(p));
    const std::vector<float> mixing = floats(ops, mixing_.get(), count);
    info.density_run = 0.0;
    for (std::size_t n = 0; n < mixing.size(); ++n) {
      if (mixing[n] > 0.0F) info.density_run += info.density[n];
      if (mixing[n] < 1.0F) info.density_run += 1.0;
    }
    info.density_run /= static_cast<double>(count);
    return info;
  }

 private:
  static Tensor doubled(const Run<T>& run, Stored<T> x) {
    const HeadShape s = run.heads();
    return head_view(run, x, 2 * s.heads, s.dim, 2 * s.heads * s.dim);
  }

  Choice<T> make_choice(const Run<T>& run, Stored<T> qkv) {
    const HeadShape s = run.heads();
    const std::int64_t count = s.batch * s.heads;
    Choice<T> choice;
    choice.shape = {s, run.config.block_size, run.config.clusters};
    choice.config = &run.config;
    choice.lengths = run.lengths;
    choice.training = run.training;
    choice.draw = run.drop(0.0, this->layer_, Place::pattern);
    choice.qkv = qkv;
    choice.logits = gate_.logits();
    choice.gate = gate_.values();
    choice.centroids = run.parameters.value(centroids_);
    choice.temperature = run.parameters.value(temperature_);
    const std::int64_t n = choice.shape.blocks();
    choice.pattern = pattern_.room(run.memory, count);
    choice.soft = soft_.room(run.memory, count * 5);
    choice.mixing = mixing_.room(run.memory, count);
    choice.density = density_.room(run.memory, count);
    choice.offsets = offsets_.room(run.memory, 2 * count * (n + 1));
    choice.index = index_.room(run.memory, 2 * count * n * n);
    return choice;
  }
  static AttentionSpec listed(const Run<T>& run, const Choice<T>& choice, MixerKept<T>& kept) {
    const HeadShape& s = choice.shape.heads;
    const std::int64_t n = choice.shape.blocks();
    const bool by_head = run.mask.defined() && run.mask.strides[1] != 0;
    AttentionSpec spec =
        visible_spec(run, by_head ? joined(run, Tensor{}, 2, kept.joined) : run.mask);
    if (run.config.causal) spec.causal = Causal::top_left;
    spec.block_list.row_offsets =
        contiguous(choice.offsets, DType::int32, {s.batch, 2 * s.heads, n + 1}, run.config.device);
    spec.block_list.block_index =
        contiguous(choice.index, DType::int32, {2 * s.batch * s.heads * n * n}, run.config.device);
    spec.block_list.block_q = spec.block_list.block_k = choice.shape.block;
    return spec;
  }

  Gate<T> gate_;
  Weight centroids_, temperature_;
  Buffer<T> soft_, mixing_;
  Buffer<std::int32_t> pattern_, offsets_, index_;
  Buffer<float> density_;
};

}  // namespace

template <class T>
Stored<T> Mixer<T>::mixed(const Run<T>& run, const Attended<T>& attended, const T* g,
                          Buffer<T>& room) const {
  const HeadShape s = run.heads();
  T* a = room.room(run.memory, s.rows() * s.heads * s.dim);
  run.ops.mix(attended.o.get(), g, a, s);
  return a;
}

template <class T>
Tensor Mixer<T>::lse_view(const Run<T>& run, float* lse, std::int64_t heads) const {
  return contiguous(lse, DType::float32, {run.batch, heads, run.tokens}, run.config.device);
}

template <class T>
std::unique_ptr<Mixer<T>> make_mixer(Parameters<T>& parameters, const std::string& prefix,
                                     const Config& config, int layer) {
  switch (config.kind) {
    case LayerKind::flash:
    case LayerKind::efficient:
      return std::make_unique<DenseMixer<T>>(config, layer);
    case LayerKind::original:
      return std::make_unique<PublishedMixer<T>>(parameters, prefix, config, layer);
    case LayerKind::adaptive:
      break;
  }
  return std::make_unique<RoutedMixer<T>>(parameters, prefix, config, layer);
}

template class Mixer<float>;
template class Mixer<double>;
template std::unique_ptr<Mixer<float>> make_mixer(Parameters<float>&, const std::string&,
                                                  const Config&, int);
template std::unique_ptr<Mixer<double>> make_mixer(Parameters<double>&, const std::string&,
                                                   const Config&, int);

}  // namespace tilewise::asam
