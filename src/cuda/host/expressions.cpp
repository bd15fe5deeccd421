#include "cuda/host/expressions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "expression/shift.h"

namespace tilewise::cuda {
namespace {

using expression::Function;

std::string function_refusal(const Function& function) {
  if (!function.defined()) return "";
  for (const Tensor& t : function.captures) {
    for (int axis = 0; axis < t.rank; ++axis) {
      if (t.sizes[axis] > std::numeric_limits<std::int32_t>::max()) {
        return "a captured tensor with an axis of " + std::to_string(t.sizes[axis]) +
               " elements is not supported by this kernel";
      }
    }
  }
  return expression_refusal(*function.program);
}

std::size_t captures_count(const Function& function) {
  return function.defined() ? function.captures.size() : 0;
}

tile::Capture capture_of(const Tensor& t) {
  tile::Capture capture;
  capture.data = t.data;
  for (int axis = 0; axis < t.rank; ++axis) {
    capture.sizes[axis] = static_cast<int>(t.sizes[axis]);
    capture.strides[axis] = t.strides[axis];
  }
  return capture;
}

/// Whether what the function gives is 0 where the score is, as far as its operations tell.
bool vanishes_with_score(const expression::Program& program) {
  using expression::Op;
  std::vector<bool> zero(program.nodes.size(), false);
  const auto is_zero = [&](std::int32_t node) { return zero[static_cast<std::size_t>(node)]; };
  for (std::size_t n = 0; n < zero.size(); ++n) {
    const expression::Node& node = program.nodes[n];
    const auto& of = node.args;
    switch (node.op) {
      case Op::score:
        zero[n] = true;
        break;
      case Op::multiply:
        zero[n] = is_zero(of[0]) || is_zero(of[1]);
        break;
      case Op::add:
      case Op::subtract:
        zero[n] = is_zero(of[0]) && is_zero(of[1]);
        break;
      case Op::divide:
      case Op::negate:
      case Op::absolute:
      case Op::tanh:
      case Op::atan:
      case Op::erf:
      case Op::relu:
      case Op::silu:
      case Op::gelu:
        zero[n] = is_zero(of[0]);
        break;
      case Op::where:
        zero[n] = is_zero(of[1]) && is_zero(of[2]);
        break;
      default:
        break;
    }
  }
  return is_zero(program.result);
}

}  // namespace

std::string expressions_refusal(const Problem& p) {
  std::string reason = function_refusal(p.score_function);
  if (reason.empty()) reason = function_refusal(p.mask_function);
  const std::size_t captures = captures_count(p.score_function) + captures_count(p.mask_function);
  if (reason.empty() && captures > tile::Captures::kMost) {
    reason = "more than " + std::to_string(tile::Captures::kMost) +
             " captured tensors are not supported by this kernel";
  }
  if (reason.empty() && p.score_function.defined() && p.dbias.defined()) {
    reason = "the gradient of a bias beside a score function is not supported by this kernel";
  }
  return reason;
}

namespace {

/// Beyond it a float32 LSE has too few digits of log l left.
constexpr double kHuge = 0x1p16;

bool has_huge_constant(const expression::Program& program) {
  return std::any_of(program.nodes.begin(), program.nodes.end(), [](const expression::Node& node) {
    return node.op == expression::Op::constant && node.type == expression::Type::real &&
           std::isfinite(node.real) && std::fabs(node.real) >= kHuge;
  });
}

/// Whether every row sees the key at distance 0.
bool sees_diagonal(const Problem& p) {
  return !p.mask.defined() && !p.mask_function.defined() && !p.block_list.defined() &&
         p.seq_q <= p.seq_k && !p.packed && !p.key_lengths.defined() && p.left >= 0 &&
         p.right >= 0 && (p.causal != Causal::top_left || p.seq_q == p.seq_k);
}

bool reads_reals(const Problem& p) {
  const auto& captures = p.score_function.captures;
  return std::any_of(captures.begin(), captures.end(),
                     [](const Tensor& t) { return is_floating(t.dtype); });
}

}  // namespace

bool moves_rows_far(const Problem& p) {
  if (!p.score_function.defined()) return false;
  const expression::Program& program = *p.score_function.program;
  if (has_huge_constant(program)) return true;
  if (p.score_affine == nullptr && reads_reals(p)) return false;
  const expression::Domain domain{.batch = p.batch,
                                  .heads = p.heads_q,
                                  .queries = p.seq_q,
                                  .keys = p.seq_k,
                                  .same_lengths = !p.packed && !p.key_lengths.defined()};
  const double most =
      p.score_affine == nullptr
          ? expression::largest_shift(program, domain)
          : expression::largest_shift(*p.score_affine, domain, sees_diagonal(p), p.right <= 0);
  return most >= kHuge;
}

tile::Expressions expressions_of(const Problem& p) {
  tile::Expressions of = {.score = p.score_function.defined() ? 1 : 0,
                          .mask = p.mask_function.defined() ? 1 : 0};
  if (of.score == 0 || p.pass != Pass::backward) return of;
  // What only scales scores moves a row no further than a scale does.
  const bool adds = reads_reals(p) && p.score_affine == nullptr &&
                    !vanishes_with_score(*p.score_function.program);
  of.shifts = moves_rows_far(p) || adds;
  return of;
}

bool is_gated(const Problem& p) {
  if (!p.score_function.defined()) return false;
  const expression::Gradient& gradient = *p.score_gradient;
  const expression::Node& slope =
      gradient.program.nodes[static_cast<std::size_t>(gradient.of_score)];
  return slope.op != expression::Op::constant || slope.real != 1.0;
}

std::string expressions_text(const tile::Expressions& expressions) {
  if (!expressions.any()) return "";
  return ", .expressions = {" + std::to_string(expressions.score) + ", " +
         std::to_string(expressions.mask) +
         (expressions.shifts  ? expressions.strip ? ", true, true}" : ", false, true}"
          : expressions.strip ? ", true}"
                              : "}");
}

tile::Captures captures_of(const Problem& p, const tile::Strip& strip) {
  tile::Captures captures;
  captures.strip = strip;
  std::size_t count = 0;
  for (const Function* function : {&p.score_function, &p.mask_function}) {
    if (!function->defined()) continue;
    for (const Tensor& t : function->captures) captures.at[count++] = capture_of(t);
  }
  return captures;
}

std::string score_function_text(const Problem& p, bool strip) {
  const FunctionName name = {.strip = strip};
  return p.pass == Pass::backward ? gradient_text(*p.score_gradient, name)
                                  : score_text(*p.score_function.program, name);
}

KernelUnit with_expressions(KernelUnit unit, const Problem& p, bool strip) {
  std::string score;
  if (p.score_function.defined()) {
    score = score_function_text(p, strip);
    if (p.score_affine != nullptr) score += slant_text(*p.score_affine);
  }
  return with_functions(std::move(unit), p, score);
}

KernelUnit with_functions(KernelUnit unit, const Problem& p, const std::string& score) {
  unit.prelude += "#include \"cuda/tile/expression.cuh\"\n" + score;
  if (p.mask_function.defined()) unit.prelude += mask_text(*p.mask_function.program, mask_name(p));
  unit.args = "tilewise::tile::Expressed<" + unit.args + ">";
  return unit;
}

FunctionName mask_name(const Problem& p) {
  return {.index = 1, .first_capture = static_cast<int>(captures_count(p.score_function))};
}

std::string expressions_key(const Problem& p) {
  std::string key = p.pass == Pass::backward ? "backward" : "forward";
  for (const Function* function : {&p.score_function, &p.mask_function}) {
    key += "\n";
    if (function->defined()) key += function->program->text;
  }
  return key;
}

}  // namespace tilewise::cuda
