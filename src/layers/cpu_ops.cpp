#include "layers/cpu_ops.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "cpu/micro/elements.h"
#include "problem/philox.h"

namespace tilewise::asam {
namespace {

template <class T>
T sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

/// The area below the normal curve up to x: GELU is x times it.
template <class T>
T normal_area(T x) {
  return T{0.5} * (T{1} + std::erf(x / std::numbers::sqrt2_v<T>));
}

template <class T>
T activation(Activation f, T z) {
  switch (f) {
    case Activation::gelu:
      return z * normal_area(z);
    case Activation::relu:
      return std::max(z, T{0});
    case Activation::sigmoid:
      return sigmoid(z);
    case Activation::none:
      break;
  }
  return z;
}

template <class T>
T slope(Activation f, T z) {
  constexpr T kInverseRoot = std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
  switch (f) {
    case Activation::gelu:
      return normal_area(z) + z * kInverseRoot * std::exp(-z * z / 2);
    case Activation::relu:
      return z > T{0} ? T{1} : T{0};
    case Activation::sigmoid:
      return sigmoid(z) * (T{1} - sigmoid(z));
    case Activation::none:
      break;
  }
  return T{1};
}

DropoutMask mask_of(const Drop& drop) {
  return DropoutMask({.p = drop.p, .seed = drop.seed, .offset = drop.offset()});
}
template <class T>
T dropout_scale(const Drop& drop) {
  return drop.p > 0.0 ? static_cast<T>(mask_of(drop).scale()) : T{1};
}
/// Calls f(index, whether dropout keeps it) for the elements of rows `begin` to `end`.
template <class F>
void for_each_drawn(const Drop& drop, std::int64_t begin, std::int64_t end, std::int64_t cols,
                    const F& f) {
  const DropoutMask mask = mask_of(drop);
  const bool drops = drop.p > 0.0;
  PhiloxCounter words{};
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      if (drops && j % 4 == 0) words = mask.words(drop.site, drop.first + i, j / 4);
      f(i * cols + j, !drops || mask.keeps(words[static_cast<std::size_t>(j % 4)]));
    }
  }
}

}  // namespace

const float* read_row(const Factor<float>& x, DType half, std::int64_t at, std::int64_t count,
                      float* room) {
  if (x.half == nullptr) return x.wide + at;
  cpu::load_row(Tensor::contiguous(const_cast<std::uint16_t*>(x.half), half, {count}), at, 1, count,
                room);
  return room;
}
const double* read_row(const Factor<double>& x, DType, std::int64_t at, std::int64_t, double*) {
  return x.wide + at;
}

void write_row(const Stored<float>& x, DType half, std::int64_t at, std::int64_t count,
               const float* room) {
  if (x.half == nullptr) return;
  cpu::store_row(Tensor::contiguous(x.half, half, {count}), at, 1, count, room);
}
void write_row(const Stored<double>&, DType, std::int64_t, std::int64_t, const double*) {}

template <class T>
void CpuOps<T>::clear(void* x, std::int64_t bytes) {
  std::memset(x, 0, static_cast<std::size_t>(bytes));
}

template <class T>
void CpuOps<T>::upload(void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

template <class T>
void CpuOps<T>::download(void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

template <class T>
void CpuOps<T>::copy(const T* x, T* y, std::int64_t elems) {
  std::copy_n(x, elems, y);
}

template <class T>
void CpuOps<T>::add(const T* x, T* y, std::int64_t elems) {
  each(elems, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] += x[i];
  });
}

template <class T>
void CpuOps<T>::to_half(const T* x, std::uint16_t* half, Shape s) {
  each(s.rows, s.cols, [&](std::int64_t begin, std::int64_t end) {
    write_row(Stored<T>::halves(half), half_, begin * s.cols, (end - begin) * s.cols,
              x + begin * s.cols);
  });
}

template <class T>
void CpuOps<T>::from_half(const std::uint16_t* half, T* x, Shape s) {
  Factor<T> from;
  from.half = half;
  each(s.rows, s.cols, [&](std::int64_t begin, std::int64_t end) {
    read_row(from, half_, begin * s.cols, (end - begin) * s.cols, x + begin * s.cols);
  });
}

