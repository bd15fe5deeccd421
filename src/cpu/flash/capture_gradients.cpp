#include "cpu/flash/capture_gradients.h"

#include <algorithm>
#include <bit>

#include "cpu/flash/tiles.h"
#include "cpu/micro/elements.h"
#include "problem/blocks.h"

namespace tilewise::cpu {
namespace {

/// 128 MiB of sums in all parts together.
constexpr std::int64_t kMostSums = std::int64_t{1} << 24;

using Domain = ExpressionTiles::Domain;

/// What an index differs by when its parts do.
Domain joined(Domain a, Domain b) {
  if (a == b || b == Domain::uniform) return a;
  return a == Domain::uniform ? b : Domain::pair;
}

/// Sums whose order of addition the compiler keeps: sixteen, then one.
double sum_of(const float* x, int count) {
  constexpr int kSums = 16;
  float sums[kSums] = {};
  int c = 0;
  for (; c + kSums <= count; c += kSums) {
    for (int n = 0; n < kSums; ++n) sums[n] += x[c + n];
  }
  double total = 0.0;
  for (const float sum : sums) total += double{sum};
  for (; c < count; ++c) total += double{x[c]};
  return total;
}

void add_at(const std::vector<std::int64_t>& elements, const float* parts, int count,
            double* sums) {
  for (int n = 0; n < count; ++n) {
    sums[elements[static_cast<std::size_t>(n)]] += double{parts[n]};
  }
}

}  // namespace

/// The elements that row r of a block's strips names at its first `count` columns.
void CaptureGradients::Table::elements(const ExpressionTiles::Strips& strips, int r, int count,
                                       std::int64_t* out) const {
  std::fill_n(out, count, 0);
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
    const StripIn& strip = strips.values[axis + 1];
    const float* index = strip.data + r * strip.row;
    const std::int64_t size = sizes[axis];
    const std::int64_t stride = strides[axis];
    const auto offset = [&](float held) {
      const std::int64_t n = std::bit_cast<std::int32_t>(held);
      return std::clamp<std::int64_t>(n < 0 ? n + size : n, 0, size - 1) * stride;
    };
    if (strip.col == 0) {
      const std::int64_t same = offset(index[0]);
      for (int c = 0; c < count; ++c) out[c] += same;
    } else {
      for (int c = 0; c < count; ++c) out[c] += offset(index[c]);
    }
  }
}

CaptureGradients::CaptureGradients(const Problem& problem) : problem_(problem) {
  tables_.resize(problem.dcaptures.size());
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    const Tensor& t = problem.dcaptures[n];
    if (!t.defined()) continue;
    Table& table = tables_[n];
    table.begin = elems_;
    table.rank = t.rank;
    table.sizes = t.sizes;
    std::int64_t stride = 1;
    for (std::size_t axis = static_cast<std::size_t>(t.rank); axis-- > 0;) {
      table.strides[axis] = stride;
      stride *= t.sizes[axis];
    }
    elems_ += stride;
  }
  if (problem.score_gradient == nullptr) return;
  for (const expression::CaptureTerm& term : problem.score_gradient->terms) {
    if (tables_[static_cast<std::size_t>(term.capture)].begin >= 0) terms_.push_back(term);
  }
}

int CaptureGradients::parts(int most) const {
  if (!wanted()) return 0;
  return static_cast<int>(std::clamp<std::int64_t>(kMostSums / elems_, 1, most));
}

std::vector<ExpressionRoots> CaptureGradients::groups() const {
  std::vector<ExpressionRoots> groups;
  for (const expression::CaptureTerm& term : terms_) {
    ExpressionRoots roots{{term.value}, term.lanes};
    const int rank = tables_[static_cast<std::size_t>(term.capture)].rank;
    roots.nodes.insert(roots.nodes.end(), term.index.begin(), term.index.begin() + rank);
    groups.push_back(std::move(roots));
  }
  return groups;
}

