#include "reference/logits.h"

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
  if (p.score_function.defined()) {
    const bool backward = p.score_gradient != nullptr;
    score = interpreter(backward ? p.score_gradient->program : *p.score_function.program,
                        p.score_function);
  }
  if (p.mask_function.defined()) mask = interpreter(*p.mask_function.program, p.mask_function);
}

Visibility::Visibility(const Head& head) : head_(head) {}

void Visibility::start_row(std::int64_t i) {
  i_ = i;
  range_ = head_.problem.visible_keys(head_.sequence, i);
  const BlockList& list = head_.problem.block_list;
  if (!list.defined()) return;
  blocks_.assign(static_cast<std::size_t>(ceil_div(head_.problem.seq_k, list.block_k)),
                 Block::hidden);
  const Tensor& offsets = list.row_offsets;
  const std::int64_t at = head_.b * offsets.strides[0] + head_.h * offsets.strides[1] +
                          i / list.block_q * offsets.strides[2];
  const std::int64_t end = integer(offsets, at + offsets.strides[2]);
  for (std::int64_t pair = integer(offsets, at); pair < end; ++pair) {
    const bool full = list.block_full.defined() &&
                      load(list.block_full, pair * list.block_full.strides[0]) != 0.0;
    const std::int64_t block = integer(list.block_index, pair * list.block_index.strides[0]);
    blocks_[static_cast<std::size_t>(block)] = full ? Block::full : Block::partial;
  }
}

bool Visibility::sees(std::int64_t j) const {
  const Problem& p = head_.problem;
  if (!blocks_.empty()) {
    const Block block = blocks_[static_cast<std::size_t>(j / p.block_list.block_k)];
    if (block == Block::hidden) return false;
    if (block == Block::full)
      return true;  // the caller's promise: no other mask hides anything here
  }
  if (j < range_.begin || j >= range_.end) return false;
  if (head_.mask != nullptr) {
    head_.mask->turn_to(head_.point(i_, j));
    if (!head_.mask->boolean(p.mask_function.program->result)) return false;
  }
  return !p.mask.defined() || load(p.mask, pair_offset(p.mask, head_, i_, j)) != 0.0;
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
  const Problem& p = head.problem;
  head.score->turn_to(head.point(i, j, x));
  return head.score->real(p.score_gradient != nullptr ? p.score_gradient->program.result
                                                      : p.score_function.program->result);
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