template <class T>
const T* CpuOps<T>::wide(const Factor<T>& x, Buffer<T>& room, Shape s) {
  if (x.half == nullptr) return x.wide;
  T* to = room.room(*memory_, s.rows * s.cols);
  from_half(x.half, to, s);
  return to;
}

template <class T>
void CpuOps<T>::activate(T* z, const T* bias, T* y, Activation f, Shape s) {
  each(s.rows, 8 * s.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = z + i * s.cols;
      if (bias != nullptr) {
        for (std::int64_t j = 0; j < s.cols; ++j) row[j] += bias[j];
      }
      if (f == Activation::none && y == z) continue;
      for (std::int64_t j = 0; j < s.cols; ++j) y[i * s.cols + j] = activation(f, row[j]);
    }
  });
}

template <class T>
void CpuOps<T>::activate_backward(const T* z, const T* dy, T* dz, T* dbias, Activation f, Shape s) {
  if (f != Activation::none || dz != dy) {
    each(s.rows, 8 * s.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * s.cols; i < end * s.cols; ++i) {
        dz[i] = f == Activation::none ? dy[i] : slope(f, z[i]) * dy[i];
      }
    });
  }
  if (dbias == nullptr) return;
  each(s.cols, s.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < s.rows; ++i) {
      for (std::int64_t j = begin; j < end; ++j) dbias[j] += dz[i * s.cols + j];
    }
  });
}

template <class T>
void CpuOps<T>::gelu_backward(const T* z, T* du, T* dz, const Drop& drop, Shape s) {
  constexpr T kInverseRoot = std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
  const T scale = dropout_scale<T>(drop);
  each(s.rows, (drop.p > 0.0 ? 24 : 8) * s.cols, [&](std::int64_t begin, std::int64_t end) {
    for_each_drawn(drop, begin, end, s.cols, [&](std::int64_t at, bool keeps) {
      const T x = z[at], area = normal_area(x), d = keeps ? du[at] * scale : T{0};
      du[at] = keeps ? x * area * scale : T{0};
      dz[at] = (area + x * kInverseRoot * std::exp(-x * x / 2)) * d;
    });
  });
}

template <class T>
void CpuOps<T>::layer_norm(const T* x, const T* gamma, const T* beta, T* y, T* statistics,
                           Shape s) {
  constexpr T kEpsilon = T(1e-5);  // torch's
  each(s.rows, 4 * s.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* row = x + i * s.cols;
      T sum = 0;
      for (std::int64_t j = 0; j < s.cols; ++j) sum += row[j];
      const T mean = sum / static_cast<T>(s.cols);
      T squares = 0;
      for (std::int64_t j = 0; j < s.cols; ++j) squares += (row[j] - mean) * (row[j] - mean);
      const T rstd = T{1} / std::sqrt(squares / static_cast<T>(s.cols) + kEpsilon);
      statistics[2 * i] = mean;
      statistics[2 * i + 1] = rstd;
      for (std::int64_t j = 0; j < s.cols; ++j) {
        y[i * s.cols + j] = (row[j] - mean) * rstd * gamma[j] + beta[j];
      }
    }
  });
}

template <class T>
void CpuOps<T>::normalise(const T* x, const T* gamma, const T* beta, const T* statistics, T* y,
                          Shape s) {
  each(s.rows, s.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T mean = statistics[2 * i], rstd = statistics[2 * i + 1];
      for (std::int64_t j = 0; j < s.cols; ++j) {
        y[i * s.cols + j] = (x[i * s.cols + j] - mean) * rstd * gamma[j] + beta[j];
      }
    }
  });
}

