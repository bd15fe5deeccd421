/// The steps that layers are made of: a verb for each, and one for its backward. Layers are written
/// against Ops; CpuOps and CudaOps carry it out.
///
/// Matrices are row-major without gaps; T is float or double. A gradient of a parameter is added to
/// what is there, since several steps may share one; other results are overwritten where nothing is
/// said. Shapes stand in brackets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tilewise/asam.h"

namespace tilewise::asam {

struct LinearShape {
  std::int64_t rows, in, out;
};
struct Shape {
  std::int64_t rows, cols;
};
/// A batch of sequences of features.
struct TokenShape {
  std::int64_t batch, tokens, dim;
  std::int64_t rows() const { return batch * tokens; }
  std::int64_t elems() const { return rows() * dim; }
};
/// Attention's: rows (batch, tokens), heads of dim features.
struct HeadShape {
  std::int64_t batch, tokens, heads, dim;
  std::int64_t rows() const { return batch * tokens; }
};

/// Tokens of each sequence, int32 (batch); null: all count.
using Lengths = const std::int32_t*;
/// Tokens of sequence b that count, on the host.
inline std::int64_t counted(Lengths lengths, std::int64_t b, std::int64_t tokens) {
  return lengths == nullptr ? tokens : std::clamp<std::int64_t>(lengths[b], 0, tokens);
}

/// Elements that a pass keeps: of T, or of 16 bits (Config::compute) where `half` is set.
template <class T>
struct Stored {
  T* wide = nullptr;
  std::uint16_t* half = nullptr;

  Stored() = default;
  Stored(T* x) : wide(x) {}
  static Stored halves(std::uint16_t* x) {
    Stored stored;
    stored.half = x;
    return stored;
  }
  Stored from(std::int64_t elem) const {
    return half != nullptr ? halves(half + elem) : Stored(wide + elem);
  }
  void* data() const { return half != nullptr ? static_cast<void*>(half) : wide; }
};
/// The same where a verb reads them.
template <class T>
struct Factor {
  const T* wide = nullptr;
  const std::uint16_t* half = nullptr;

  Factor() = default;
  Factor(const T* x) : wide(x) {}
  Factor(const Stored<T>& x) : wide(x.wide), half(x.half) {}
  const void* data() const { return half != nullptr ? static_cast<const void*>(half) : wide; }
};

enum class Activation : std::uint8_t { none, gelu, relu, sigmoid };

/// What follows a product.
template <class T>
struct Epilogue {
  const T* bias = nullptr;      ///< [out]; null: none
  const T* residual = nullptr;  ///< [rows, out]; null: none
  T* z = nullptr;               ///< [rows, out]: gets what f receives; null: nobody wants it
  Activation f = Activation::none;
};

/// Adam's and the loss scaler's state, on the model's device, so that a step never waits for it.
struct TrainState {
  /// Steps so far, skipped ones too: what dropout and noise draw by. First: attention reads it.
  std::int64_t draws = 0;
  float loss = 0.0F;
  float scale = 1.0F;
  std::int32_t good_in_a_row = 0;
  std::int32_t not_finite = 0;  ///< of this step: some gradient is not
  std::int32_t steps = 0, skipped = 0;
};

/// One place where values are dropped. Element (i, j) is kept by the library's rule (CONTRACT 13)
/// with bh = `site`, seed and offset = `draw`.
struct Drop {
  double p = 0.0;
  std::uint64_t seed = 0;
  std::uint32_t site = 0, draw = 0;
  std::int64_t first = 0;  ///< the number of row 0: of a part of the rows
  /// A trainer's, whose draws are added: a replayed graph reads them.
  const TrainState* state = nullptr;

