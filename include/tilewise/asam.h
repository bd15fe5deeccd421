/// ASAM, a transformer layer with adaptive sparse attention, forward and backward, without a
/// framework. docs/asam.md describes the layers. python/tilewise/asam has the same layers in torch.
///
///   asam::Model model({.kind = asam::LayerKind::adaptive, .dim = 256, .heads = 4, .layers = 2});
///   model.infer(x, y);                           // x, y: float32 (B, n, dim)
///
///   asam::Trainer trainer(model, {.learning_rate = 1e-3});
///   trainer.step(ids, labels);                   // a model with vocabulary and classes
///
/// Tensors are contiguous and on the model's device. Parameters have the names of torch's
/// state_dict. Functions throw the errors of tilewise/error.h. Only one thread may use a model at a
/// time.
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
  original,   ///< ASAMLayer as published: masked and dense attention, mixed by a constant gate
  flash,      ///< FlashASAMLayer as published: dense attention
  adaptive,   ///< the working layer: block lists, and a gate that depends on the input
  efficient,  ///< EfficientASAMLayer as published: flash over a window, for longer sequences
};

/// The pairs that the sparse attention sees. random is only for the original layer. selected and
/// automatic are only for the adaptive layer; with automatic the gate chooses a pattern per
/// sequence and head.
enum class Pattern : std::uint8_t {
  local,
  strided,
  random,
  clustered,
  hierarchical,
  selected,
  automatic,
};

/// The tokens that a classifier reads.
enum class Readout : std::uint8_t { mean, last };

/// Names as on the command line. The parse functions throw InvalidArgument for other texts.
TILEWISE_API std::string_view kind_name(LayerKind kind);
TILEWISE_API std::string_view pattern_name(Pattern pattern);
TILEWISE_API LayerKind parse_kind(std::string_view text);
TILEWISE_API Pattern parse_pattern(std::string_view text);

struct Config {
  LayerKind kind = LayerKind::adaptive;
  std::int64_t dim = 512;      ///< features per token, 1 to 2^24
  std::int64_t heads = 8;      ///< attention heads; heads * head_dim is at most 2^24
  std::int64_t head_dim = 64;  ///< features per head, >= 1; flash and efficient need dim / heads
  double dropout = 0.1;        ///< in [0, 1): of the output projection and the feed-forward network
  double gate_dropout = 0.1;   ///< in [0, 1): of the gate's features
  Pattern pattern = Pattern::local;
  std::int64_t window_size = 128;  ///< local, efficient: number of keys, >= 1
  std::int64_t stride = 32;        ///< strided: stride in tokens, >= 1
  std::int64_t clusters = 32;      ///< clustered: number of clusters, 1 to 2^24
  bool adaptive_gate = true;       ///< false: only the sparse attention
  std::int64_t gate_hidden = 128;  ///< hidden features of the gate, 2 to 2^24; published: 128

  // The working layer.
  bool causal = false;
  std::int64_t block_size = 64;  ///< tokens per block: a power of two from 16 to 256
  double density = 0.25;         ///< selected: fraction of the key blocks to keep, in (0, 1]
  double route_above = 0.9;      ///< in [0.5, 1]; inference: gates of at least this run only the
                                 ///< sparse branch, gates of at most 1 minus it only the dense one

  // The model around the layers.
  int layers = 1;          ///< >= 1
  bool final_norm = true;  ///< LayerNorm after the last layer
  /// 0: the input is (B, n, dim). Else it is int32 (B, n), token numbers below this, below 2^31.
  /// Another number throws InvalidArgument on a CPU. On CUDA its features are NaN.
  std::int64_t vocabulary = 0;
  std::int64_t classes = 0;  ///< 0: the output is (B, n, dim); else (B, classes) logits; < 2^31
  Readout readout = Readout::mean;
  /// Length of the pattern's parameters in the original layer, which has one set per length.
  std::int64_t pattern_tokens = 0;

  /// float32, bfloat16 or float16: the type of attention and of what a training step keeps for its
  /// backward, on CUDA of products, too. Weights, norms, the residual stream, sums and the rest are
  /// float32.
  DType compute = DType::float32;
  /// On CUDA, infer() and Trainer::step() are captured at the second call with the same tensors,
  /// and replayed afterwards. It needs a stream other than the default one.
  bool graph = false;
  bool recompute = false;        ///< recompute each layer's forward in backward, to save memory
  DType dtype = DType::float32;  ///< float64 is the reference for tests, on the CPU
  Device device = {};
  std::uint64_t seed = 0;  ///< seed of the initial weights and of dropout
};