void CaptureGradients::add(const ExpressionTiles& tiles, const ExpressionTiles::Strips& strips,
                           const TilePlace& at, const float* p, const float* dy,
                           double* sums) const {
  const expression::CaptureTerm& term = terms_[strips.group];
  const Table& table = tables_[static_cast<std::size_t>(term.capture)];
  double* to = sums + table.begin;
  const int lanes = tiles.ops().lanes;
  const std::int64_t ld = std::int64_t{strips.vectors} * lanes;

  // The gradient of each pair: 0 where it is hidden, whatever the derivative is there.
  thread_local std::vector<float> parts;
  parts.resize(static_cast<std::size_t>(strips.rows * ld));
  const std::int64_t first = strips.row * at.ld;
  tiles.ops().multiply_seen(
      {.rows = strips.rows,
       .vectors = strips.vectors,
       .in = {{dy + first, at.ld, lanes}, strips.values[0], {p + first, at.ld, lanes}},
       .out = {parts.data(), ld}});

  Domain domain = Domain::uniform;
  for (int axis = 0; axis < table.rank; ++axis) {
    domain = joined(domain, tiles.domain(term.index[static_cast<std::size_t>(axis)]));
  }
  thread_local std::vector<std::int64_t> elements;
  elements.resize(static_cast<std::size_t>(strips.rows) + static_cast<std::size_t>(at.cols));
  const auto row = [&](int r) { return parts.data() + r * ld; };
  switch (domain) {
    case Domain::uniform:
    case Domain::row:
      for (int r = 0; r < strips.rows; ++r) {
        table.elements(strips, r, 1, elements.data());
        to[elements[0]] += sum_of(row(r), at.cols);
      }
      return;
    case Domain::column:
      for (int r = 1; r < strips.rows; ++r) {
        for (int c = 0; c < at.cols; ++c) row(0)[c] += row(r)[c];
      }
      table.elements(strips, 0, at.cols, elements.data());
      add_at(elements, row(0), at.cols, to);
      return;
    case Domain::diagonal: {  // from (last, 0) to (last, cols - 1), and on to (0, cols - 1)
      thread_local std::vector<float> diagonals;
      const int last = strips.rows - 1;
      diagonals.assign(static_cast<std::size_t>(last) + static_cast<std::size_t>(at.cols), 0.0F);
      for (int r = 0; r < strips.rows; ++r) {
        float* from = diagonals.data() + (last - r);
        for (int c = 0; c < at.cols; ++c) from[c] += row(r)[c];
      }
      // A row's strip of indices goes on into those of the rows above it.
      table.elements(strips, last, last + at.cols, elements.data());
      add_at(elements, diagonals.data(), last + at.cols, to);
      return;
    }
    case Domain::pair:
      for (int r = 0; r < strips.rows; ++r) {
        table.elements(strips, r, at.cols, elements.data());
        add_at(elements, row(r), at.cols, to);
      }
  }
}

void CaptureGradients::finish(const double* parts, int count, Executor& executor,
                              int workers) const {
  constexpr std::int64_t kChunk = 16384;
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    if (tables_[n].begin < 0) continue;
    const std::int64_t size = problem_.dcaptures[n].numel();
    run_tasks(executor, workers, ceil_div(size, kChunk), [&](std::int64_t task, int) {
      const std::int64_t first = task * kChunk;
      store(static_cast<std::int32_t>(n), first, std::min(kChunk, size - first), parts, count);
    });
  }
}

void CaptureGradients::store(std::int32_t capture, std::int64_t first, std::int64_t count,
                             const double* parts, int part_count) const {
  constexpr std::int64_t kRun = 256;
  const Table& table = tables_[static_cast<std::size_t>(capture)];
  const Tensor& t = problem_.dcaptures[static_cast<std::size_t>(capture)];
  const auto last = static_cast<std::size_t>(table.rank) - 1;
  float rounded[kRun];
  for (std::int64_t n = first; n < first + count;) {
    const std::int64_t left = table.sizes[last] - n % table.sizes[last];
    const std::int64_t run = std::min({kRun, left, first + count - n});
    for (std::int64_t at = 0; at < run; ++at) {
      double sum = 0.0;
      for (int part = 0; part < part_count; ++part) {
        sum += parts[part * elems_ + table.begin + n + at];
      }
      rounded[at] = static_cast<float>(sum);
    }
    std::int64_t to = 0;
    for (std::size_t axis = 0; axis <= last; ++axis) {
      to += n / table.strides[axis] % table.sizes[axis] * t.strides[axis];
    }
    store_row(t, to, t.strides[last], run, rounded);
    n += run;
  }
}

}  // namespace tilewise::cpu