template <class T>
void CpuOps<T>::layer_norm_backward(const T* x, const T* gamma, const T* statistics, const T* dy,
                                    T* dx, T* dgamma, T* dbeta, Shape s) {
  each(s.rows, 4 * s.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T mean = statistics[2 * i], rstd = statistics[2 * i + 1];
      const T* row = x + i * s.cols;
      const T* d_row = dy + i * s.cols;
      T sum = 0, along = 0;
      for (std::int64_t j = 0; j < s.cols; ++j) {
        const T d = d_row[j] * gamma[j];
        sum += d;
        along += d * (row[j] - mean) * rstd;
      }
      sum /= static_cast<T>(s.cols);
      along /= static_cast<T>(s.cols);
      for (std::int64_t j = 0; j < s.cols; ++j) {
        const T normal = (row[j] - mean) * rstd;
        dx[i * s.cols + j] += rstd * (d_row[j] * gamma[j] - sum - normal * along);
      }
    }
  });
  each(s.cols, 2 * s.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < s.rows; ++i) {
      const T mean = statistics[2 * i], rstd = statistics[2 * i + 1];
      for (std::int64_t j = begin; j < end; ++j) {
        const T d = dy[i * s.cols + j];
        dgamma[j] += d * (x[i * s.cols + j] - mean) * rstd;
        dbeta[j] += d;
      }
    }
  });
}

template <class T>
void CpuOps<T>::drop_add(const T* x, const T* a, T* y, const Drop& drop, Shape s) {
  const T scale = dropout_scale<T>(drop);
  each(s.rows, (drop.p > 0.0 ? 16 : 1) * s.cols, [&](std::int64_t begin, std::int64_t end) {
    for_each_drawn(drop, begin, end, s.cols, [&](std::int64_t at, bool keeps) {
      y[at] = (x != nullptr ? x[at] : T{0}) + (keeps ? a[at] * scale : T{0});
    });
  });
}

template <class T>
void CpuOps<T>::gate(const T* c, const T* p, const T* threshold, const T* tau, T* g, Shape s) {
  for (std::int64_t i = 0; i < s.rows * s.cols; ++i) {
    g[i] = sigmoid((threshold[i % s.cols] - c[i]) * p[i] / std::abs(*tau));
  }
}

template <class T>
void CpuOps<T>::gate_backward(const T* c, const T* p, const T* threshold, const T* tau, const T* g,
                              const T* dg, T* dc, T* dp, T* d_threshold, T* d_tau, Shape s) {
  const T size = std::abs(*tau);
  for (std::int64_t i = 0; i < s.rows * s.cols; ++i) {
    const T over = threshold[i % s.cols] - c[i];
    const T d = dg[i] * g[i] * (T{1} - g[i]);  // of the sigmoid's argument
    dc[i] = -d * p[i] / size;
    dp[i] = d * over / size;
    d_threshold[i % s.cols] += d * p[i] / size;
    *d_tau -= d * over * p[i] / (*tau * size);
  }
}

template <class T>
void CpuOps<T>::mix(Factor<T> o, const T* g, T* a, HeadShape s) {
  each(s.rows(), 2 * s.heads * s.dim, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> room(static_cast<std::size_t>(2 * s.dim));
    for (std::int64_t at = begin * s.heads; at < end * s.heads; ++at) {
      const T share = g[at / s.heads / s.tokens * s.heads + at % s.heads];
      const T* sparse = read_row(o, half_, 2 * at * s.dim, 2 * s.dim, room.data());
      const T* dense = sparse + s.dim;
      for (std::int64_t e = 0; e < s.dim; ++e) {
        a[at * s.dim + e] = share * sparse[e] + (T{1} - share) * dense[e];
      }
    }
  });
}

template <class T>
void CpuOps<T>::mix_backward(Factor<T> o, const T* g, Factor<T> da, Stored<T> d_o, T* dg,
                             T* d_weight, HeadShape s) {
  each(s.batch * s.heads, 4 * s.tokens * s.dim, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> rooms(static_cast<std::size_t>(5 * s.dim));
    T *o_room = rooms.data(), *d_o_room = o_room + 2 * s.dim, *da_room = d_o_room + 2 * s.dim;
    for (std::int64_t bh = begin; bh < end; ++bh) {
      const T share = g[bh];
      T along_sparse = 0, along_dense = 0;
      for (std::int64_t i = 0; i < s.tokens; ++i) {
        const std::int64_t at = (bh / s.heads * s.tokens + i) * s.heads + bh % s.heads;
        const std::int64_t first = 2 * at * s.dim;
        const T* sparse = read_row(o, half_, first, 2 * s.dim, o_room);
        const T* dense = sparse + s.dim;
        const T* d = read_row(da, half_, at * s.dim, s.dim, da_room);
        T* to = row_of(d_o, first, d_o_room);
        for (std::int64_t e = 0; e < s.dim; ++e) {
          to[e] = share * d[e];
          to[s.dim + e] = (T{1} - share) * d[e];
          along_sparse += d[e] * sparse[e];
          along_dense += d[e] * dense[e];
        }
        write_row(d_o, half_, first, 2 * s.dim, to);
      }
      dg[bh] = along_sparse - along_dense;
      if (d_weight != nullptr) d_weight[bh] = share * along_sparse;
    }
  });
}

