/// layer_steps: the steps of layers beside products and attention. Each entry is the verb of
/// src/layers/ops.h of that name; its formulas stand there. Sums have a fixed order: repeatable.
#pragma once

#include "cuda/kernels/layers/steps_args.h"
#include "cuda/kernels/textbook/textbook.cuh"
#include "cuda/tile/dropout.cuh"

namespace tilewise::layer_steps {

using textbook::block_reduce;
using textbook::i64;
using textbook::Max;
using textbook::Sum;

/// body(i) for every i below `count`, over all threads of the grid.
template <class Body>
__forceinline__ void each(i64 count, const Body& body) {
  const i64 stride = static_cast<i64>(gridDim.x) * kThreads;
  for (i64 i = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    body(i);
  }
}

/// Element i of what is kept, and to write it.
template <Config kConfig>
__forceinline__ float kept_at(const void* x, i64 i) {
  if constexpr (kConfig.kept == Kept::f32) {
    return static_cast<const float*>(x)[i];
  } else {
    const unsigned short half = static_cast<const unsigned short*>(x)[i];
    return kConfig.kept == Kept::bf16 ? tile::widen<tile::Element::bf16>(half)
                                      : tile::widen<tile::Element::fp16>(half);
  }
}
template <Config kConfig>
__forceinline__ void keep(void* x, i64 i, float value) {
  if constexpr (kConfig.kept == Kept::f32) {
    static_cast<float*>(x)[i] = value;
  } else {
    static_cast<unsigned short*>(x)[i] = static_cast<unsigned short>(
        kConfig.kept == Kept::bf16 ? tile::pack<tile::Element::bf16>(value, 0.0F)
                                   : tile::pack<tile::Element::fp16>(value, 0.0F));
  }
}

/// Tokens of sequence b that count.
__forceinline__ int counted(const int* lengths, i64 b, int tokens) {
  return lengths == nullptr ? tokens : min(max(lengths[b], 0), tokens);
}

__forceinline__ float sum_of_block(float x) { return block_reduce<kThreads>(x, Sum{}); }
__forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
__forceinline__ float normal_area(float x) { return 0.5F * (1.0F + erff(x * 0.70710678F)); }

__forceinline__ float activated(Activation f, float z) {
  if (f == Activation::gelu) return z * normal_area(z);
  if (f == Activation::relu) return fmaxf(z, 0.0F);
  return f == Activation::sigmoid ? sigmoid(z) : z;
}

template <Config>
__forceinline__ void copy(const CopyArgs& a) {
  each(a.elems, [&](i64 i) { a.y[i] = a.x[i]; });
}

template <Config>
__forceinline__ void add(const CopyArgs& a) {
  each(a.elems, [&](i64 i) { a.y[i] += a.x[i]; });
}

/// change(float, half) for every element of one tensor and its twin.
template <class Change>
__forceinline__ void each_twin(const TwinArgs& a, const Change& change) {
  const Twin& t = a.twins[blockIdx.y];
  each(t.elems, [&](i64 i) {
    const i64 row = i / t.dim / t.heads, head = i / t.dim % t.heads;
    const i64 at = row / t.tokens * t.stride_b + row % t.tokens * t.stride_s + head * t.stride_h;
    change(t.data[at + i % t.dim], t.half[i]);
  });
}

template <Config>
__forceinline__ void narrow(const TwinArgs& a) {
  each_twin(a, [&](const float& x, unsigned short& half) {
    half = static_cast<unsigned short>(a.bf16 ? tile::pack<tile::Element::bf16>(x, 0.0F)
                                              : tile::pack<tile::Element::fp16>(x, 0.0F));
  });
}

template <Config>
__forceinline__ void widen(const TwinArgs& a) {
  each_twin(a, [&](float& x, const unsigned short& half) {
    x = a.bf16 ? tile::widen<tile::Element::bf16>(half) : tile::widen<tile::Element::fp16>(half);
  });
}

template <Config>
__forceinline__ void activate(const ActivateArgs& a) {
  each(a.rows * a.cols, [&](i64 i) {
    const float z = a.z[i] + (a.bias == nullptr ? 0.0F : a.bias[i % a.cols]);
    a.z[i] = z;
    a.y[i] = activated(a.f, z);
  });
}

template <Config>
__forceinline__ void activate_backward(const ActivateArgs& a) {
  each(a.rows * a.cols, [&](i64 i) {
    float slope = 1.0F;
    if (a.f != Activation::none) {
      const float z = a.z[i];
      if (a.f == Activation::gelu) slope = normal_area(z) + z * 0.39894228F * expf(-0.5F * z * z);
      if (a.f == Activation::relu) slope = z > 0.0F ? 1.0F : 0.0F;
      if (a.f == Activation::sigmoid) slope = sigmoid(z) * (1.0F - sigmoid(z));
    }
    a.y[i] = slope * a.dy[i];
  });
}

/// Adds up what each of a block's rows of threads found of its column; the first row gets it.
template <int kCols = kColumns>
__forceinline__ float sum_of_rows(float x) {
  __shared__ float parts[kThreads];
  __syncthreads();  // readers of the last sum are done
  parts[threadIdx.x] = x;
  __syncthreads();
  if (threadIdx.x >= kCols) return 0.0F;
  float sum = 0.0F;
  for (int row = 0; row < kThreads / kCols; ++row) sum += parts[row * kCols + threadIdx.x];
  return sum;
}

/// One block: kFewColumns columns.
template <Config>
__forceinline__ void columns(const ColumnArgs& a) {
  const int col = static_cast<int>(blockIdx.x) * kFewColumns + threadIdx.x % kFewColumns;
  float sum = 0.0F;
  if (col < a.cols) {
    for (i64 i = threadIdx.x / kFewColumns; i < a.rows; i += kThreads / kFewColumns) {
      sum += a.dy[i * a.cols + col];
    }
  }
  sum = sum_of_rows<kFewColumns>(sum);
  if (threadIdx.x < kFewColumns && col < a.cols) a.sums[col] += sum;
}

template <Config>
__forceinline__ void norm_columns(const ColumnArgs& a) {
  const int col = static_cast<int>(blockIdx.x) * kFewColumns + threadIdx.x % kFewColumns;
  float sum = 0.0F, along = 0.0F;
  if (col < a.cols) {
    for (i64 i = threadIdx.x / kFewColumns; i < a.rows; i += kThreads / kFewColumns) {
      const float d = a.dy[i * a.cols + col];
      sum += d;
      along += d * (a.x[i * a.cols + col] - a.statistics[2 * i]) * a.statistics[2 * i + 1];
    }
  }
  sum = sum_of_rows<kFewColumns>(sum);
  along = sum_of_rows<kFewColumns>(along);
  if (threadIdx.x >= kFewColumns || col >= a.cols) return;
  a.sums[col] += sum;
  a.along[col] += along;
}

__forceinline__ float sum_of_warp(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, lane);
  return x;
}

