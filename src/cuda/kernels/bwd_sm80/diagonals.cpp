#include "cuda/kernels/bwd_sm80/diagonals.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/driver/memory.h"
#include "cuda/host/expression_printer.h"
#include "cuda/host/expression_text.h"
#include "cuda/host/expressions.h"
#include "cuda/host/fill.h"
#include "cuda/host/sequences.h"
#include "cuda/kernels/bwd_sm80/captures.h"
#include "cuda/kernels/bwd_sm80/diagonals_args.h"
#include "cuda/kernels/bwd_sm80/gate.h"
#include "cuda/tile/exact_sum_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using printing::Part;

/// Each sequence has sums as many as the longest ones need. With `deterministic` no other sequence
/// may decide how one is computed.
bool sums_sequences(const Problem& p) {
  constexpr std::int64_t kMostIdle = 4;  // sums, for each row
  return !p.deterministic && p.batch * (p.seq_q + p.seq_k) <= kMostIdle * (p.total_q + p.total_k);
}

bool decides_alone(const std::vector<Part>& parts, std::int32_t node) {
  const Part part = parts[static_cast<std::size_t>(node)];
  return part == Part::uniform || part == Part::diagonal;
}

}  // namespace

std::vector<bool> diagonal_captures(const Problem& p) {
  std::vector<bool> which(p.dcaptures.size(), false);
  // dS is the gradient of what the function gives where its slope is 1.
  if (!wants_captures(p) || (p.packed && !sums_sequences(p)) || is_gated(p)) return which;
  const expression::Gradient& gradient = *p.score_gradient;
  const std::vector<Part> parts = printing::parts_of(gradient.program);
  for (std::size_t n = 0; n < which.size(); ++n) {
    const Tensor& t = p.dcaptures[n];
    if (!t.defined() || gate_of(p, n)) continue;
    which[n] = true;
    for (const expression::CaptureTerm& term : gradient.terms) {
      if (term.capture != static_cast<std::int32_t>(n)) continue;
      bool alone = term.lanes == 1 && decides_alone(parts, term.value);
      for (int axis = 0; axis < t.rank; ++axis)
        alone &= decides_alone(parts, term.index[static_cast<std::size_t>(axis)]);
      which[n] = which[n] && alone;
    }
  }
  return which;
}

DiagonalGradients::DiagonalGradients(const Problem& p, std::vector<bool> which,
                                     std::int64_t queries, std::int64_t keys)
    : problem_(p),
      which_(std::move(which)),
      queries_(queries),
      keys_(keys),
      any_(std::find(which_.begin(), which_.end(), true) != which_.end()) {}

Problem DiagonalGradients::others() const {
  Problem rest = problem_;
  for (std::size_t n = 0; n < which_.size(); ++n) {
    if (which_[n]) rest.dcaptures[n] = Tensor();
  }
  return rest;
}

std::int64_t DiagonalGradients::floats(std::int64_t sums) const {
  return problem_.deterministic ? sums * tile::ExactSum::kFloats : sums;
}

void DiagonalGradients::add_memory(std::vector<MemoryPart>& items) const {
  if (!any_) return;
  const auto add = [&](const char* name, std::int64_t sums) {
    items.push_back(memory_part(name, MemoryItem::Role::workspace, DType::float32, {floats(sums)}));
  };
  add("sums by i - j", problem_.batch * problem_.heads_q * count());
  for (std::size_t n = 0; n < which_.size(); ++n) {
    if (which_[n]) add("gradient of a captured tensor", problem_.dcaptures[n].numel());
  }
}

void DiagonalGradients::take(WorkspaceCutter& workspace, void* stream) {
  if (!any_) return;
  const auto cleared = [&](std::int64_t sums) {
    auto* const to = workspace.take<float>(floats(sums));
    fill_bytes(to, 0, 4 * floats(sums), problem_.device.index, stream);
    return to;
  };
  sums_ = cleared(problem_.batch * problem_.heads_q * count());
  elements_.assign(which_.size(), nullptr);
  for (std::size_t n = 0; n < which_.size(); ++n) {
    if (which_[n]) elements_[n] = cleared(problem_.dcaptures[n].numel());
  }
}

KernelUnit DiagonalGradients::unit() const {
  KernelUnit made;
  made.stem = "bwd_diagonals";
  made.file = "bwd_sm80/diagonals";
  made.config = std::string(".exact = ") + (problem_.deterministic ? "true" : "false") +
                expressions_text({.score = 1});
  made.threads = bwd_diagonals::kThreads;
  return with_functions(std::move(made), problem_,
                        captures_text(*problem_.score_gradient, which_, problem_.deterministic));
}

void DiagonalGradients::make(void* stream) const {
  if (!any_) return;
  const Problem& p = problem_;
  tile::Captures captures = captures_of(p);
  for (std::size_t n = 0; n < which_.size(); ++n) captures.at[n].gradient = elements_[n];
  bwd_diagonals::Args args;
  args.sums = sums_;
  args.count = static_cast<int>(count());
  args.last_key = static_cast<int>(last_key());
  args.heads = static_cast<int>(p.heads_q);
  args.seq_q = static_cast<int>(p.seq_q);
  args.seq_k = static_cast<int>(p.seq_k);
  if (p.packed) {
    args.queries = host::query_sequences(p);
    args.keys = host::key_sequences(p);
  }
  host::fill_key_lengths(args, p);
  std::string key = "diagonals " + expressions_key(p);
  for (const bool one : which_) key += one ? '1' : '0';
  const Kernel kernel = load_by_key(std::move(key), p.deterministic, p.device.index,
                                    [&](bool /*exact*/) { return unit(); });
  constexpr std::int64_t kOfBlock = std::int64_t{bwd_diagonals::kThreads} * bwd_diagonals::kRun;
  args.blocks = static_cast<int>(ceil_div(count(), kOfBlock));
  launch(kernel, {.x = args.blocks * p.batch * p.heads_q}, stream,
         tile::Expressed<bwd_diagonals::Args>{args, captures});
  for (std::size_t n = 0; n < which_.size(); ++n) {
    if (which_[n])
      store_capture(elements_[n], p.deterministic, p.dcaptures[n], p.device.index, stream);
  }
}

}  // namespace tilewise::cuda