template <class T>
void CpuOps<T>::twice(Factor<T> qkv, Stored<T> q2, HeadShape s) {
  each(s.rows(), 2 * s.heads * s.dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin * s.heads; at < end * s.heads; ++at) {
      const std::int64_t q = (at / s.heads * 3 * s.heads + at % s.heads) * s.dim;
      for (const std::int64_t to : {2 * at * s.dim, (2 * at + 1) * s.dim}) {
        if (qkv.half != nullptr) {
          std::copy_n(qkv.half + q, s.dim, q2.half + to);
        } else {
          std::copy_n(qkv.wide + q, s.dim, q2.wide + to);
        }
      }
    }
  });
}

template <class T>
void CpuOps<T>::twice_backward(Factor<T> dq2, Stored<T> dqkv, HeadShape s) {
  each(s.rows(), 2 * s.heads * s.dim, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> rooms(static_cast<std::size_t>(3 * s.dim));
    for (std::int64_t at = begin * s.heads; at < end * s.heads; ++at) {
      const T* first = read_row(dq2, half_, 2 * at * s.dim, 2 * s.dim, rooms.data());
      const std::int64_t place = (at / s.heads * 3 * s.heads + at % s.heads) * s.dim;
      T* dq = row_of(dqkv, place, rooms.data() + 2 * s.dim);
      for (std::int64_t e = 0; e < s.dim; ++e) dq[e] = first[e] + first[s.dim + e];
      write_row(dqkv, half_, place, s.dim, dq);
    }
  });
}

template <class T>
void CpuOps<T>::embed(const std::int32_t* ids, const T* table, T* y, Shape s) {
  for (std::int64_t i = 0; i < s.rows; ++i) {
    std::copy_n(table + ids[i] * s.cols, s.cols, y + i * s.cols);
  }
}

template <class T>
void CpuOps<T>::embed_backward(const std::int32_t* ids, const T* dy, T* d_table, Shape s) {
  for (std::int64_t i = 0; i < s.rows; ++i) {
    for (std::int64_t j = 0; j < s.cols; ++j) d_table[ids[i] * s.cols + j] += dy[i * s.cols + j];
  }
}

template <class T>
void CpuOps<T>::join_masks(const JoinedMask& m) {
  const auto at = [](const JoinedMask::Part& part, const std::array<std::int64_t, 4>& i) {
    return part.data == nullptr || part.data[i[0] * part.strides[0] + i[1] * part.strides[1] +
                                             i[2] * part.strides[2] + i[3] * part.strides[3]] != 0;
  };
  const auto [batch, heads, rows, keys] = m.sizes;
  const std::int64_t lines = batch * heads * m.repeat * rows, width = keys, height = rows;
  const std::int64_t copies = heads * m.repeat;
  each(lines, 4 * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      std::array<std::int64_t, 4> i = {line / height / copies, line / height % copies / m.repeat,
                                       line % height, 0};
      for (; i[3] < width; ++i[3]) {
        const bool inside = m.lengths == nullptr || i[3] < m.lengths[i[0]];
        m.out[line * width + i[3]] = inside && at(m.first, i) && at(m.second, i) ? 1 : 0;
      }
    }
  });
}