/// Elements of a row that a lane holds; beyond them it reads memory each time.
inline constexpr int kRowHeld = 8;

/// A row and one of its warp's lanes, which has elements lane, lane + 32, ... All that it holds is
/// asked for at once: behind a store, a load waits for what may be the same place.
struct WarpRow {
  const float* x;
  float held[kRowHeld];

  __forceinline__ WarpRow(const float* row, int cols) : x(row) {
#pragma unroll
    for (int n = 0; n < kRowHeld; ++n) {
      const int j = threadIdx.x % 32 + 32 * n;
      held[n] = j < cols ? row[j] : 0.0F;
    }
  }
  /// Element j, the lane's nth.
  __forceinline__ float at(int n, int j) const { return n < kRowHeld ? held[n] : x[j]; }
};

/// body(n, j) for every element j of a lane, its nth.
template <class Body>
__forceinline__ void each_of_row(int cols, const Body& body) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kRowHeld; ++n) {
    if (lane + 32 * n < cols) body(n, lane + 32 * n);
  }
  for (int j = lane + 32 * kRowHeld; j < cols; j += 32) body(kRowHeld, j);
}

/// One warp: one row.
template <Config>
__forceinline__ void layer_norm(const NormArgs& a) {
  const i64 row = static_cast<i64>(blockIdx.x) * kNormRows + threadIdx.x / 32;
  if (row >= a.rows) return;
  const WarpRow x(a.x + row * a.cols, a.cols), gamma(a.gamma, a.cols), beta(a.beta, a.cols);
  float sum = 0.0F;
  each_of_row(a.cols, [&](int n, int j) { sum += x.at(n, j); });
  const float mean = sum_of_warp(sum) / static_cast<float>(a.cols);
  float squares = 0.0F;
  each_of_row(a.cols, [&](int n, int j) { squares += (x.at(n, j) - mean) * (x.at(n, j) - mean); });
  const float rstd = rsqrtf(sum_of_warp(squares) / static_cast<float>(a.cols) + 1e-5F);
  float* y = a.y + row * a.cols;
  each_of_row(a.cols, [&](int n, int j) {
    y[j] = (x.at(n, j) - mean) * rstd * gamma.at(n, j) + beta.at(n, j);
  });
  if (threadIdx.x % 32 != 0) return;
  a.statistics[2 * row] = mean;
  a.statistics[2 * row + 1] = rstd;
}

