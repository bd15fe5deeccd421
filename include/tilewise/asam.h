/// ASAM, a transformer layer whose attention may be sparse, forward and backward, with no framework
/// beneath it. docs/asam.md says what the layers compute; python/tilewise/asam has the same in
/// torch.
///
///   asam::Model model({.kind = asam::LayerKind::adaptive, .dim = 256, .heads = 4, .layers = 2});
///   model.infer(x, y);                           // x, y: float32 (B, n, dim)
///
///   asam::Trainer trainer(model, {.learning_rate = 1e-3});
///   trainer.step(ids, labels);                   // a model with vocabulary and classes
///
/// Tensors lie without gaps on the model's device. Parameters have the names of torch's state_dict.
/// Errors are those of tilewise/error.h. A model serves one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/runtime.h"
#include "tilewise/tensor.h"

namespace tilewise::asam {

enum class LayerKind : std::uint8_t {
  original,   ///< ASAMLayer as published: a masked and a dense attention, mixed by a constant gate
  flash,      ///< FlashASAMLayer as published: dense attention
  adaptive,   ///< the working layer: block lists, a gate that sees the input
  efficient,  ///< EfficientASAMLayer as published: flash over a window, where more tokens come
};

/// Which pairs the sparse attention sees. random: original alone. selected, automatic (the gate
/// chooses one of the others per sequence and head): adaptive alone.
enum class Pattern : std::uint8_t {
  local,
  strided,
  random,
  clustered,
  hierarchical,
  selected,
  automatic,
};

/// What a model with classes reads its answer from.
enum class Readout : std::uint8_t { mean, last };

/// Names as the command line writes them. The second pair throws InvalidArgument for other texts.
TILEWISE_API std::string_view kind_name(LayerKind kind);
TILEWISE_API std::string_view pattern_name(Pattern pattern);
TILEWISE_API LayerKind parse_kind(std::string_view text);
TILEWISE_API Pattern parse_pattern(std::string_view text);

struct Config {
  LayerKind kind = LayerKind::adaptive;
  std::int64_t dim = 512;      ///< features of a token
  std::int64_t heads = 8;      ///< of attention
  std::int64_t head_dim = 64;  ///< of one head; flash, efficient: dim / heads
  double dropout = 0.1;        ///< after the output projection and in the feed-forward network
  double gate_dropout = 0.1;   ///< in the gate's features
  Pattern pattern = Pattern::local;
  std::int64_t window_size = 128;  ///< keys of local and of efficient
  std::int64_t stride = 32;        ///< of strided, in tokens
  std::int64_t clusters = 32;      ///< of clustered
  bool adaptive_gate = true;       ///< false: the sparse attention alone
  std::int64_t gate_hidden = 128;  ///< of the adaptive gate; the published one has 128

  // The working layer.
  bool causal = false;
  std::int64_t block_size = 64;  ///< tokens of a block: a power of two from 16 to 256
  double density = 0.25;         ///< share of the key blocks that selected keeps
  double route_above = 0.9;  ///< inference: a gate from here on runs sparse alone, one from 1 minus
                             ///< it down dense alone

  // The model around the layers.
  int layers = 1;
  bool final_norm = true;       ///< LayerNorm after the last layer
  std::int64_t vocabulary = 0;  ///< 0: the input is (B, n, dim); else int32 (B, n) of token numbers
  std::int64_t classes = 0;     ///< 0: the output is (B, n, dim); else logits (B, classes)
  Readout readout = Readout::mean;
  /// Tokens that the published pattern's parameters are named for: the published layer has a set
  /// for each length.
  std::int64_t pattern_tokens = 0;

