#include "cuda/kernels/rows/score_strip.h"

#include "cuda/driver/launch.h"
#include "cuda/host/expression_text.h"
#include "cuda/host/expressions.h"
#include "cuda/host/fill.h"
#include "cuda/host/sequences.h"
#include "cuda/kernels/rows/score_strip_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

int values_of(const Problem& p) {
  return p.pass == Pass::backward ? strip_values(*p.score_gradient)
                                  : strip_values(*p.score_function.program);
}

std::int64_t distances(const Problem& p) {
  return p.seq_q + p.seq_k + std::int64_t{2} * score_strip::kPadding;
}

/// Each sequence has a strip as long as the longest ones need. With `deterministic` no other
/// sequence may decide how one is computed.
bool strips_sequences(const Problem& p) {
  constexpr std::int64_t kMostIdle = 4;  // values, for each row
  return !p.deterministic && p.batch * distances(p) <= kMostIdle * (p.total_q + p.total_k);
}

}  // namespace

bool strips_score(const Problem& p) {
  return p.score_function.defined() && (!p.packed || strips_sequences(p)) && values_of(p) > 0;
}

KernelUnit score_strip_unit(const Problem& p) {
  KernelUnit unit;
  unit.stem = "score_strip";
  unit.file = "rows/score_strip";
  unit.config = ".expressions = {1, 0}";
  unit.threads = score_strip::kThreads;
  return with_functions(std::move(unit), p, score_function_text(p, false));
}

std::int64_t ScoreStrip::count() const { return distances(problem_); }
std::int64_t ScoreStrip::words() const {
  return problem_.batch * problem_.heads_q * count() * values_of(problem_);
}

void ScoreStrip::add_memory(std::vector<MemoryPart>& items) const {
  if (!any_) return;
  items.push_back(memory_part("parts of scores by i - j", MemoryItem::Role::workspace,
                              DType::float32, {words()}));
}

tile::Strip ScoreStrip::make(WorkspaceCutter& workspace, void* stream) const {
  if (!any_) return {};
  const Problem& p = problem_;
  score_strip::Args args;
  args.values = workspace.take<float>(words());
  args.strip.values = args.values;
  args.strip.count = count();
  args.strip.zero = static_cast<int>(p.seq_k) + score_strip::kPadding;
  args.strip.heads = static_cast<int>(p.heads_q);
  args.blocks = static_cast<int>(ceil_div(count(), score_strip::kThreads));
  args.seq_q = static_cast<int>(p.seq_q);
  args.seq_k = static_cast<int>(p.seq_k);
  if (p.packed) {
    args.queries = host::query_sequences(p);
    if (!p.paged) args.keys = host::key_sequences(p);
  }
  host::fill_key_lengths(args, p);
  const Kernel kernel =
      load_by_key("score_strip\n" + expressions_key(p), score_strip::Config{}, p.device.index,
                  [&](const score_strip::Config&) { return score_strip_unit(p); });
  launch_expressed(p, kernel, {.x = args.blocks * p.batch * p.heads_q}, stream, args);
  return args.strip;
}

}  // namespace tilewise::cuda