template <Config>
__forceinline__ void normalise(const NormArgs& a) {
  each(a.rows * a.cols, [&](i64 i) {
    const i64 row = i / a.cols, j = i % a.cols;
    const float mean = a.statistics[2 * row], rstd = a.statistics[2 * row + 1];
    a.y[i] = (a.x[i] - mean) * rstd * a.gamma[j] + a.beta[j];
  });
}

/// One warp: one row.
template <Config>
__forceinline__ void layer_norm_backward(const NormArgs& a) {
  const i64 row = static_cast<i64>(blockIdx.x) * kNormRows + threadIdx.x / 32;
  if (row >= a.rows) return;
  float* dx = a.dx + row * a.cols;
  const WarpRow x(a.x + row * a.cols, a.cols), dy(a.dy + row * a.cols, a.cols);
  const WarpRow gamma(a.gamma, a.cols), before(dx, a.cols);
  const float mean = a.statistics[2 * row], rstd = a.statistics[2 * row + 1];
  float sum = 0.0F, along = 0.0F;
  each_of_row(a.cols, [&](int n, int j) {
    const float d = dy.at(n, j) * gamma.at(n, j);
    sum += d;
    along += d * (x.at(n, j) - mean) * rstd;
  });
  sum = sum_of_warp(sum) / static_cast<float>(a.cols);
  along = sum_of_warp(along) / static_cast<float>(a.cols);
  each_of_row(a.cols, [&](int n, int j) {
    const float normal = (x.at(n, j) - mean) * rstd;
    dx[j] = before.at(n, j) + rstd * (dy.at(n, j) * gamma.at(n, j) - sum - normal * along);
  });
}

/// body(i, factor) for every element. A thread takes four columns, whose bits come from one
/// counter. The factor is 0 where an element is dropped.
template <class Args, class Body>
__forceinline__ void each_dropped(const Args& a, const Body& body) {
  const int groups = (a.cols + 3) / 4;
  each(a.rows * groups, [&](i64 n) {
    const i64 row = n / groups;
    const int group = static_cast<int>(n % groups);
    tile::u32 kept = 15U;
    if (a.drops) {
      kept = tile::kept_words(a.bits, static_cast<tile::u32>(group),
                              static_cast<tile::u32>(row) + a.first, a.site);
    }
    for (int e = 0; e < 4 && 4 * group + e < a.cols; ++e) {
      const float factor = (kept >> e & 1U) == 0 ? 0.0F : a.drops ? a.bits.scale : 1.0F;
      body(row * a.cols + 4 * group + e, factor);
    }
  });
}

template <Config>
__forceinline__ void drop_add(const DropArgs& a) {
  each_dropped(a, [&](i64 i, float factor) {
    const float value = factor != 0.0F ? a.a[i] * factor : 0.0F;
    a.y[i] = (a.x == nullptr ? 0.0F : a.x[i]) + value;
  });
}

template <Config>
__forceinline__ void gelu_backward(const GeluArgs& a) {
  each_dropped(a, [&](i64 i, float factor) {
    const float z = a.z[i], area = normal_area(z);
    const float d = factor != 0.0F ? a.du[i] * factor : 0.0F;
    a.du[i] = factor != 0.0F ? z * area * factor : 0.0F;
    a.dz[i] = (area + z * 0.39894228F * expf(-0.5F * z * z)) * d;
  });
}

