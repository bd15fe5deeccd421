#include "cpu/flash/capture_gradients.h"

#include <algorithm>
#include <span>

#include "cpu/flash/tiles.h"
#include "cpu/micro/elements.h"
#include "problem/blocks.h"

namespace tilewise::cpu {
namespace {

/// 128 MiB of sums in all parts together.
constexpr std::int64_t kMostSums = std::int64_t{1} << 24;
/// Elements of a task.
constexpr std::int64_t kChunk = 16384;

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

CaptureGradients::CaptureGradients(const Problem& problem) : problem_(problem) {
  tables_.resize(problem.dcaptures.size());
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    const Tensor& t = problem.dcaptures[n];
    if (!t.defined()) continue;
    tables_[n].wanted = true;
    tables_[n].view = {.data = nullptr, .dtype = t.dtype, .rank = t.rank};
    std::copy_n(t.sizes.begin(), t.rank, tables_[n].view.sizes);
  }
  std::vector<int> terms(tables_.size(), 0);
  if (problem.score_gradient != nullptr) {
    for (const expression::CaptureTerm& term : problem.score_gradient->terms) {
      const auto capture = static_cast<std::size_t>(term.capture);
      if (!tables_[capture].wanted) continue;
      terms_.push_back({term, key_axis(term)});
      ++terms[capture];
      tables_[capture].stored = has_element_of_pair(term);
    }
  }
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    Table& table = tables_[n];
    if (!table.wanted) continue;
    table.stored = table.stored && terms[n] == 1;
    if (table.stored) {
      std::copy_n(problem.dcaptures[n].strides.begin(), table.view.rank, table.view.strides);
      elems_ = std::max<std::int64_t>(elems_, 1);  // tiles have to come by
      continue;
    }
    table.begin = elems_;
    std::int64_t stride = 1;
    for (int axis = table.view.rank - 1; axis >= 0; --axis) {
      table.view.strides[axis] = stride;
      stride *= table.view.sizes[axis];
    }
    elems_ += stride;
  }
}

int CaptureGradients::key_axis(const expression::CaptureTerm& term) const {
  constexpr int kChangesInRow = expression::kKey | expression::kDiagonal | expression::kScore;
  const Table& table = tables_[static_cast<std::size_t>(term.capture)];
  int found = -1;
  for (int axis = 0; axis < table.view.rank; ++axis) {
    const auto index = static_cast<std::size_t>(term.index[static_cast<std::size_t>(axis)]);
    const expression::Node& node = problem_.score_gradient->program.nodes[index];
    if (node.op == expression::Op::key && found < 0) {
      found = axis;
    } else if ((node.depends & kChangesInRow) != 0) {
      return -1;
    }
  }
  return found;
}

/// True where i and j, and b and h if there are several, are indices of the element.
bool CaptureGradients::has_element_of_pair(const expression::CaptureTerm& term) const {
  using expression::Op;
  const Problem& p = problem_;
  const Table& table = tables_[static_cast<std::size_t>(term.capture)];
  const auto counts = [&](Op op, std::int64_t count) {
    for (int axis = 0; axis < table.view.rank; ++axis) {
      const auto index = static_cast<std::size_t>(term.index[static_cast<std::size_t>(axis)]);
      const bool same = p.score_gradient->program.nodes[index].op == op;
      if (same && table.view.sizes[axis] >= count) return true;
    }
    return false;
  };
  return term.lanes == 1 && key_axis(term) >= 0 && counts(Op::key, p.seq_k) &&
         counts(Op::query, p.seq_q) && (p.batch == 1 || counts(Op::batch, p.batch)) &&
         (p.heads_q == 1 || counts(Op::head, p.heads_q));
}

int CaptureGradients::parts(int most) const {
  if (!wanted()) return 0;
  return static_cast<int>(std::clamp<std::int64_t>(kMostSums / elems_, 1, most));
}

std::vector<ExpressionRoots> CaptureGradients::groups() const {
  std::vector<ExpressionRoots> groups;
  for (const Term& term : terms_) {
    ExpressionRoots roots{{term.of.value}, term.of.lanes};
    const auto indices =
        std::span(term.of.index).first(static_cast<std::size_t>(table_of(term).view.rank));
    roots.nodes.insert(roots.nodes.end(), indices.begin(), indices.end());
    groups.push_back(std::move(roots));
  }
  return groups;
}

void CaptureGradients::clear(Executor& executor, int workers) const {
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    if (!tables_[n].stored) continue;
    run_tasks(executor, workers, ceil_div(problem_.dcaptures[n].numel(), kChunk),
              [&](std::int64_t task, int) {
                store(static_cast<std::int32_t>(n), task * kChunk, nullptr, 0);
              });
  }
}