template <class T>
void CpuOps<T>::read_out(const T* x, Lengths lengths, T* y, Readout readout, TokenShape s) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const T* tokens = x + b * s.tokens * s.dim;
    const std::int64_t count = counted(lengths, b, s.tokens);
    T* out = y + b * s.dim;
    std::fill_n(out, s.dim, T{0});
    if (count == 0) continue;
    const bool last = readout == Readout::last;
    for (std::int64_t i = last ? count - 1 : 0; i < count; ++i) {
      for (std::int64_t j = 0; j < s.dim; ++j) out[j] += tokens[i * s.dim + j];
    }
    for (std::int64_t j = 0; !last && j < s.dim; ++j) out[j] /= static_cast<T>(count);
  }
}

template <class T>
void CpuOps<T>::read_out_backward(const T* dy, Lengths lengths, T* dx, Readout readout,
                                  TokenShape s) {
  for (std::int64_t i = 0; i < s.rows(); ++i) {
    const std::int64_t token = i % s.tokens, count = counted(lengths, i / s.tokens, s.tokens);
    const T share = readout == Readout::last ? T(token == count - 1 ? 1 : 0)
                    : token < count          ? T{1} / static_cast<T>(count)
                                             : T{0};
    for (std::int64_t j = 0; j < s.dim; ++j) {
      dx[i * s.dim + j] = share * dy[i / s.tokens * s.dim + j];
    }
  }
}

template <class T>
void CpuOps<T>::cross_entropy(const T* logits, const std::int32_t* labels, T* d_logits,
                              TrainState* state, Shape s) {
  T loss = 0;
  for (std::int64_t i = 0; i < s.rows; ++i) {
    const T* row = logits + i * s.cols;
    const T most = *std::max_element(row, row + s.cols);
    T sum = 0;
    for (std::int64_t j = 0; j < s.cols; ++j) sum += std::exp(row[j] - most);
    loss += std::log(sum) + most - row[labels[i]];
    for (std::int64_t j = 0; j < s.cols; ++j) {
      const T p = std::exp(row[j] - most) / sum;
      const T d = (p - T(j == labels[i] ? 1 : 0)) / static_cast<T>(s.rows);
      d_logits[i * s.cols + j] = d * static_cast<T>(state->scale);
    }
  }
  state->loss = static_cast<float>(loss / static_cast<T>(s.rows));
}

template <class T>
void CpuOps<T>::look_for_infinities(const T* g, std::int64_t elems, TrainState* state) {
  state->not_finite = 0;
  for (std::int64_t i = 0; i < elems; ++i) {
    if (!std::isfinite(g[i])) state->not_finite = 1;
  }
}

template <class T>
void CpuOps<T>::adam(T* w, const T* g, T* m, T* v, std::int64_t elems, const TrainOptions& o,
                     const TrainState* state) {
  if (state->not_finite != 0) return;
  const T unscale = T{1} / static_cast<T>(state->scale);
  const double step = state->steps + 1;
  const T step_size = static_cast<T>(o.learning_rate / (1.0 - std::pow(o.beta1, step)));
  const T root = static_cast<T>(std::sqrt(1.0 - std::pow(o.beta2, step)));
  const T beta1 = static_cast<T>(o.beta1), beta2 = static_cast<T>(o.beta2);
  const T epsilon = static_cast<T>(o.epsilon);
  each(elems, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = g[i] * unscale;
      m[i] = beta1 * m[i] + (T{1} - beta1) * d;
      v[i] = beta2 * v[i] + (T{1} - beta2) * d * d;
      w[i] -= step_size * m[i] / (std::sqrt(v[i]) / root + epsilon);
    }
  });
}

template <class T>
void CpuOps<T>::end_step(TrainState* state, const TrainOptions& options) {
  ++state->draws;
  if (state->not_finite != 0) {
    ++state->skipped;
    state->good_in_a_row = 0;
    if (options.scale_loss) state->scale *= 0.5F;
    return;
  }
  ++state->steps;
  if (!options.scale_loss || ++state->good_in_a_row < options.growth_interval) return;
  state->scale *= 2.0F;
  state->good_in_a_row = 0;
}

template class CpuOps<float>;
template class CpuOps<double>;

}  // namespace tilewise::asam
