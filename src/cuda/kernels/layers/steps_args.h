/// layer_steps: parameters of the small kernels that layers are made of. See layers/README.md.
#pragma once

#include "cuda/tile/dropout_args.h"

namespace tilewise::layer_steps {

/// How tensors lie in memory that a model of 16 bits keeps so.
enum class Kept : int { f32, fp16, bf16 };
struct Config {
  Kept kept = Kept::f32;
};

inline constexpr int kThreads = 256;

/// y = x, or y += x.
struct CopyArgs {
  const float* x = nullptr;
  float* y = nullptr;
  long long elems = 0;
};

/// A float32 tensor (batch, heads, tokens, dim) and its 16-bit twin, which lies without gaps in the
/// order (batch, tokens, heads, dim).
struct Twin {
  float* data = nullptr;
  unsigned short* half = nullptr;
  long long stride_b = 0, stride_h = 0, stride_s = 0;
  int heads = 1, tokens = 1, dim = 1;
  long long elems = 0;
};
struct TwinArgs {
  static constexpr int kMost = 6;
  Twin twins[kMost];  ///< blockIdx.y is the number
  bool bf16 = false;  ///< else float16
};

/// Activations as src/layers/ops.h numbers them.
enum class Activation : int { none, gelu, relu, sigmoid };
struct ActivateArgs {
  float* z = nullptr;           ///< (rows, cols)
  const float* bias = nullptr;  ///< (cols), may be null
  const float* dy = nullptr;    ///< backward
  float* y = nullptr;           ///< backward: dz
  Activation f = Activation::none;
  long long rows = 0;
  int cols = 0;
};

/// y = f(x w^T + bias) + residual. `in` is a multiple of 4, and rows lie at multiples of 16 bytes.
struct ProductArgs {
  const float* x = nullptr;         ///< (rows, in)
  const float* w = nullptr;         ///< (out, in)
  const float* bias = nullptr;      ///< (out), may be null
  const float* residual = nullptr;  ///< (rows, out), may be null
  float* z = nullptr;               ///< (rows, out): what f receives; may be null
  float* y = nullptr;               ///< (rows, out)
  Activation f = Activation::none;
  long long rows = 0;
  int in = 0, out = 0;
};
inline constexpr int kProductColumns = 64;  ///< of y, that one block computes
inline constexpr int kProductSlice = 64;    ///< of `in`, that is in shared memory at a time
/// Shared memory of a slice of `rows` rows: two fp16 planes, and a power of two a row.
constexpr int product_bytes(int rows) { return rows * (kProductSlice * 2 * 2 + 4); }
/// Of a block of `rows` rows: two slices of both factors.
constexpr int product_shared(int rows) {
  return 2 * (product_bytes(rows) + product_bytes(kProductColumns));
}

struct NormArgs {
  const float* x = nullptr;  ///< (rows, cols)
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float* y = nullptr;
  float* statistics = nullptr;  ///< (rows, 2): mean, 1 / standard deviation
  const float* dy = nullptr;
  float* dx = nullptr;  ///< added to
  long long rows = 0;
  int cols = 0;
};

inline constexpr int kNormRows = kThreads / 32;  ///< of layer_norm, that one block takes

/// Sums over rows, added to what is there: of dy, and of dy times normalised x.
struct ColumnArgs {
  const float* dy = nullptr;          ///< (rows, cols)
  const float* x = nullptr;           ///< norm_columns
  const float* statistics = nullptr;  ///< norm_columns
  float* sums = nullptr;              ///< (cols)
  float* along = nullptr;             ///< (cols), norm_columns
  long long rows = 0;
  int cols = 0;
};
inline constexpr int kColumns = 32;    ///< that one block of a pool sums
inline constexpr int kFewColumns = 8;  ///< of `columns`, `norm_columns` and `read_out`

struct DropArgs {
  const float* x = nullptr;  ///< may be null
  const float* a = nullptr;
  float* y = nullptr;
  tile::DropoutBits bits;
  unsigned site = 0;
  bool drops = false;
  long long rows = 0;
  int cols = 0;
  unsigned first = 0;  ///< the number of row 0
};

/// From the gradient of u = drop(gelu(z)) to that of z, and u again.
struct GeluArgs {
  const float* z = nullptr;  ///< (rows, cols)
  float* du = nullptr;       ///< gets u
  float* dz = nullptr;       ///< may be z
  tile::DropoutBits bits;
  unsigned site = 0;
  bool drops = false;
  long long rows = 0;
  int cols = 0;
  unsigned first = 0;
};

/// Of a batch of sequences.
struct Tokens {
  int batch = 0, tokens = 0, dim = 0;
  const int* lengths = nullptr;  ///< (batch): tokens that count; null: all
};

/// The published gate's features: src/layers/pools.h cuts the bins.
struct BinArgs {
  Tokens shape;
  int scales = 4, bins = 0;
  const float* x = nullptr;
  float* kept = nullptr;  ///< (batch, dim + 2 tokens + 3 bins)
  float* features = nullptr;
  const float* d_features = nullptr;
  float* d_tokens = nullptr;  ///< (batch, 2 tokens + dim): of x . mean, of the sums, of the mean
  float* dx = nullptr;        ///< added to
};

/// The working gate's features.
struct WindowArgs {
  Tokens shape;
  const float* x = nullptr;
  float* features = nullptr;  ///< (batch, 7, dim)
  float* means = nullptr;     ///< (batch, 3, dim): over the windows' means
  int* highest = nullptr;     ///< (batch, 3, dim): the window whose mean is the largest
  const float* d_features = nullptr;
  float* dx = nullptr;  ///< added to
};
inline constexpr int kWindows[3] = {1, 8, 64};
inline constexpr int kWindowFeatures = 7;

struct GateArgs {
  const float* c = nullptr;          ///< (batch, heads)
  const float* p = nullptr;          ///< (batch, heads)
  const float* threshold = nullptr;  ///< (heads)
  const float* tau = nullptr;        ///< (1)
  float* g = nullptr;                ///< (batch, heads)
  const float* dg = nullptr;
  float* dc = nullptr;
  float* dp = nullptr;
  float* d_threshold = nullptr;  ///< added to
  float* d_tau = nullptr;        ///< added to
  int batch = 0, heads = 0;
};

struct MixArgs {
  int batch = 0, tokens = 0, heads = 0, dim = 0;
  const void* o = nullptr;   ///< (batch, tokens, heads, 2, dim), as Config::kept says
  const float* g = nullptr;  ///< (batch, heads)
  float* a = nullptr;        ///< (batch, tokens, heads, dim)
  const void* da = nullptr;  ///< as Config::kept says
  void* d_o = nullptr;       ///< as Config::kept says
  float* dg = nullptr;
  float* d_weight = nullptr;  ///< may be null
};

/// q of qkv (rows, 3, heads * dim) twice, head by head, and back. As Config::kept says.
struct TwiceArgs {
  const void* from = nullptr;
  void* to = nullptr;
  long long rows = 0;
  int heads = 0, dim = 0;
};

/// The working layer's choice of blocks: src/layers/ops.h, Choice. Patterns are numbered as there.
enum class ChoicePattern : int { local, strided, clustered = 3, hierarchical, selected };
inline constexpr int kChoices = 5;
inline constexpr int kMostBlocks = 4096;  ///< of a sequence
inline constexpr int kMostClusters = 256;
struct ChoiceArgs {
  int batch = 0, tokens = 0, heads = 0, dim = 0;
  int block = 0, blocks = 0, clusters = 0;
  // The layer's options.
  int fixed = -1;  ///< the number of the one pattern's logit; -1: the gate chooses
  bool training = false, causal = false, gated = true;
  int reach = 0, every = 2;  ///< of local and strided, in blocks
  double kept = 1.0;         ///< of the blocks, that selected keeps
  float route_above = 1.0F, route_below = 0.0F;
  unsigned key[2] = {}, draw = 0, site = 0;  ///< of the Gumbel noise
  const unsigned* counter = nullptr;         ///< in memory: added to draw; may be null
  const int* lengths = nullptr;              ///< (batch): tokens that count; null: all
  const void* qkv = nullptr;         ///< (batch, tokens, 3, heads, dim), as Config::kept says
  const float* logits = nullptr;     ///< (batch, heads, kChoices)
  const float* gate = nullptr;       ///< (batch, heads)
  const float* centroids = nullptr;  ///< (heads, clusters, dim)
  const float* temperature = nullptr;
  int* pattern = nullptr;    ///< (batch, heads): src/layers' number
  float* soft = nullptr;     ///< (batch, heads, kChoices)
  float* mixing = nullptr;   ///< (batch, heads)
  float* density = nullptr;  ///< (batch, heads)
  int* offsets = nullptr;    ///< (batch, heads, 2, blocks + 1)
  int* index = nullptr;      ///< (batch, heads, 2, blocks^2)
  // Between kernels.
  float* pooled = nullptr;        ///< (batch, heads, 2, blocks, dim): means of q and of k
  float* extremes = nullptr;      ///< (batch, heads, 2, blocks, 2, dim): maxima and minima
  float* norms = nullptr;         ///< (batch, heads, 2, blocks): of the means
  float* cosine = nullptr;        ///< (batch, heads, 2, blocks, clusters)
  float* share = nullptr;         ///< (batch, heads, 2, blocks, clusters)
  unsigned char* seen = nullptr;  ///< (batch, heads, blocks, blocks)
  int* counts = nullptr;          ///< (batch, heads, blocks)
  // Backward.
  const float* d_weight = nullptr;  ///< (batch, heads)
  float* d_logits = nullptr;        ///< (batch, heads, kChoices)
  void* d_qkv = nullptr;            ///< added to, as Config::kept says
  float* d_cosine = nullptr;        ///< (batch, heads, 2, blocks, clusters)
  float* d_centroids = nullptr;     ///< added to
  float* d_scaled = nullptr;        ///< (batch, heads, 2, blocks): of the temperature
  float* d_temperature = nullptr;   ///< added to
};

/// Two masks of pairs as one: src/layers/ops.h, JoinedMask.
struct JoinArgs {
  struct Part {
    const unsigned char* data = nullptr;  ///< null: every pair
    long long strides[4] = {};
  };
  Part first, second;
  const int* lengths = nullptr;  ///< (batch), may be null
  int batch = 0, heads = 0, rows = 0, keys = 0, repeat = 1;
  unsigned char* out = nullptr;
};

struct EmbedArgs {
  const int* ids = nullptr;      ///< (rows)
  const float* table = nullptr;  ///< (vocabulary, cols)
  float* y = nullptr;            ///< (rows, cols); backward: the table's gradient, added to
  const float* dy = nullptr;
  long long rows = 0;
  int cols = 0;
  int vocabulary = 0;
};
inline constexpr int kIdsAtOnce = 4;  ///< times 32, that a warp of embed_backward reads at once

struct ReadArgs {
  Tokens shape;
  bool last = false;
  const float* from = nullptr;  ///< (batch, tokens, dim); backward (batch, dim)
  float* to = nullptr;
};

/// As src/layers/ops.h has it.
struct State {
  long long draws;
  float loss, scale;
  int good_in_a_row, not_finite, steps, skipped;
};
struct LossArgs {
  const float* logits = nullptr;  ///< (rows, cols)
  const int* labels = nullptr;
  float* d_logits = nullptr;
  State* state = nullptr;
  int rows = 0, cols = 0;
};
struct AdamArgs {
  float* w = nullptr;
  const float* g = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  long long elems = 0;
  double learning_rate = 0.0, beta1 = 0.0, beta2 = 0.0, epsilon = 0.0;
  State* state = nullptr;
};
struct EndArgs {
  State* state = nullptr;
  bool scale_loss = false;
  int growth_interval = 0;
};

}  // namespace tilewise::layer_steps
