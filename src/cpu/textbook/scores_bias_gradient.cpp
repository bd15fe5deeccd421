#include "cpu/textbook/scores_bias_gradient.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "cpu/flash/tiles.h"
#include "cpu/micro/elements.h"
#include "cpu/textbook/textbook.h"

namespace tilewise::cpu {
namespace {

constexpr std::int64_t kTaskRows = 32;
constexpr std::int64_t kTaskKeys = 256;

struct Range {
  std::int64_t begin, end;
};

/// Where the bias broadcasts, everything adds up in index 0.
struct Axes {
  bool batch, heads, rows, keys;

  explicit Axes(const Problem& p) {
    const auto& strides = p.dbias.strides;
    heads = strides[1] == 0;
    rows = strides[2] == 0;
    keys = strides[3] == 0;
    // Packed: the rows tell sequences apart, unless they broadcast themselves.
    batch = p.packed ? rows : strides[0] == 0;
  }
};

class BiasGradient {
 public:
  BiasGradient(const Problem& p, const float* dx) : p_(p), dx_(dx), broadcasts_(p) {
    row_blocks_ = broadcasts_.rows ? 1 : ceil_div(p.seq_q, kTaskRows);
    // NOTE: all keys are one task where they broadcast: their sum is one number.
    key_blocks_ = broadcasts_.keys ? 1 : ceil_div(p.seq_k, kTaskKeys);
  }

  std::int64_t tasks() const {
    return (broadcasts_.batch ? 1 : p_.batch) * (broadcasts_.heads ? 1 : p_.heads_q) * row_blocks_ *
           key_blocks_;
  }

  void run(std::int64_t task) const {
    const std::int64_t keys = task % key_blocks_ * kTaskKeys;
    task /= key_blocks_;
    const std::int64_t row = task % row_blocks_ * kTaskRows;
    task /= row_blocks_;
    const std::int64_t heads = broadcasts_.heads ? 1 : p_.heads_q;
    const std::int64_t h = task % heads;
    const std::int64_t b = task / heads;
    if (broadcasts_.rows) return element_row(b, h, 0, keys);
    const std::int64_t end = std::min(row + kTaskRows, rows_of(b).q_length);
    for (std::int64_t i = row; i < end; ++i) element_row(b, h, i, keys);
  }

 private:
  /// Where the rows of the bias's own batch entry b lie; a dense batch of 0 has an entry in the
  /// bias too.
  Sequence rows_of(std::int64_t b) const {
    return p_.packed ? p_.sequence(b) : Sequence{0, p_.seq_q, 0, p_.seq_k};
  }

  static Range own(bool broadcasts, std::int64_t index, std::int64_t count) {
    return broadcasts ? Range{0, count} : Range{index, index + 1};
  }

  /// Up to kTaskKeys elements of row i of the bias, or the one where keys broadcast.
  void element_row(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j0) const {
    std::array<double, kTaskKeys> sum{};
    const Range batch = own(broadcasts_.batch, b, p_.batch);
    const Range heads = own(broadcasts_.heads, h, p_.heads_q);
    for (std::int64_t from_b = batch.begin; from_b < batch.end; ++from_b) {
      const Sequence sequence = p_.sequence(from_b);
      const Range rows = own(broadcasts_.rows, i, sequence.q_length);
      for (std::int64_t from_h = heads.begin; from_h < heads.end; ++from_h) {
        for (std::int64_t from_i = rows.begin; from_i < rows.end; ++from_i) {
          const float* row = dx_ + score_at(p_, from_b, from_h, sequence.q_begin + from_i);
          add(row,
              {j0,
               broadcasts_.keys ? sequence.k_length : std::min(j0 + kTaskKeys, sequence.k_length)},
              sum);
        }
      }
    }
    store(b, h, i, j0, sum);
  }

  void add(const float* row, Range keys, std::array<double, kTaskKeys>& sum) const {
    if (broadcasts_.keys) {
      sum[0] = std::accumulate(row + keys.begin, row + keys.end, sum[0]);
      return;
    }
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      sum[static_cast<std::size_t>(j - keys.begin)] += row[j];
    }
  }

  void store(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j0,
             const std::array<double, kTaskKeys>& sum) const {
    std::array<float, kTaskKeys> rounded;
    std::transform(sum.begin(), sum.end(), rounded.begin(),
                   [](double value) { return static_cast<float>(value); });
    const Tensor& t = p_.dbias;
    const std::int64_t count = broadcasts_.keys ? 1 : std::min(kTaskKeys, p_.seq_k - j0);
    const std::int64_t row = broadcasts_.rows ? 0 : rows_of(b).q_begin + i;
    store_row(t, offset_of(t, b, h, row) + j0 * t.strides[3], t.strides[3], count, rounded.data());
  }

  const Problem& p_;
  const float* dx_;
  Axes broadcasts_;
  std::int64_t row_blocks_, key_blocks_;
};

/// Packed: rows past the last sequence belong to no task.
void clear_packed_rows(const Problem& p) {
  const Axes broadcasts(p);
  if (!p.packed || broadcasts.rows) return;
  const Tensor& t = p.dbias;
  const Sequence last = p.batch > 0 ? p.sequence(p.batch - 1) : Sequence{};
  const std::vector<float> zeros(static_cast<std::size_t>(p.seq_k), 0.0F);
  const std::int64_t heads = broadcasts.heads ? 1 : p.heads_q;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t row = last.q_begin + last.q_length; row < p.total_q; ++row) {
      store_row(t, offset_of(t, 0, h, row), t.strides[3], broadcasts.keys ? 1 : p.seq_k,
                zeros.data());
    }
  }
}

}  // namespace

void scores_bias_gradient(const Problem& problem, const float* dx, Executor& executor,
                          int workers) {
  clear_packed_rows(problem);
  const BiasGradient gradient(problem, dx);
  run_tasks(executor, workers, gradient.tasks(),
            [&](std::int64_t task, int /*slot*/) { gradient.run(task); });
}

}  // namespace tilewise::cpu