/// Restricts a padded batch, in addition to the layer's own pattern. On the model's device.
struct Visible {
  /// int32 (B): tokens of each sequence, from 0 to n. Padding follows them, and no token attends to
  /// it. The working gate, its patterns and the read-out leave it out. The published gate pools it.
  /// Not given: all tokens.
  Tensor lengths = {};
  /// bool, broadcasts to (B, heads, n, n): true = the pair may attend. A row without true attends
  /// to no key, and its attention is 0.
  Tensor mask = {};
};

/// A weight and its gradient: views of the model's memory, on its device.
struct Parameter {
  std::string name = {};  ///< "layers.0.to_qkv.weight"
  Tensor value = {}, gradient = {};
};

/// Gate and pattern of one layer in the last forward.
struct LayerInfo {
  std::vector<float> gate = {};        ///< (B, heads): weight of the sparse attention
  std::vector<float> confidence = {};  ///< (B, heads), in [0, 1]: factor of the gate's logit
  std::vector<float> logits = {};      ///< logits of the patterns: (B, 4), adaptive (B, heads, 5)
  std::vector<Pattern> pattern = {};   ///< adaptive: (B, heads)
  /// adaptive: (B, heads), fraction of the block pairs in the list
  std::vector<float> density = {};
  double sparse_ratio = 0.0;  ///< fraction of the gates above 0.5
  double density_run = 1.0;   ///< adaptive: fraction of the pairs that ran, with dense lists
};

class TILEWISE_API Model {
 public:
  /// Creates the parameters and initialises them like torch. Throws InvalidArgument with the field
  /// of `config`, and Unsupported.
  explicit Model(const Config& config, const Launch& launch = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const Config& config() const;
  const std::vector<Parameter>& parameters() const;

  /// y = model(x) without dropout. A gate chooses the branches to run. x: (B, n, dim), or int32 (B,
  /// n). y: (B, n, dim), or (B, classes).
  void infer(const Tensor& x, const Tensor& y, const Visible& visible = {});
  /// y = model(x) as in training, and saves state for backward. `draw` selects the random bits of
  /// dropout and of the patterns.
  void forward(const Tensor& x, const Tensor& y, std::uint32_t draw = 0,
               const Visible& visible = {});
  /// Call after forward() with the same x, without infer() or a trainer's step between them. Adds
  /// to the parameters' gradients, and writes dx if given. Token numbers have no dx. The tensors of
  /// `visible` must still exist.
  void backward(const Tensor& x, const Tensor& dy, const Tensor& dx = {});
  void clear_gradients();

  /// Describes layer `index` in the last infer() or forward(). Waits for the device.
  LayerInfo info(int index) const;
  /// Waits for the work on the model's stream.
  void synchronize() const;
  /// Bytes that the model holds, including parameters.
  std::int64_t bytes() const;

  class Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct TrainOptions {
  double learning_rate = 1e-4;                        ///< finite, >= 0
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< Adam's: in [0, 1), in [0, 1), >= 0
  /// Scales the loss, at first by initial_scale. The scale doubles after growth_interval
  /// consecutive finite steps. A step with gradients that are not finite halves it and changes no
  /// weight.
  bool scale_loss = false;
  double initial_scale = 65536.0;       ///< a float32 above 0
  std::int64_t growth_interval = 2000;  ///< from 1 to 2^31 - 1

  bool operator==(const TrainOptions&) const = default;
};

struct TrainStatus {
  double loss = 0.0;  ///< mean cross-entropy of the last step's batch
  double scale = 1.0;
  std::int64_t steps = 0;    ///< steps that changed the weights
  std::int64_t skipped = 0;  ///< steps skipped for gradients that were not finite
};

/// Adam (Kingma and Ba 2015) on the mean cross-entropy of a model with classes.
class TILEWISE_API Trainer {
 public:
  /// The model must outlive the trainer. Throws InvalidArgument for options out of range.
  Trainer(Model& model, const TrainOptions& options = {});
  ~Trainer();

  /// One step. x: the model's input; labels: int32 (B), below classes. Every step draws new dropout
  /// bits. Another label throws InvalidArgument on a CPU. On CUDA the loss is NaN, and the step is
  /// skipped.
  void step(const Tensor& x, const Tensor& labels, const Visible& visible = {});
  /// Waits for the device.
  TrainStatus status() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tilewise::asam