  /// CUDA: what products and attention multiply, float32, bfloat16 or float16. Weights, norms, sums
  /// and everything else stay float32.
  DType compute = DType::float32;
  /// CUDA: infer() and Trainer::step() are captured at the second call with the same tensors, and
  /// replayed from then on. The model's stream is not the default one then.
  bool graph = false;
  bool recompute = false;        ///< backward computes each layer's forward anew: less memory
  DType dtype = DType::float32;  ///< float64 is the twin that tests compare with, on the CPU
  Device device;
  std::uint64_t seed = 0;  ///< of the first weights and of dropout
};

/// What of a padded batch counts, beside the layer's own pattern. On the model's device.
struct Visible {
  /// int32 (B): tokens of each sequence; the others follow them and are padding. Nobody attends to
  /// padding. The working gate, its patterns and the read-out leave it out; the published gate
  /// pools it, as published. From 0 to n. Not given: all tokens.
  Tensor lengths;
  /// bool, broadcasts to (B, heads, n, n): true = the pair may attend. Rows of false only attend to
  /// nothing, and their attention is 0.
  Tensor mask;
};

/// A weight and its gradient: views of the model's memory, on its device.
struct Parameter {
  std::string name;  ///< "layers.0.to_qkv.weight"
  Tensor value, gradient;
};

/// What the gate and the pattern of one layer did in the last forward.
struct LayerInfo {
  std::vector<float> gate;        ///< (B, heads): share of the sparse attention
  std::vector<float> confidence;  ///< (B, heads)
  std::vector<float> logits;      ///< of the patterns: (B, 4), adaptive (B, heads, 5)
  std::vector<Pattern> pattern;   ///< adaptive: (B, heads)
  std::vector<float> density;  ///< adaptive: (B, heads), share of the block pairs that are listed
  double sparse_ratio = 0.0;   ///< share of the gates above 0.5
  double density_run = 1.0;    ///< adaptive: block pairs that ran, dense lists counted in
};

class TILEWISE_API Model {
 public:
  /// Makes the parameters, drawn as torch draws them first. Throws InvalidArgument, naming the
  /// field of `config`, and Unsupported.
  explicit Model(const Config& config, const Launch& launch = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const Config& config() const;
  const std::vector<Parameter>& parameters() const;

  /// y = model(x) without dropout; a gate routes. x: (B, n, dim), or int32 (B, n). y: (B, n, dim),
  /// or (B, classes).
  void infer(const Tensor& x, const Tensor& y, const Visible& visible = {});
  /// The same as in training; keeps what backward needs. `draw` numbers the dropout masks and the
  /// choices of patterns.
  void forward(const Tensor& x, const Tensor& y, std::uint32_t draw = 0,
               const Visible& visible = {});
  /// After forward(): adds to the parameters' gradients, and writes dx where it is given (not for
  /// token numbers). x is the tensor that forward() was given; what was visible is still there.
  void backward(const Tensor& x, const Tensor& dy, const Tensor& dx = {});
  void clear_gradients();

  /// Of layer `index` in the last infer() or forward(). Waits for the device.
  LayerInfo info(int index) const;
  /// Waits for what runs on the model's stream.
  void synchronize() const;
  /// Bytes of memory that the model holds now, parameters included.
  std::int64_t bytes() const;

  class Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct TrainOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< Adam's
  /// The loss is scaled by initial_scale; the scale doubles after growth_interval good steps in a
  /// row, and halves after a step whose gradients are not finite, which changes no weight.
  bool scale_loss = false;
  double initial_scale = 65536.0;
  std::int64_t growth_interval = 2000;
};

struct TrainStatus {
  double loss = 0.0;  ///< mean cross-entropy of the last step's batch
  double scale = 1.0;
  std::int64_t steps = 0;    ///< that changed the weights
  std::int64_t skipped = 0;  ///< for gradients that were not finite
};

/// Adam (Kingma and Ba 2015) on the mean cross-entropy of a model with classes.
class TILEWISE_API Trainer {
 public:
  /// The model must outlive the trainer. Throws InvalidArgument.
  Trainer(Model& model, const TrainOptions& options = {});
  ~Trainer();

  /// One step. x: the model's input; labels: int32 (B), below classes. Every step drops anew.
  void step(const Tensor& x, const Tensor& labels, const Visible& visible = {});
  /// Waits for the device.
  TrainStatus status() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tilewise::asam