  Drop from(std::int64_t row) const {
    Drop part = *this;
    part.first = row;
    return part;
  }
  /// On the host.
  std::uint64_t offset() const {
    return draw + (state == nullptr ? 0 : static_cast<std::uint64_t>(state->draws));
  }
};

/// Blocks that each head attends: what the working layer's patterns list.
struct ChoiceShape {
  HeadShape heads;
  std::int64_t block, clusters;
  std::int64_t blocks() const { return (heads.tokens + block - 1) / block; }
};
template <class T>
struct Choice {
  ChoiceShape shape;
  const Config* config = nullptr;
  Lengths lengths = nullptr;  ///< blocks past them are in no list
  bool training = false;
  Drop draw;                     ///< seed, site and draw of the Gumbel noise
  Factor<T> qkv;                 ///< (rows, 3 heads dim)
  const T* logits = nullptr;     ///< (batch, heads, 5)
  const T* gate = nullptr;       ///< (batch, heads)
  const T* centroids = nullptr;  ///< (heads, clusters, dim)
  const T* temperature = nullptr;
  // Written.
  std::int32_t* pattern = nullptr;  ///< (batch, heads)
  T* soft = nullptr;                ///< (batch, heads, 5): softmax of logits + noise, training
  T* mixing = nullptr;              ///< (batch, heads): the gate, 1 or 0 where routed
  float* density = nullptr;         ///< (batch, heads)
  std::int32_t* offsets = nullptr;  ///< (batch, 2 heads, blocks + 1): sparse and dense in turn
  std::int32_t* index = nullptr;    ///< (batch * 2 heads * blocks^2): one room a row
  // Backward: d_weight (batch, heads) is the gradient of a factor 1 on the sparse attention.
  const T* d_weight = nullptr;
  T* d_logits = nullptr;  ///< written
  Stored<T> d_qkv;        ///< added to
  T* d_centroids = nullptr;
  T* d_temperature = nullptr;
};

/// Two masks of pairs as one: out [b, h * repeat + r, i, j] = first and second at [b, h, i, j], and
/// j below the length of b.
struct JoinedMask {
  struct Part {
    const std::uint8_t* data = nullptr;        ///< null: every pair
    std::array<std::int64_t, 4> strides = {};  ///< 0 where it broadcasts
  };
  Part first, second;
  Lengths lengths = nullptr;
  std::array<std::int64_t, 4> sizes = {};  ///< batch, heads, rows, keys: without the repeats
  std::int64_t repeat = 1;
  std::uint8_t* out = nullptr;
};

template <class T>
class Ops {
 public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops() = default;

  /// The rest of linear() after z = x w^T, by the other verbs. z may be y.
  void finish_linear(T* z, T* y, const Epilogue<T>& epilogue, Shape shape) {
    if (epilogue.bias != nullptr || epilogue.f != Activation::none || y != z) {
      activate(z, epilogue.bias, y, epilogue.f, shape);
    }
    if (epilogue.residual != nullptr) add(epilogue.residual, y, shape.rows * shape.cols);
  }