void CaptureGradients::add(const ExpressionTiles& tiles, const ExpressionTiles::Strips& strips,
                           const TilePlace& at, const float* p, const float* dy,
                           double* sums) const {
  const Term& term = terms_[strips.group];
  const Table& table = table_of(term);
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
  if (table.stored) return store_rows(tiles, strips, at, parts.data());

  Domain domain = Domain::uniform;
  for (int axis = 0; axis < table.view.rank; ++axis) {
    domain = joined(domain, tiles.domain(term.of.index[static_cast<std::size_t>(axis)]));
  }
  thread_local std::vector<std::int64_t> elements;
  elements.resize(static_cast<std::size_t>(strips.rows) + static_cast<std::size_t>(at.cols));
  const auto row = [&](int r) { return parts.data() + r * ld; };
  const auto find = [&](int r, int count) {
    tiles.ops().locate(table.view, strips.values.subspan(1).data(), r, count, elements.data());
  };
  switch (domain) {
    case Domain::uniform:
    case Domain::row:
      for (int r = 0; r < strips.rows; ++r) {
        find(r, 1);
        to[elements[0]] += sum_of(row(r), at.cols);
      }
      return;
    case Domain::column:
      for (int r = 1; r < strips.rows; ++r) {
        for (int c = 0; c < at.cols; ++c) row(0)[c] += row(r)[c];
      }
      find(0, at.cols);
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
      find(last, last + at.cols);
      add_at(elements, diagonals.data(), last + at.cols, to);
      return;
    }
    case Domain::pair:
      if (term.key_axis >= 0 && at.j0 + at.cols <= table.view.sizes[term.key_axis]) {
        return add_rows(tiles, strips, at, parts.data(), to);
      }
      for (int r = 0; r < strips.rows; ++r) {
        find(r, at.cols);
        add_at(elements, row(r), at.cols, to);
      }
  }
}

/// Rows whose elements lie one step behind another.
void CaptureGradients::add_rows(const ExpressionTiles& tiles, const ExpressionTiles::Strips& strips,
                                const TilePlace& at, const float* parts, double* to) const {
  const Term& term = terms_[strips.group];
  const Table& table = table_of(term);
  const std::int64_t step = table.view.strides[term.key_axis];
  for (int r = 0; r < strips.rows; ++r, parts += strips.vectors * tiles.ops().lanes) {
    std::int64_t begin = 0;
    tiles.ops().locate(table.view, strips.values.subspan(1).data(), r, 1, &begin);
    double* row = to + begin;
    if (step == 1) {
      for (int c = 0; c < at.cols; ++c) row[c] += double{parts[c]};
    } else {
      for (int c = 0; c < at.cols; ++c) row[c * step] += double{parts[c]};
    }
  }
}

void CaptureGradients::store_rows(const ExpressionTiles& tiles,
                                  const ExpressionTiles::Strips& strips, const TilePlace& at,
                                  const float* parts) const {
  const Term& term = terms_[strips.group];
  const Table& table = table_of(term);
  const Tensor& t = problem_.dcaptures[static_cast<std::size_t>(term.of.capture)];
  for (int r = 0; r < strips.rows; ++r, parts += strips.vectors * tiles.ops().lanes) {
    std::int64_t begin = 0;
    tiles.ops().locate(table.view, strips.values.subspan(1).data(), r, 1, &begin);
    store_row(t, begin, table.view.strides[term.key_axis], at.cols, parts);
  }
}

void CaptureGradients::finish(const double* parts, int count, Executor& executor,
                              int workers) const {
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    if (!tables_[n].wanted || tables_[n].stored) continue;
    run_tasks(executor, workers, ceil_div(problem_.dcaptures[n].numel(), kChunk),
              [&](std::int64_t task, int) {
                store(static_cast<std::int32_t>(n), task * kChunk, parts, count);
              });
  }
}

/// A chunk of a gradient from `first` on, counted in order of its indices: the sum of the parts.
void CaptureGradients::store(std::int32_t capture, std::int64_t first, const double* parts,
                             int part_count) const {
  constexpr std::int64_t kRun = 256;
  const Table& table = tables_[static_cast<std::size_t>(capture)];
  const Tensor& t = problem_.dcaptures[static_cast<std::size_t>(capture)];
  const auto last = static_cast<std::size_t>(t.rank) - 1;
  const std::int64_t end = std::min(first + kChunk, t.numel());
  float rounded[kRun];
  for (std::int64_t n = first; n < end;) {
    const std::int64_t left = t.sizes[last] - n % t.sizes[last];
    const std::int64_t run = std::min({kRun, left, end - n});
    for (std::int64_t at = 0; at < run; ++at) {
      double sum = 0.0;
      for (int part = 0; part < part_count; ++part) {
        sum += parts[part * elems_ + table.begin + n + at];
      }
      rounded[at] = static_cast<float>(sum);
    }
    std::int64_t to = 0;
    for (std::size_t axis = last + 1, rest = static_cast<std::size_t>(n); axis-- > 0;) {
      const auto size = static_cast<std::size_t>(t.sizes[axis]);
      to += static_cast<std::int64_t>(rest % size) * t.strides[axis];
      rest /= size;
    }
    store_row(t, to, t.strides[last], run, rounded);
    n += run;
  }
}

}  // namespace tilewise::cpu