/// One thread: one (sequence, head).
template <Config>
__forceinline__ void gate(const GateArgs& a) {
  each(a.batch * a.heads, [&](i64 i) {
    a.g[i] = sigmoid((a.threshold[i % a.heads] - a.c[i]) * a.p[i] / fabsf(*a.tau));
  });
}

/// One block of all: one thread a head, which walks over the batch.
template <Config>
__forceinline__ void gate_backward(const GateArgs& a) {
  const float tau = *a.tau, size = fabsf(tau);
  float d_tau = 0.0F;
  for (int head = threadIdx.x; head < a.heads; head += kThreads) {
    float d_threshold = 0.0F;
    for (int b = 0; b < a.batch; ++b) {
      const int i = b * a.heads + head;
      const float over = a.threshold[head] - a.c[i];
      const float d = a.dg[i] * a.g[i] * (1.0F - a.g[i]);
      a.dc[i] = -d * a.p[i] / size;
      a.dp[i] = d * over / size;
      d_threshold += d * a.p[i] / size;
      d_tau -= d * over * a.p[i] / (tau * size);
    }
    a.d_threshold[head] += d_threshold;
  }
  d_tau = sum_of_block(d_tau);
  if (threadIdx.x == 0) *a.d_tau += d_tau;
}

template <Config kConfig>
__forceinline__ void mix(const MixArgs& a) {
  const i64 rows = static_cast<i64>(a.batch) * a.tokens * a.heads;
  each(rows * a.dim, [&](i64 i) {
    const i64 at = i / a.dim, e = i % a.dim;
    const float g = a.g[at / a.heads / a.tokens * a.heads + at % a.heads];
    a.a[i] = g * kept_at<kConfig>(a.o, 2 * at * a.dim + e) +
             (1.0F - g) * kept_at<kConfig>(a.o, (2 * at + 1) * a.dim + e);
  });
}

/// One block: one (sequence, head).
template <Config kConfig>
__forceinline__ void mix_backward(const MixArgs& a) {
  const i64 bh = blockIdx.x, b = bh / a.heads, head = bh % a.heads;
  const float g = a.g[bh];
  float sparse = 0.0F, dense = 0.0F;
  for (i64 n = threadIdx.x; n < static_cast<i64>(a.tokens) * a.dim; n += kThreads) {
    const i64 at = (b * a.tokens + n / a.dim) * a.heads + head, e = n % a.dim;
    const i64 first = 2 * at * a.dim + e, second = first + a.dim;
    const float d = kept_at<kConfig>(a.da, at * a.dim + e);
    keep<kConfig>(a.d_o, first, g * d);
    keep<kConfig>(a.d_o, second, (1.0F - g) * d);
    sparse += d * kept_at<kConfig>(a.o, first);
    dense += d * kept_at<kConfig>(a.o, second);
  }
  sparse = sum_of_block(sparse);
  dense = sum_of_block(dense);
  if (threadIdx.x != 0) return;
  a.dg[bh] = sparse - dense;
  if (a.d_weight != nullptr) a.d_weight[bh] = g * sparse;
}

template <Config kConfig>
__forceinline__ void twice(const TwiceArgs& a) {
  const i64 width = static_cast<i64>(a.heads) * a.dim;
  each(a.rows * width, [&](i64 i) {
    const i64 at = i / a.dim, e = i % a.dim;
    const float q = kept_at<kConfig>(a.from, i / width * 3 * width + i % width);
    keep<kConfig>(a.to, 2 * at * a.dim + e, q);
    keep<kConfig>(a.to, (2 * at + 1) * a.dim + e, q);
  });
}

template <Config kConfig>
__forceinline__ void twice_backward(const TwiceArgs& a) {
  const i64 width = static_cast<i64>(a.heads) * a.dim;
  each(a.rows * width, [&](i64 i) {
    const i64 at = i / a.dim, e = i % a.dim;
    keep<kConfig>(a.to, i / width * 3 * width + i % width,
                  kept_at<kConfig>(a.from, 2 * at * a.dim + e) +
                      kept_at<kConfig>(a.from, (2 * at + 1) * a.dim + e));
  });
}

