#include "cpu/append.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "cpu/micro/elements.h"
#include "problem/blocks.h"

namespace tilewise::cpu {
namespace {

constexpr std::int64_t kTaskRows = 16;  // new rows, of all heads, that a task writes

/// Element (b, h, s, 0).
struct Place {
  const Tensor& tensor;
  std::int64_t offset;
  Place(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t s)
      : tensor(t), offset(offset_of(t, b, h, s)) {}
};

void copy_row(const Place& from, const Place& to, std::int64_t dim) {
  const std::int64_t bytes = dtype_bytes(from.tensor.dtype);
  const std::int64_t step_from = from.tensor.strides[3] * bytes;
  const std::int64_t step_to = to.tensor.strides[3] * bytes;
  const auto* in = static_cast<const std::byte*>(from.tensor.data) + from.offset * bytes;
  auto* out = static_cast<std::byte*>(to.tensor.data) + to.offset * bytes;
  const bool dense = step_from == bytes && step_to == bytes;
  if (dense) {
    std::memcpy(out, in, static_cast<std::size_t>(dim * bytes));
    return;
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    std::memcpy(out + d * step_to, in + d * step_from, static_cast<std::size_t>(bytes));
  }
}

/// Turns rows by the tables of a call.
class Turn {
 public:
  explicit Turn(const Append& call)
      : half_(call.rotary_dim / 2),
        rotary_(call.rotary),
        row_(static_cast<std::size_t>(call.head_dim)),
        turned_(row_),
        cos_(static_cast<std::size_t>(half_)),
        sin_(cos_) {}

  /// Rows that follow stand at this position.
  void move_to(std::int64_t position) {
    const auto read = [&](const Tensor& table, std::vector<float>& to) {
      load_row(table, position * table.strides[0], table.strides[1], half_, to.data());
    };
    read(rotary_.cos, cos_);
    read(rotary_.sin, sin_);
  }
  void row(const Place& from, const Place& to) {
    const auto dim = static_cast<std::int64_t>(row_.size());
    load_row(from.tensor, from.offset, from.tensor.strides[3], dim, row_.data());
    turned_ = row_;
    for (std::int64_t pair = 0; pair < half_; ++pair) {
      const auto p = static_cast<std::size_t>(pair);
      const auto x = static_cast<std::size_t>(rotary_.interleaved ? 2 * pair : pair);
      const auto y = static_cast<std::size_t>(rotary_.interleaved ? 2 * pair + 1 : pair + half_);
      turned_[x] = row_[x] * cos_[p] - row_[y] * sin_[p];
      turned_[y] = row_[x] * sin_[p] + row_[y] * cos_[p];
    }
    store_row(to.tensor, to.offset, to.tensor.strides[3], dim, turned_.data());
  }

 private:
  std::int64_t half_;
  const Rotary& rotary_;
  std::vector<float> row_, turned_, cos_, sin_;
};

class Writer {
 public:
  explicit Writer(const Append& call) : a_(call), turn_(call) {}

  void keys(std::int64_t b, const Append::Entry& e, std::int64_t i) {
    const std::int64_t j = e.length + i, page = a_.page_of(b, j), slot = j % a_.page_size;
    if (a_.rotary_dim > 0) turn_.move_to(e.position + i);
    for (std::int64_t h = 0; h < a_.heads_k; ++h) {
      const Place from(a_.k, b, h, e.begin + i), to(a_.k_cache, page, h, slot);
      if (a_.rotary_dim > 0) {
        turn_.row(from, to);
      } else {
        copy_row(from, to, a_.head_dim);
      }
      copy_row({a_.v, b, h, e.begin + i}, {a_.v_cache, page, h, slot}, a_.head_dim_v);
    }
  }
  void queries(std::int64_t b, const Append::Entry& e, std::int64_t i) {
    const std::int64_t position = e.position + (a_.rotary.one_query_position ? 0 : i);
    const bool turns = a_.rotary_dim > 0 && position >= 0 && position < a_.positions;
    if (turns) turn_.move_to(position);
    for (std::int64_t h = 0; h < a_.heads_q; ++h) {
      const Place from(a_.q, b, h, e.begin + i), to(a_.rotated_q, b, h, e.begin + i);
      if (turns) {
        turn_.row(from, to);
      } else {
        copy_row(from, to, a_.head_dim);
      }
    }
  }

 private:
  const Append& a_;
  Turn turn_;
};

void write_statistics(const Append& a) {
  for (std::int64_t b = 0; b < a.batch; ++b) {
    const Append::Entry e = a.entry(b);
    if (a.new_lengths.defined()) {
      static_cast<std::int32_t*>(a.new_lengths.data)[b * a.new_lengths.strides[0]] =
          static_cast<std::int32_t>(e.length + e.rows);
    }
    if (a.skipped.defined())
      static_cast<std::uint8_t*>(a.skipped.data)[b * a.skipped.strides[0]] = 0;
  }
}

}  // namespace

void append(const Append& a, Executor& executor) {
  const std::int64_t longest = std::max(a.rows, a.has_queries() ? a.rows_q : 0);
  const std::int64_t tasks = ceil_div(longest, kTaskRows);
  executor.parallel_for(a.batch * tasks, [&](std::int64_t task, int /*worker*/) {
    Writer writer(a);
    const std::int64_t b = task / tasks;
    const Append::Entry e = a.entry(b);
    const std::int64_t first = task % tasks * kTaskRows;
    for (std::int64_t i = first; i < first + kTaskRows; ++i) {
      if (i < e.rows) writer.keys(b, e, i);
      if (a.has_queries() && i < e.rows_q) writer.queries(b, e, i);
    }
  });
  write_statistics(a);
}

}  // namespace tilewise::cpu
