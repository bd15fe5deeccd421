#include "reference/logits.h"

#include <algorithm>

#include "problem/arguments.h"
#include "problem/blocks.h"
#include "reference/elements.h"

namespace tilewise::reference {
namespace {

std::int64_t pair_offset(const Tensor& t, const Head& head, std::int64_t i, std::int64_t j) {
  return head.b * t.strides[0] + head.h * t.strides[1] +
         (head.sequence.q_begin + i) * t.strides[2] + j * t.strides[3];
}

ScoreTile one_score(const Head& head, std::int64_t i, std::int64_t j, float& score) {
  return {.scores = &score,
          .row_stride = 1,
          .rows = 1,
          .cols = 1,
          .b = head.b,
          .h = head.h,
          .i0 = i,
          .j0 = j};
}

/// The score's program, of backward with its gradient; null without.
const expression::Program* score_program(const Problem& p) {
  if (p.score_gradient != nullptr) return &p.score_gradient->program;
  return p.score_function.program.get();
}

std::int64_t integer(const Tensor& t, std::int64_t offset) {
  return static_cast<std::int64_t>(load(t, offset));
}

}  // namespace

Head::Head(const Problem& p, std::int64_t batch_entry, std::int64_t head)
    : problem(p),
      b(batch_entry),
      h(head),
      h_k(head / p.group()),
      sequence(p.sequence(batch_entry)) {
  if (p.alibi_slopes.defined()) {
    slope = load(p.alibi_slopes, b * p.alibi_slopes.strides[0] + h * p.alibi_slopes.strides[1]);
  }
  if (p.sinks.defined()) sink = load(p.sinks, h * p.sinks.strides[0]);
  const auto interpreter = [](const expression::Program& program,
                              const expression::Function& function) {
    return std::make_unique<expression::Interpreter>(program, function.captures);
  };
  const expression::Program* program = score_program(p);
  if (program != nullptr) score = interpreter(*program, p.score_function);
  if (p.mask_function.defined()) mask = interpreter(*p.mask_function.program, p.mask_function);
}

Visibility::Visibility(const Head& head) : head_(head) {}

const std::vector<std::int64_t>& Visibility::of_row(std::int64_t i) {
  keys_.clear();
  const KeyRange range = head_.problem.visible_keys(head_.sequence, i);
  if (head_.problem.block_list.defined()) {
    add_listed(i, range);
  } else {
    add_shown(i, range.begin, range.end);
  }
  return keys_;
}

void Visibility::add_listed(std::int64_t i, KeyRange range) {
  const BlockList& list = head_.problem.block_list;
  blocks_.assign(static_cast<std::size_t>(ceil_div(head_.problem.seq_k, list.block_k)),
                 Block::hidden);
  const Tensor& offsets = list.row_offsets;
  const std::int64_t at = head_.b * offsets.strides[0] + head_.h * offsets.strides[1] +
                          i / list.block_q * offsets.strides[2];
  const std::int64_t last = integer(offsets, at + offsets.strides[2]);
  for (std::int64_t pair = integer(offsets, at); pair < last; ++pair) {
    const bool full = list.block_full.defined() &&
                      load(list.block_full, pair * list.block_full.strides[0]) != 0.0;
    const std::int64_t block = integer(list.block_index, pair * list.block_index.strides[0]);
    blocks_[static_cast<std::size_t>(block)] = full ? Block::full : Block::partial;
  }
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    const std::int64_t begin = static_cast<std::int64_t>(n) * list.block_k;
    const std::int64_t end = std::min(begin + list.block_k, head_.sequence.k_length);
    if (blocks_[n] == Block::partial)
      add_shown(i, std::max(begin, range.begin), std::min(end, range.end));
    // The caller's promise: no other mask hides anything here.
    for (std::int64_t j = begin; blocks_[n] == Block::full && j < end; ++j) keys_.push_back(j);
  }
}

/// Those of [begin, end) that masks by value show.
void Visibility::add_shown(std::int64_t i, std::int64_t begin, std::int64_t end) {
  const Problem& p = head_.problem;
  for (std::int64_t j = begin; j < end; ++j) {
    if (head_.mask != nullptr) {
      head_.mask->turn_to(head_.point(i, j));
      if (!head_.mask->boolean(p.mask_function.program->result)) continue;
    }
    if (p.mask.defined() && load(p.mask, pair_offset(p.mask, head_, i, j)) == 0.0) continue;
    keys_.push_back(j);
  }
}

double bias_at(const Head& head, std::int64_t i, std::int64_t j) {
  const Tensor& bias = head.problem.bias;
  return static_cast<float>(load(bias, pair_offset(bias, head, i, j)));
}

float apply_score_mod(const Head& head, std::int64_t i, std::int64_t j, float x) {
  head.problem.score_mod->apply(one_score(head, i, j, x));
  return x;
}

double score_at(const Head& head, std::int64_t i, std::int64_t j, double x) {
  head.score->turn_to(head.point(i, j, x));
  return head.score->real(score_program(head.problem)->result);
}

double score_slope(const Head& head, std::int64_t i, std::int64_t j, double x) {
  head.score->turn_to(head.point(i, j, x));
  return head.score->real(head.problem.score_gradient->of_score);
}

void for_each_capture_part(
    const Head& head,
    const std::function<void(std::size_t capture, std::int64_t element, double part)>& add) {
  const Problem& p = head.problem;
  for (const expression::CaptureTerm& term : p.score_gradient->terms) {
    const auto capture = static_cast<std::size_t>(term.capture);
    const Tensor& of = p.dcaptures[capture];
    if (!of.defined()) continue;
    for (std::int64_t lane = 0; lane < term.lanes; ++lane) {
      head.score->turn_to_lane(lane);
      std::int64_t element = 0;
      for (std::size_t axis = 0; axis < static_cast<std::size_t>(of.rank); ++axis) {
        element = element * of.sizes[axis] +
                  expression::in_axis(head.score->integer(term.index[axis]), of.sizes[axis]);
      }
      add(capture, element, head.score->real(term.value));
    }
  }
}

float score_mod_slope(const Head& head, std::int64_t i, std::int64_t j, float x) {
  float slope = 1.0F;
  head.problem.score_mod->derivative(one_score(head, i, j, x), &slope);
  return slope;
}

}  // namespace tilewise::reference