  virtual void synchronize() = 0;
  virtual void clear(void* x, std::int64_t bytes) = 0;
  virtual void upload(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void download(void* to, const void* from, std::int64_t bytes) = 0;  ///< waits
  virtual void copy(const T* x, T* y, std::int64_t elems) = 0;
  /// y += x.
  virtual void add(const T* x, T* y, std::int64_t elems) = 0;

  /// Rounds x to the model's 16-bit type, and back.
  virtual void to_half(const T* x, std::uint16_t* half, Shape shape) = 0;
  virtual void from_half(const std::uint16_t* half, T* x, Shape shape) = 0;

  /// y [rows, out] = f(x [rows, in] w^T + bias) + residual, w [out, in]. y is not residual.
  virtual void linear(Factor<T> x, const T* w, T* y, const Epilogue<T>& epilogue,
                      LinearShape shape) = 0;
  /// dx = dy w and dw += dy^T x, each where given. x is read for dw alone.
  virtual void linear_backward(Factor<T> x, const T* w, Factor<T> dy, T* dx, T* dw,
                               LinearShape shape) = 0;

  /// z += bias (where given), row by row; y = f(z). y may be z, which is then lost.
  virtual void activate(T* z, const T* bias, T* y, Activation f, Shape shape) = 0;
  /// dz = f'(z) dy; dbias += its column sums, where given. dz may be dy.
  virtual void activate_backward(const T* z, const T* dy, T* dz, T* dbias, Activation f,
                                 Shape shape) = 0;
  /// From the gradient du of u = drop(gelu(z)): dz = gelu'(z) drop(du), which may be z, and u again
  /// in the room of du.
  virtual void gelu_backward(const T* z, T* du, T* dz, const Drop& drop, Shape shape) = 0;

  /// y = (x - mean) rstd gamma + beta; statistics [rows, 2]: mean, rstd.
  virtual void layer_norm(const T* x, const T* gamma, const T* beta, T* y, T* statistics,
                          Shape shape) = 0;
  /// y again, from the statistics.
  virtual void normalise(const T* x, const T* gamma, const T* beta, const T* statistics, T* y,
                         Shape shape) = 0;
  /// dx += ...
  virtual void layer_norm_backward(const T* x, const T* gamma, const T* statistics, const T* dy,
                                   T* dx, T* dgamma, T* dbeta, Shape shape) = 0;

  /// y = x + drop(a); x not given: y = drop(a). Its backward is da = drop(dy). y may be a or x.
  virtual void drop_add(const T* x, const T* a, T* y, const Drop& drop, Shape shape) = 0;

  /// The published gate's features [batch, bins]: docs/asam.md. kept [batch, dim + 2 tokens +
  /// 3 bins]: for backward.
  virtual void pool_bins(const T* x, T* features, T* kept, TokenShape shape) = 0;
  /// dx += ...
  virtual void pool_bins_backward(const T* x, const T* kept, const T* d_features, T* dx,
                                  TokenShape shape) = 0;
  /// The working gate's [batch, 7 dim]: the mean, then maximum and variance for windows of 1, 8 and
  /// 64 tokens, of the tokens that count; 0 where there are none.
  virtual void pool_windows(const T* x, Lengths lengths, T* features, TokenShape shape) = 0;
  /// dx += ...
  virtual void pool_windows_backward(const T* x, Lengths lengths, const T* features,
                                     const T* d_features, T* dx, TokenShape shape) = 0;

  /// g = sigmoid((threshold - c) p / |tau|), all [batch, heads], threshold [heads], tau [1].
  virtual void gate(const T* c, const T* p, const T* threshold, const T* tau, T* g,
                    Shape shape) = 0;
  virtual void gate_backward(const T* c, const T* p, const T* threshold, const T* tau, const T* g,
                             const T* dg, T* dc, T* dp, T* d_threshold, T* d_tau, Shape shape) = 0;

  /// a [rows, heads, dim] = g o[.., 0, :] + (1 - g) o[.., 1, :], o [rows, heads, 2, dim].
  virtual void mix(Factor<T> o, const T* g, T* a, HeadShape shape) = 0;
  /// d_weight = sum da g o[.., 0, :], the gradient of a factor 1 before o[.., 0, :]; where given.
  virtual void mix_backward(Factor<T> o, const T* g, Factor<T> da, Stored<T> d_o, T* dg,
                            T* d_weight, HeadShape shape) = 0;
  /// q2 [rows, heads, 2, dim] = q twice, from rows of qkv [rows, 3 heads dim].
  virtual void twice(Factor<T> qkv, Stored<T> q2, HeadShape shape) = 0;
  /// The q part of dqkv = both halves of dq2 added.
  virtual void twice_backward(Factor<T> dq2, Stored<T> dqkv, HeadShape shape) = 0;

  virtual void choose(const Choice<T>& choice) = 0;
  virtual void choose_backward(const Choice<T>& choice) = 0;
  /// The published clustered pattern [batch, heads, tokens, tokens]: 1 where the affinity of a
  /// query's and a key's clusters is above 0.1.
  virtual void clustered_mask(Factor<T> qkv, const T* centroids, const T* temperature,
                              std::uint8_t* mask, HeadShape shape, std::int64_t clusters) = 0;
  virtual void join_masks(const JoinedMask& masks) = 0;

  /// y [rows, cols] = rows of table, by token number.
  virtual void embed(const std::int32_t* ids, const T* table, T* y, Shape shape) = 0;
  virtual void embed_backward(const std::int32_t* ids, const T* dy, T* d_table, Shape shape) = 0;
  /// y [batch, dim]: the mean over the tokens that count, or the last of them; 0 where there are
  /// none.
  virtual void read_out(const T* x, Lengths lengths, T* y, Readout readout, TokenShape shape) = 0;
  virtual void read_out_backward(const T* dy, Lengths lengths, T* dx, Readout readout,
                                 TokenShape shape) = 0;

  /// state.loss = mean of -log softmax(logits)[label]; dlogits is its gradient times state.scale.
  virtual void cross_entropy(const T* logits, const std::int32_t* labels, T* d_logits,
                             TrainState* state, Shape shape) = 0;
  /// state.not_finite = 1 if an element of g is not.
  virtual void look_for_infinities(const T* g, std::int64_t elems, TrainState* state) = 0;
  /// w -= Adam's step by g / state.scale; nothing where state.not_finite. m, v: its moments.
  virtual void adam(T* w, const T* g, T* m, T* v, std::int64_t elems, const TrainOptions& options,
                    const TrainState* state) = 0;
  /// Counts the step, and moves the scale.
  virtual void end_step(TrainState* state, const TrainOptions& options) = 0;
};

}  // namespace tilewise::asam
