/// A server's loop without Python: a paged cache, prompts, then tokens one by one.
///
///   prompts    append() writes their keys into pages, forward() attends with packed queries
///   tokens     append(), forward(), and the lengths after become those before
///
/// With a CUDA device a step is captured once and replayed as a graph: lengths and tables are
/// memory that each replay reads anew. Without one the same calls run on the CPU. Every result is
/// checked against attention over a contiguous copy. What a network would compute (Q, K, V) is
/// drawn. Build against an installed Tilewise:
///   c++ -std=c++20 decode_loop.cpp $(pkg-config --cflags --libs tilewise) -ldl
#include <tilewise/attention.h>
#include <tilewise/kv_cache.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "cuda_driver.h"

namespace {

using tilewise::DType;
using tilewise::Tensor;

constexpr int kHeadsQ = 8, kHeads = 2, kDim = 64;
constexpr int kPage = 16, kPages = 48, kMaxPages = 12;
constexpr int kPrompts[] = {21, 3, 40};
constexpr int kBatch = 3, kTokens = 64, kMostTokens = kPage * kMaxPages;

std::uint16_t narrow(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}
float widen(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Memory on the host and, with a device, there too.
template <class T>
struct Buffer {
  std::vector<T> host;
  void* device = nullptr;
  explicit Buffer(std::size_t count, T value = {}) : host(count, value) {
    if (Cuda::here() != nullptr) device = Cuda::here()->allocate(bytes());
    upload();
  }
  std::size_t bytes() const { return host.size() * sizeof(T); }
  void* data() { return device != nullptr ? device : host.data(); }
  void upload() {
    if (device != nullptr) Cuda::here()->upload(device, host.data(), bytes());
  }
  void download() {
    if (device != nullptr) Cuda::here()->download(host.data(), device, bytes());
  }
};

tilewise::Device place() {
  return {Cuda::here() != nullptr ? tilewise::DeviceType::cuda : tilewise::DeviceType::cpu, 0};
}
template <class T>
Tensor vector(Buffer<T>& x, std::int64_t count) {
  return Tensor::contiguous(x.data(), DType::int32, {count}, place());
}

/// What the tests of the loop know: every key and value that was appended.
struct History {
  std::vector<std::vector<float>> k, v;  ///< of each sequence, rows of heads x dim
  History() : k(kBatch), v(kBatch) {}
};

class Server {
 public:
  Server() {
    for (int n = 0; n < kMostTokens; ++n) {
      for (int p = 0; p < kDim / 2; ++p) {
        const double angle = n * std::pow(10000.0, -2.0 * p / kDim);
        const auto at = static_cast<std::size_t>(n * kDim / 2 + p);
        cos_.host[at] = static_cast<float>(std::cos(angle));
        sin_.host[at] = static_cast<float>(std::sin(angle));
      }
    }
    cos_.upload(), sin_.upload();
    for (int page = 0; page < kPages; ++page) free_.push_back((page * 29 + 7) % kPages);
  }

  /// All prompts at once, packed behind each other.
  void prefill(History& history) {
    int total = 0;
    Buffer<std::int32_t> offsets(kBatch + 1);
    for (int b = 0; b < kBatch; ++b) {
      offsets.host[static_cast<std::size_t>(b) + 1] = total += kPrompts[b];
      give_pages(b, kPrompts[b]);
    }
    offsets.upload(), table_.upload();
    Rows rows(total);
    rows.draw(random_);
    call(rows, &offsets, *std::max_element(kPrompts, kPrompts + kBatch));
    check(rows, std::vector<int>(kPrompts, kPrompts + kBatch), history);
    advance();
  }

  /// One token of each sequence: eager the first time, captured the second, then replayed.
  void decode(History& history) {
    for (int b = 0; b < kBatch; ++b) give_pages(b, 1);
    table_.upload();
    token_.draw(random_);
    Cuda* cuda = Cuda::here();
    if (cuda == nullptr || steps_ == 0) {
      call(token_, nullptr, 0);
      advance();
    } else {
      if (steps_ == 1) {
        cuda->begin_capture();
        call(token_, nullptr, 0);
        advance();
        cuda->end_capture();
      }
      cuda->replay();
    }
    ++steps_;
    check(token_, std::vector<int>(kBatch, 1), history);
  }

  double largest_error() const { return worst_; }
  int free_pages() const { return static_cast<int>(free_.size()); }

 private:
  /// Q, K, V of some tokens, and what comes of them.
  struct Rows {
    int count;
    Buffer<std::uint16_t> q, k, v, turned, o;
    explicit Rows(int tokens)
        : count(tokens),
          q(size(tokens, kHeadsQ)),
          k(size(tokens, kHeads)),
          v(size(tokens, kHeads)),
          turned(size(tokens, kHeadsQ)),
          o(size(tokens, kHeadsQ)) {}
    static std::size_t size(int tokens, int heads) {
      return static_cast<std::size_t>(tokens * heads * kDim);
    }
    void draw(std::mt19937& random) {
      std::normal_distribution<float> normal;
      for (Buffer<std::uint16_t>* x : {&q, &k, &v}) {
        for (std::uint16_t& bits : x->host) bits = narrow(normal(random));
        x->upload();
      }
    }
  };

  /// A page for each row that has none. A server without free pages would preempt a sequence here.
  void give_pages(int b, int rows) {
    int& length = planned_[static_cast<std::size_t>(b)];
    for (int page = (length + kPage - 1) / kPage; page * kPage < length + rows; ++page) {
      if (free_.empty() || page >= kMaxPages) std::abort();
      table_.host[static_cast<std::size_t>(b * kMaxPages + page)] = free_.back();
      free_.pop_back();
    }
    length += rows;
  }

  /// append() and forward(); with offsets the rows are packed, else one of each sequence.
  void call(Rows& rows, Buffer<std::int32_t>* offsets, int longest) {
    const auto tensor = [&](Buffer<std::uint16_t>& x, int heads) {
      return offsets != nullptr
                 ? Tensor::packed(x.data(), DType::bfloat16, rows.count, heads, kDim, place())
                 : Tensor::bshd(x.data(), DType::bfloat16, kBatch, 1, heads, kDim, place());
    };
    const auto pool = [&](Buffer<std::uint16_t>& x) {
      return Tensor::bshd(x.data(), DType::bfloat16, kPages, kPage, kHeads, kDim, place());
    };
    const auto rotary = [&](Buffer<float>& x) {
      return Tensor::contiguous(x.data(), DType::float32, {kMostTokens, kDim / 2}, place());
    };
    const Tensor table =
        Tensor::contiguous(table_.data(), DType::int32, {kBatch, kMaxPages}, place());
    tilewise::Launch launch;
    if (Cuda::here() != nullptr) launch.stream = Cuda::here()->stream();
    tilewise::AppendSpec into;
    into.block_table = table;
    into.rotary.cos = rotary(cos_), into.rotary.sin = rotary(sin_);
    tilewise::AttentionSpec spec;
    spec.causal = tilewise::Causal::bottom_right;
    spec.block_table = table;
    spec.key_lengths = vector(after_, kBatch);
    if (offsets != nullptr) {
      into.cu_seqlens = spec.cu_seqlens_q = vector(*offsets, kBatch + 1);
      into.max_seqlen = spec.max_seqlen_q = longest;
    }
    tilewise::append(
        {.k = tensor(rows.k, kHeads),
         .v = tensor(rows.v, kHeads),
         .k_cache = pool(k_pool_),
         .v_cache = pool(v_pool_),
         .lengths = vector(before_, kBatch),
         .new_lengths = vector(after_, kBatch),
         .skipped = Tensor::contiguous(skipped_.data(), DType::uint8, {kBatch}, place()),
         .q = tensor(rows.q, kHeadsQ),
         .rotated_q = tensor(rows.turned, kHeadsQ)},
        into, launch);
    tilewise::ForwardTensors f;
    f.q = tensor(rows.turned, kHeadsQ), f.o = tensor(rows.o, kHeadsQ);
    f.k = pool(k_pool_), f.v = pool(v_pool_);
    tilewise::forward(f, spec, launch);
  }

  /// The lengths after become those before, on the stream.
  void advance() {
    if (Cuda::here() != nullptr) {
      Cuda::here()->copy(before_.device, after_.device, after_.bytes());
    } else {
      before_.host = after_.host;
    }
  }

  std::vector<float> turned(const std::uint16_t* row, int position) const {
    std::vector<float> y(kDim);
    for (int p = 0; p < kDim / 2; ++p) {
      const auto at = static_cast<std::size_t>(position * kDim / 2 + p);
      const float x = widen(row[p]), z = widen(row[p + kDim / 2]);
      y[static_cast<std::size_t>(p)] = widen(narrow(x * cos_.host[at] - z * sin_.host[at]));
      y[static_cast<std::size_t>(p + kDim / 2)] =
          widen(narrow(x * sin_.host[at] + z * cos_.host[at]));
    }
    return y;
  }

  /// Attention of each sequence over a contiguous copy, in float32 on the CPU.
  void check(Rows& rows, const std::vector<int>& counts, History& history) {
    rows.o.download(), skipped_.download();
    for (const std::uint8_t flag : skipped_.host) {
      if (flag != 0) std::abort();
    }
    int first = 0;
    for (std::size_t b = 0; b < kBatch; first += counts[b++]) {
      std::vector<float>&k = history.k[b], &v = history.v[b], q;
      const int old = static_cast<int>(v.size()) / (kHeads * kDim), count = counts[b];
      for (int i = first; i < first + count; ++i) {
        for (int h = 0; h < kHeads; ++h) {
          const std::size_t at = static_cast<std::size_t>(i * kHeads + h) * kDim;
          const std::vector<float> key = turned(&rows.k.host[at], old + i - first);
          k.insert(k.end(), key.begin(), key.end());
          for (std::size_t d = 0; d < kDim; ++d) v.push_back(widen(rows.v.host[at + d]));
        }
        for (int h = 0; h < kHeadsQ; ++h) {
          const std::size_t at = static_cast<std::size_t>(i * kHeadsQ + h) * kDim;
          const std::vector<float> query = turned(&rows.q.host[at], old + i - first);
          q.insert(q.end(), query.begin(), query.end());
        }
      }
      std::vector<float> o(q.size());
      const auto tensor = [](std::vector<float>& x, int length, int heads) {
        return Tensor::bshd(x.data(), DType::float32, 1, length, heads, kDim);
      };
      tilewise::ForwardTensors f;
      f.q = tensor(q, count, kHeadsQ), f.o = tensor(o, count, kHeadsQ);
      f.k = tensor(k, old + count, kHeads), f.v = tensor(v, old + count, kHeads);
      tilewise::AttentionSpec spec;
      spec.causal = tilewise::Causal::bottom_right;
      tilewise::forward(f, spec);
      const std::size_t from = static_cast<std::size_t>(first * kHeadsQ) * kDim;
      for (std::size_t n = 0; n < o.size(); ++n) {
        const double error = std::fabs(widen(rows.o.host[from + n]) - o[n]);
        worst_ = error <= worst_ ? worst_ : error;  // NaN stays
      }
    }
  }

  std::mt19937 random_{1};
  Buffer<std::uint16_t> k_pool_{kPages * kPage * kHeads * kDim, 0x7fff};  // NaN: nobody reads it
  Buffer<std::uint16_t> v_pool_{kPages * kPage * kHeads * kDim, 0x7fff};
  Buffer<std::int32_t> table_{kBatch * kMaxPages, -1};
  Buffer<std::int32_t> before_{kBatch}, after_{kBatch};
  Buffer<std::uint8_t> skipped_{kBatch};
  Buffer<float> cos_{kMostTokens * kDim / 2}, sin_{kMostTokens * kDim / 2};
  Rows token_{kBatch};
  std::vector<int> free_, planned_ = std::vector<int>(kBatch);
  int steps_ = 0;
  double worst_ = 0.0;
};

}  // namespace

int main() {
  Server server;
  History history;
  server.prefill(history);
  const auto start = std::chrono::steady_clock::now();
  for (int token = 0; token < kTokens; ++token) server.decode(history);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%s: %d tokens of %d sequences, %.0f steps/s with checks, %d pages free\n",
              Cuda::here() != nullptr ? "cuda:0, a graph replayed" : "cpu", kTokens, kBatch,
              kTokens / seconds.count(), server.free_pages());
  std::printf("largest difference from contiguous float32 attention: %.4f\n",
              server.largest_error());
  return server.largest_error() < 0.03 ? 0 : 1;
}
