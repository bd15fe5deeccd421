/// The attention of each kind of layer: from normalised tokens to the heads' outputs, between the
/// two projections.
#pragma once

#include <memory>
#include <string>

#include "layers/attend.h"
#include "layers/gate.h"

namespace tilewise::asam {

/// What a mixer's forward saves for its backward.
template <class T>
struct Attended {
  StoredBuffer<T> o;  ///< of the sparse and the dense attention in turn, where both run
  Buffer<float> lse;
};
/// What its backward needs besides, which follows from qkv.
template <class T>
struct MixerKept {
  Buffer<std::uint8_t> mask;  ///< of the published clustered pattern
  Buffer<std::uint8_t>
      joined;  ///< the batch's mask with the pattern's, or for heads that are twice there
};
/// Memory that no other step needs: q twice, and gradients on their way.
template <class T>
struct MixerScratch {
  StoredBuffer<T> q2, d_o, dq2, dqkv;
  Buffer<T> sum, addend;  ///< of the rows of a part
  Buffer<T> dg, d_weight, d_logits;
};

template <class T>
class Mixer {
 public:
  Mixer(const Config& config, int layer) : config_(config), layer_(layer) {}
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;
  virtual ~Mixer() = default;

  /// The gate looks at the normalised tokens.
  virtual bool sees_tokens() const { return false; }

  /// Attends: from qkv (B, n, 3, heads, dim), and h (B, n, dim) where the gate sees it.
  virtual void forward(const Run<T>& run, const T* h, Stored<T> qkv, Attended<T>& attended,
                       MixerKept<T>& kept, MixerScratch<T>& scratch) = 0;
  /// The heads' outputs (B, n, heads, dim), in `room` where they are mixed anew each time.
  virtual Stored<T> output(const Run<T>& run, const Attended<T>& attended, Buffer<T>& room) = 0;
  /// `kept` of the last forward from its qkv, where another layer's has replaced it.
  virtual void recompute(const Run<T>& /*run*/, Stored<T> /*qkv*/, MixerKept<T>& /*kept*/) {}
  /// dqkv from da; dh += what comes through the gate.
  virtual void backward(const Run<T>& run, const T* h, Stored<T> qkv, Attended<T>& attended,
                        Stored<T> da, Stored<T> dqkv, T* dh, MixerKept<T>& kept,
                        MixerScratch<T>& scratch) = 0;
  /// Describes the last forward.
  virtual LayerInfo info(Ops<T>&, std::int64_t /*batch*/) const { return {}; }

 protected:
  /// q, k or v of qkv.
  Tensor part(const Run<T>& run, Stored<T> qkv, int which) const {
    const std::int64_t width = config_.heads * config_.head_dim;
    return head_view(run, qkv.from(which * width), config_.heads, config_.head_dim, 3 * width);
  }
  /// The two branches' outputs, mixed by g.
  Stored<T> mixed(const Run<T>& run, const Attended<T>& attended, const T* g,
                  Buffer<T>& room) const;
  Tensor lse_view(const Run<T>& run, float* lse, std::int64_t heads) const;

  const Config& config_;
  int layer_;
};

/// `prefix` names the parameters: "layers.0.".
template <class T>
std::unique_ptr<Mixer<T>> make_mixer(Parameters<T>& parameters, const std::string& prefix,
                                     const Config& config, int layer);

}  // namespace tilewise::asam