template <Config>
__forceinline__ void join_masks(const JoinArgs& a) {
  const auto sees = [](const JoinArgs::Part& part, i64 b, i64 h, i64 i, i64 j) {
    return part.data == nullptr || part.data[b * part.strides[0] + h * part.strides[1] +
                                             i * part.strides[2] + j * part.strides[3]] != 0;
  };
  const i64 copies = static_cast<i64>(a.heads) * a.repeat;
  each(a.batch * copies * a.rows * a.keys, [&](i64 at) {
    const i64 j = at % a.keys, i = at / a.keys % a.rows, line = at / a.keys / a.rows;
    const i64 b = line / copies, h = line % copies / a.repeat;
    const bool inside = a.lengths == nullptr || j < a.lengths[b];
    a.out[at] = inside && sees(a.first, b, h, i, j) && sees(a.second, b, h, i, j) ? 1 : 0;
  });
}

template <Config>
__forceinline__ void embed(const EmbedArgs& a) {
  each(a.rows * a.cols, [&](i64 i) {
    const int id = a.ids[i / a.cols];
    const bool known = id >= 0 && id < a.vocabulary;
    a.y[i] = known ? a.table[static_cast<i64>(id) * a.cols + i % a.cols] : tile::not_a_number();
  });
}

/// One block: one row of the table. Each warp looks for its tokens, 32 at a time, and adds up those
/// columns that are its threads'.
template <Config>
__forceinline__ void embed_backward(const EmbedArgs& a) {
  const int id = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32;
  for (int first = 0; first < a.cols; first += kThreads) {
    const int j = first + threadIdx.x;
    float sum = 0.0F;
    for (i64 i = 0; i < a.rows; i += 32 * kIdsAtOnce) {
      unsigned found[kIdsAtOnce];
#pragma unroll
      for (int n = 0; n < kIdsAtOnce; ++n) {
        const i64 at = i + 32 * n + lane;
        found[n] = __ballot_sync(~0U, at < a.rows && a.ids[at] == id);
      }
#pragma unroll
      for (int n = 0; n < kIdsAtOnce; ++n) {
        for (; found[n] != 0; found[n] &= found[n] - 1) {
          const i64 at = i + 32 * n + __popc((found[n] & (0U - found[n])) - 1);
          if (j < a.cols) sum += a.dy[at * a.cols + j];
        }
      }
    }
    if (j < a.cols) a.y[static_cast<i64>(id) * a.cols + j] += sum;
  }
}

/// One block: kFewColumns features of a sequence.
template <Config>
__forceinline__ void read_out(const ReadArgs& a) {
  const int groups = (a.shape.dim + kFewColumns - 1) / kFewColumns;
  const int b = static_cast<int>(blockIdx.x) / groups;
  const int col = static_cast<int>(blockIdx.x) % groups * kFewColumns + threadIdx.x % kFewColumns;
  const float* x = a.from + static_cast<i64>(b) * a.shape.tokens * a.shape.dim;
  const int count = counted(a.shape.lengths, b, a.shape.tokens);
  float sum = 0.0F;
  if (col < a.shape.dim) {
    const int first = a.last ? max(count - 1, 0) : 0;
    for (int i = first + threadIdx.x / kFewColumns; i < count; i += kThreads / kFewColumns) {
      sum += x[static_cast<i64>(i) * a.shape.dim + col];
    }
  }
  sum = sum_of_rows<kFewColumns>(sum);
  if (threadIdx.x >= kFewColumns || col >= a.shape.dim) return;
  a.to[b * a.shape.dim + col] = a.last ? sum : sum / static_cast<float>(max(count, 1));
}

template <Config>
__forceinline__ void read_out_backward(const ReadArgs& a) {
  const Tokens& s = a.shape;
  each(static_cast<i64>(s.batch) * s.tokens * s.dim, [&](i64 i) {
    const i64 row = i / s.dim;
    const int token = static_cast<int>(row % s.tokens);
    const int count = counted(s.lengths, row / s.tokens, s.tokens);
    float share = a.last ? (token == count - 1 ? 1.0F : 0.0F) : 0.0F;
    if (!a.last && token < count) share = 1.0F / static_cast<float>(count);
    a.to[i] = share * a.from[row / s.tokens * s.dim + i % s.dim];
  });
}

}  // namespace tilewise::layer_steps
