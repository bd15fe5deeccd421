/// Words that host and device share: read by the compiler of the library and by NVRTC, so nothing
/// is included.
#pragma once

namespace tilewise::tile {

/// 16-bit element of a tensor-core operand.
enum class Element : int { bf16, fp16 };

/// A (batch, head, row) view of rows whose elements lie side by side. Strides count elements.
struct View {
  void* data = nullptr;
  long long stride_b = 0, stride_h = 0, stride_s = 0;
};

/// A (batch, head, row, column) view of any strides.
struct View4 {
  void* data = nullptr;
  long long stride_b = 0, stride_h = 0, stride_s = 0, stride_d = 0;
};

enum class BiasType : int { none, bf16, fp16, float32 };
constexpr int bias_bytes(BiasType type) {
  return type == BiasType::none ? 0 : type == BiasType::float32 ? 4 : 2;
}
/// Tensors with an element for every (batch, head, query, key); strides of 0 broadcast.
struct PairTensors {
  View4 bias;  ///< added to the logits
  View4 mask;  ///< of bytes, 0 = hidden
  BiasType type = BiasType::none;
};
/// What a kernel is compiled for of them.
struct PairKind {
  BiasType bias = BiasType::none;
  bool mask = false;
  bool staged = false;  ///< by way of shared memory: elements of neighbouring keys lie side by side

  constexpr bool any() const { return bias != BiasType::none || mask; }
  bool operator==(const PairKind&) const = default;
};

/// The elements of a warp's kQueries x kKeys pairs in shared memory: rows of keys, with room for
/// the 16 bytes by which a row may start off a boundary. The pitches keep the banks apart in which
/// a warp reads, `transposed` or not.
struct PairRoom {
  int bias_pitch, mask_pitch, bias_bytes, bytes;
  constexpr PairRoom(PairKind kind, bool transposed, int queries, int keys)
      : bias_pitch(kind.bias == BiasType::none
                       ? 0
                       : keys * tile::bias_bytes(kind.bias) +
                             (kind.bias == BiasType::float32 && !transposed ? 32 : 16)),
        mask_pitch(kind.mask ? keys + 16 : 0),
        bias_bytes(kind.staged ? queries * bias_pitch : 0),
        bytes(kind.staged ? queries * (bias_pitch + mask_pitch) : 0) {}
};

/// Which keys a row sees by position: j in [i + shift - left, i + shift + right], shift = Sk - Sq,
/// and j <= i when top_left. Bounds are clipped to +-kFar by the host.
struct Positions {
  static constexpr int kFar = 1 << 30;
  int left = kFar, right = kFar;
  bool top_left = false;
};

/// tanh(x) = x + k1 x^3 + k2 x^5, the best in relative error for |x| <= kBound: 4.9e-7.
struct SoftcapSeries {
  static constexpr double kBound = 0.25, k1 = -0.33324571, k2 = 0.1287642;
};

/// tanh(x) = k0 x + k1 x^3, the best in relative error for |x| <= kBound: 2.4e-6.
struct SoftcapCubic {
  static constexpr double kBound = 0.11, k0 = 1.0 - 2.425e-6, k1 = -0.331727;
};

/// Order of the tiles of a one-dimensional grid. Heads (of all batch entries) come in sections
/// whose keys and values fit the L2 cache; inside a section the tiles of one row block of all its
/// heads come together, last row block (the longest under a causal mask) first.
struct TileOrder {
  unsigned blocks = 1;     ///< row blocks of a head
  unsigned splits = 1;     ///< parts of a row block
  unsigned heads = 1;      ///< batch * heads
  unsigned section = 1;    ///< heads of a section
  bool last_first = true;  ///< row blocks from the last to the first
};

/// Rows that share one scale factor when a float32 operand is held as 16-bit planes.
inline constexpr int kScaleRows = 64;

}  // namespace tilewise::tile
