#include "expression/lower.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "expression/derive.h"
#include "expression/nodes.h"
#include "expression/term.h"

namespace tilewise::expression {
namespace {

/// The captured tensors in the order in which a reader of the formula meets them.
void collect_captures(const Term& term, std::unordered_map<const Term*, std::int32_t>& seen,
                      std::vector<Captured>& captures) {
  if (!seen.try_emplace(&term, -1).second) return;
  if (term.op == Op::load && std::none_of(captures.begin(), captures.end(), [&](const Captured& c) {
        return c.data() == term.capture;
      })) {
    captures.emplace_back(term.capture);
  }
  for (int n = 0; n < term.count; ++n) {
    collect_captures(term_of(term.args[static_cast<std::size_t>(n)]), seen, captures);
  }
}

class Lowering {
 public:
  explicit Lowering(const std::vector<Captured>& captures)
      : captures_(captures), table_([&] {
          std::vector<CaptureType> types;
          types.reserve(captures.size());
          for (const Captured& c : captures) {
            types.push_back({.dtype = c.tensor().dtype, .rank = c.tensor().rank});
          }
          return types;
        }()) {}

  std::int32_t node(const Term& term) {
    if (const auto at = made_.find(&term); at != made_.end()) return at->second;
    std::array<std::int32_t, 4> nodes{};
    for (std::size_t n = 0; n < static_cast<std::size_t>(term.count); ++n) {
      nodes[n] = node(term_of(term.args[n]));
    }
    const std::span<const std::int32_t> args(nodes.data(), static_cast<std::size_t>(term.count));
    const std::int32_t made = make(term, args);
    made_.emplace(&term, made);
    return made;
  }

  const NodeTable& table() const { return table_; }

 private:
  std::int32_t make(const Term& term, std::span<const std::int32_t> args) {
    switch (term.op) {
      case Op::constant:
        if (term.type == Type::real) return table_.real(term.real);
        if (term.type == Type::boolean) return table_.boolean(term.integer != 0);
        return table_.integer(term.integer);
      case Op::load: {
        const auto at = std::find_if(captures_.begin(), captures_.end(),
                                     [&](const Captured& c) { return c.data() == term.capture; });
        return table_.load(static_cast<std::int32_t>(at - captures_.begin()), args);
      }
      case Op::any:
      case Op::all:
      case Op::sum:
        return table_.reduce(term.op, term.integer, args[0]);
      default:
        return term.count == 0 ? table_.leaf(term.op) : table_.make(term.op, args);
    }
  }

  const std::vector<Captured>& captures_;
  NodeTable table_;
  std::unordered_map<const Term*, std::int32_t> made_;
};

}  // namespace

Lowered::Lowered(const Expression& expression) {
  const Term& root = term_of(expression);
  if (root.lanes) throw InvalidArgument("expression: lane is used outside any(), all() and sum()");
  std::unordered_map<const Term*, std::int32_t> seen;
  collect_captures(root, seen, captures_);
  Lowering lowering(captures_);
  std::int32_t result = lowering.node(root);
  std::array roots{&result};
  auto program = std::make_shared<Program>(lowering.table().finish(roots));
  program->result = result;
  program_ = std::move(program);
}

std::shared_ptr<const Gradient> Lowered::gradient() const {
  std::call_once(once_, [&] { gradient_ = std::make_shared<const Gradient>(derive(*program_)); });
  return gradient_;
}

std::shared_ptr<const Affine> Lowered::affine() const {
  std::call_once(once_affine_, [&] {
    if (std::optional<Affine> made = affine_of(*program_))
      affine_ = std::make_shared<const Affine>(*std::move(made));
  });
  return affine_;
}

const Lowered& lower(const Expression& expression) {
  const Term& root = term_of(expression);
  std::call_once(root.once, [&] { root.lowered = std::make_shared<const Lowered>(expression); });
  return *root.lowered;
}

Function function_of(const Expression& expression) {
  const Lowered& lowered = lower(expression);
  Function function{.program = lowered.program(), .captures = {}};
  for (const Captured& capture : lowered.captures()) {
    function.captures.push_back(capture.tensor());
  }
  return function;
}

}  // namespace tilewise::expression
