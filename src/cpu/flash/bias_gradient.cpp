#include "cpu/flash/bias_gradient.h"

#include <algorithm>
#include <vector>

#include "cpu/flash/tiles.h"
#include "cpu/micro/elements.h"

namespace tilewise::cpu {
namespace {

/// Half-open range of indices along one axis: a task's own, or all of them where the bias
/// broadcasts.
struct Range {
  std::int64_t begin, end;
};

/// One axis of the bias: `count` indices in steps, or one step over everything when it broadcasts.
struct Axis {
  std::int64_t count, step;
  bool broadcasts;
  std::int64_t tasks() const { return broadcasts ? 1 : ceil_div(count, step); }
  Range range(std::int64_t task) const {
    if (broadcasts) return {0, count};
    return {task * step, std::min(count, (task + 1) * step)};
  }
};

class BiasGradient {
 public:
  BiasGradient(const Problem& p, const ScoreTileStep& tile, const ScoreTileStep::Rows& known,
               float* scratch)
      : p_(p), tile_(tile), known_(known), scratch_(scratch) {
    const auto axis = [&](int i, std::int64_t count, std::int64_t step) {
      return Axis{count, step, p.dbias.strides[static_cast<std::size_t>(i)] == 0};
    };
    batch_ = axis(0, p.batch, 1);
    // Packed: the row axis tells sequences apart, unless it broadcasts itself.
    if (p.packed) batch_.broadcasts = axis(2, p.total_q, 1).broadcasts;
    heads_ = axis(1, p.heads_q, 1);
    rows_ = axis(2, p.seq_q, kTileRows);
    keys_ = axis(3, p.seq_k, kTileKeys);
  }

  std::int64_t tasks() const {
    return batch_.tasks() * heads_.tasks() * rows_.tasks() * keys_.tasks();
  }

  void run(std::int64_t task, int slot) const {
    const Range keys = keys_.range(task % keys_.tasks());
    task /= keys_.tasks();
    const Range rows = rows_.range(task % rows_.tasks());
    task /= rows_.tasks();
    const Range heads = heads_.range(task % heads_.tasks());
    const Range batch = batch_.range(task / heads_.tasks());
    std::vector<float> sum(static_cast<std::size_t>(kTileRows) * kTileKeys, 0.0F);
    for (std::int64_t b = batch.begin; b < batch.end; ++b) {
      for (std::int64_t h = heads.begin; h < heads.end; ++h)
        add(b, h, rows, keys, slot, sum.data());
    }
    const std::int64_t b = batch.begin;
    // NOTE: a bias that broadcasts over a batch of 0 still has elements.
    const Sequence sequence = p_.batch > 0 ? p_.sequence(b) : Sequence{0, p_.seq_q, 0, p_.seq_k};
    const std::int64_t last_row =
        rows_.broadcasts ? rows.begin + 1 : std::min(rows.end, sequence.q_length);
    store(b, heads.begin, sequence.q_begin, {rows.begin, last_row}, keys, sum.data());
  }

 private:
  /// Adds dS of one (b, h) over rows and keys; where an axis broadcasts, everything lands in its
  /// index 0.
  void add(std::int64_t b, std::int64_t h, Range rows, Range keys, int slot, float* sum) const {
    const Sequence sequence = p_.sequence(b);
    ScoreTileStep::Scratch scratch = tile_.scratch(scratch_, slot);
    for (std::int64_t j0 = keys.begin; j0 < std::min(keys.end, sequence.k_length);
         j0 += kTileKeys) {
      const int cols = static_cast<int>(std::min<std::int64_t>(kTileKeys, sequence.k_length - j0));
      tile_.load_keys_of(b, sequence, h / p_.group(), j0, cols, scratch);
      for (std::int64_t i0 = rows.begin; i0 < std::min(rows.end, sequence.q_length);
           i0 += kTileRows) {
        const int count =
            static_cast<int>(std::min<std::int64_t>(kTileRows, sequence.q_length - i0));
        const TilePlace place{sequence, b, h, i0, j0, count, cols, kTileKeys};
        if (!tile_.gradient(place, known_at(b, h, sequence.q_begin + i0), scratch, true)) continue;
        for (std::int64_t r = 0; r < count; ++r) {
          float* to = sum + (rows_.broadcasts ? 0 : r) * kTileKeys;
          for (int c = 0; c < cols; ++c)
            to[keys_.broadcasts ? 0 : c] += scratch.ds[r * kTileKeys + c];
        }
      }
    }
  }

  void store(std::int64_t b, std::int64_t h, std::int64_t q_begin, Range rows, Range keys,
             const float* sum) const {
    const Tensor& t = p_.dbias;
    const std::int64_t cols = keys_.broadcasts ? 1 : keys.end - keys.begin;
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const std::int64_t at = offset_of(t, b, h, q_begin + i) + keys.begin * t.strides[3];
      store_row(t, at, t.strides[3], cols, sum + (i - rows.begin) * kTileKeys);
    }
  }

  ScoreTileStep::Rows known_at(std::int64_t b, std::int64_t h, std::int64_t row) const {
    const std::int64_t at = p_.query_row(b, h, row);
    return {known_.delta + at, known_.lse_low + at};
  }

  const Problem& p_;
  const ScoreTileStep& tile_;
  ScoreTileStep::Rows known_;
  float* scratch_;
  Axis batch_{}, heads_{}, rows_{}, keys_{};
};

}  // namespace

/// Packed: rows past the last sequence belong to no task.
void clear_packed_bias_gradient(const Problem& p) {
  if (!p.packed) return;
  const Tensor& t = p.dbias;
  const std::vector<float> zeros(static_cast<std::size_t>(t.sizes[3]), 0.0F);
  const std::int64_t heads = t.strides[1] == 0 ? 1 : p.heads_q;
  const std::int64_t rows = t.strides[2] == 0 ? 1 : p.total_q;
  const std::int64_t cols = t.strides[3] == 0 ? 1 : t.sizes[3];
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t r = 0; r < rows; ++r) {
      store_row(t, offset_of(t, 0, h, r), t.strides[3], cols, zeros.data());
    }
  }
}

void bias_gradient(const Problem& problem, const ScoreTileStep& tile, Executor& executor,
                   int workers, const ScoreTileStep::Rows& known, float* scratch) {
  clear_packed_bias_gradient(problem);
  const BiasGradient gradient(problem, tile, known, scratch);
  run_tasks(executor, workers, gradient.tasks(),
            [&](std::int64_t task, int slot) { gradient.run(task, slot); });
}

}  // namespace tilewise::cpu
