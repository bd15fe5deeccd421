#include "problem/expressions.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "expression/bounds.h"
#include "expression/lower.h"
#include "expression/recognize.h"
#include "expression/term.h"
#include "expression/tree.h"
#include "problem/arguments.h"

namespace tilewise {
namespace {

using arguments::fail;
using arguments::fail_value;
using expression::Function;
using expression::Type;

/// Integers of a formula have 32 bits. Names an element of host memory that has more, signed or not
/// (words of bits are not): two of them that differ above would be equal.
void require_32_bits(const std::string& who, const Tensor& t) {
  if (t.dtype != DType::int64 || t.device.type != DeviceType::cpu || t.data == nullptr) return;
  const auto* elements = static_cast<const std::int64_t*>(t.data);
  std::array<std::int64_t, Tensor::kMaxRank> counts = {1, 1, 1, 1};  // an axis of stride 0 once
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(t.rank); ++axis)
    counts[axis] = t.strides[axis] == 0 ? std::min<std::int64_t>(t.sizes[axis], 1) : t.sizes[axis];
  for (std::int64_t x = 0; x < counts[0]; ++x) {
    for (std::int64_t y = 0; y < counts[1]; ++y) {
      for (std::int64_t z = 0; z < counts[2]; ++z) {
        const std::int64_t* row = elements + x * t.strides[0] + y * t.strides[1] + z * t.strides[2];
        for (std::int64_t w = 0; w < counts[3]; ++w) {
          const std::int64_t value = row[w * t.strides[3]];
          if (value >= std::numeric_limits<std::int32_t>::min() &&
              value <= std::numeric_limits<std::uint32_t>::max())
            continue;
          fail(who.c_str(), t,
               "it contains " + std::to_string(value) + ", expected integers of 32 bits");
        }
      }
    }
  }
}

Function take_function(const Problem& p, const char* name, const Expression& given) {
  for (const Captured& capture : given.captures()) {
    const Tensor& t = capture.tensor();
    const std::string who = captured_name(name, capture);
    arguments::require_device(who.c_str(), t, p.device);
    arguments::require_countable(who.c_str(), t);
    if (t.numel() == 0 && p.batch > 0 && p.seq_q > 0 && p.seq_k > 0) {
      fail(who.c_str(), t, "it must not be empty");
    }
    require_32_bits(who, t);
  }
  Function function = expression::function_of(given);
  const expression::Domain domain{.batch = p.batch,
                                  .heads = p.heads_q,
                                  .queries = p.seq_q,
                                  .keys = p.seq_k,
                                  .same_lengths = !p.packed && !p.key_lengths.defined()};
  if (const auto out = expression::find_outside(*function.program, function.captures, domain)) {
    const auto axis = static_cast<std::size_t>(out->axis);
    const Tensor& t = function.captures[static_cast<std::size_t>(out->capture)];
    const std::int64_t size = t.sizes[axis];
    const std::string who =
        captured_name(name, given.captures()[static_cast<std::size_t>(out->capture)]);
    fail(who.c_str(), t,
         "at b " + std::to_string(out->pair.b) + ", h " + std::to_string(out->pair.h) + ", i " +
             std::to_string(out->pair.i) + ", j " + std::to_string(out->pair.j) +
             " the index of axis " + std::to_string(axis) + " is " + std::to_string(out->index) +
             ", expected " + std::to_string(-size) + " to " + std::to_string(size - 1) +
             " (clamp it if only hidden pairs reach it)");
  }
  return function;
}

/// A linear form as +-(i - j) + Sk - Sq of its sequence + constant; lengths that all sequences have
/// are numbers in it. sign 0: of another form.
struct Diagonal {
  std::int64_t sign = 0;      ///< of i
  std::int64_t constant = 0;  ///< beside sign * (i + Sk - Sq - j)
  bool shifted = true;        ///< false: beside sign * (i - j), where Sk - Sq differs
};

Diagonal diagonal_of(const Problem& p, expression::Linear form) {
  if (form.query == 0 || form.key != -form.query) return {};
  if (!p.packed && !p.key_lengths.defined()) {
    form.constant +=
        form.query_length * p.seq_q + form.key_length * p.seq_k - form.query * (p.seq_k - p.seq_q);
    return {.sign = form.query, .constant = form.constant};
  }
  if (form.key_length != -form.query_length) return {};
  if (form.key_length == form.query) return {.sign = form.query, .constant = form.constant};
  if (form.key_length != 0) return {};
  return {.sign = form.query, .constant = form.constant, .shifted = false};
}

/// Takes a part of the mask, `form` >= 0, into causal or the window. False: it says something else.
bool take_diagonal(Problem& p, const expression::Linear& form) {
  const Diagonal d = diagonal_of(p, form);
  // j <= i, whatever the lengths.
  const std::int64_t unshifted = p.packed || p.key_lengths.defined() ? 0 : p.seq_q - p.seq_k;
  const bool top_left = d.sign == 1 && d.constant == unshifted && (!d.shifted || unshifted != 0);
  if (top_left && p.causal == Causal::none) {
    p.causal = Causal::top_left;
    return true;
  }
  if (d.sign == 0 || !d.shifted) return top_left && p.causal == Causal::top_left;
  if (d.sign == 1) {
    p.right = std::min(p.right, d.constant);
    if (d.constant == 0 && p.causal == Causal::none) p.causal = Causal::bottom_right;
  } else {
    p.left = std::min(p.left, d.constant);
  }
  return true;
}

/// The words of a tree, for rows that read them.
void recognize_tree(Problem& p) {
  const expression::Function& f = p.mask_function;
  if (!f.defined() || f.captures.size() != 1 || p.causal != Causal::bottom_right) return;
  const Tensor& words = f.captures[0];
  if (!expression::is_tree(*f.program, words)) return;
  p.tree = words;
  if (words.rank == 3) return;
  p.tree.rank = 3;
  p.tree.sizes = {p.batch, words.sizes[0], words.sizes[1]};
  p.tree.strides = {0, words.strides[0], words.strides[1]};
}

void recognize_mask(Problem& p) {
  const expression::Program& program = *p.mask_function.program;
  const expression::Conjuncts parts = expression::conjuncts(program);
  std::vector<std::int32_t> rest = parts.others;
  for (std::size_t n = 0; n < parts.linear.size(); ++n) {
    if (!take_diagonal(p, parts.linear[n])) rest.push_back(parts.linear_nodes[n]);
  }
  if (rest.empty()) {
    p.mask_function = {};
  } else if (rest.size() < parts.others.size() + parts.linear.size()) {
    p.mask_function.program =
        std::make_shared<const expression::Program>(expression::conjunction(program, rest));
  }
  recognize_tree(p);
}

bool take_alibi(Problem& p) {
  const std::optional<expression::Alibi> alibi = expression::alibi_of(*p.score_function.program);
  if (!alibi || p.alibi_slopes.defined()) return false;
  const Diagonal d = diagonal_of(p, alibi->distance);
  if (d.sign == 0 || !d.shifted || d.constant != 0) return false;
  // A distance with its sign is the same where no later key is seen.
  if (!alibi->absolute && (d.sign != 1 || p.right > 0)) return false;
  const Tensor& slopes = p.score_function.captures[static_cast<std::size_t>(alibi->capture)];
  const bool by_head = slopes.rank == 1 && slopes.sizes[0] == p.heads_q;
  const bool by_both =
      slopes.rank == 2 && slopes.sizes[0] == p.batch && slopes.sizes[1] == p.heads_q;
  if (!by_head && !by_both) return false;
  p.alibi_slopes =
      arguments::expand("score_expression", slopes, {p.batch, p.heads_q}, "(Hq) or (B, Hq)");
  return true;
}

/// Takes the score into softcap or alibi_slopes where it is one, and no gradient of a captured
/// tensor is wanted.
void recognize_score(Problem& p) {
  if (!p.score_function.defined()) return;
  if (std::any_of(p.dcaptures.begin(), p.dcaptures.end(),
                  [](const Tensor& t) { return t.defined(); })) {
    return;
  }
  const double cap = expression::softcap_of(*p.score_function.program);
  const bool caps = arguments::is_softcap(cap) && p.softcap == 0.0 && !p.bias.defined() &&
                    !p.alibi_slopes.defined();
  if (caps) p.softcap = cap;
  if (!caps && !take_alibi(p)) return;
  p.score_function = {};
  p.score_affine = nullptr;
  p.dcaptures.clear();
}

}  // namespace

std::string captured_name(const char* argument, const Captured& capture) {
  return std::string(argument) + "'s " + capture.name();
}

void take_expressions(Problem& p, const AttentionSpec& spec) {
  if (spec.score_expression.defined()) {
    if (spec.score_mod != nullptr) {
      fail_value("score_expression", "given together with score_mod", "give only one of them");
    }
    if (expression::type_of(spec.score_expression) == Type::boolean) {
      fail_value("score_expression", "a boolean",
                 "its value must be a number; use mask_expression for masks");
    }
    const Expression score = expression::as_real(spec.score_expression);
    p.score_function = take_function(p, "score_expression", score);
    p.score_affine = expression::lower(score).affine();
  }
  if (spec.mask_expression.defined()) {
    if (expression::type_of(spec.mask_expression) != Type::boolean) {
      fail_value("mask_expression", "a number", "its value must be a boolean (true = visible)");
    }
    p.mask_function = take_function(p, "mask_expression", spec.mask_expression);
    const expression::Program& program = *p.mask_function.program;
    const auto& result = program.nodes[static_cast<std::size_t>(program.result)];
    if ((result.depends & expression::kScore) != 0) {
      fail_value("mask_expression", "a formula that reads score",
                 "only score_expression can read score");
    }
    recognize_mask(p);
  }
  if (p.pass == Pass::forward) recognize_score(p);  // backward knows its gradients later
}

void take_capture_gradients(Problem& p, const BackwardTensors& tensors, const AttentionSpec& spec,
                            Purpose purpose) {
  const std::vector<Tensor>& given = tensors.dcaptures;
  if (!p.score_function.defined()) {
    if (!given.empty()) {
      fail_value("dcaptures", std::to_string(given.size()) + " tensors",
                 "requires score_expression");
    }
    return;
  }
  const std::vector<Captured> captures = spec.score_expression.captures();
  p.dcaptures.resize(captures.size());
  if (!given.empty() && given.size() != captures.size()) {
    fail_value("dcaptures", std::to_string(given.size()) + " tensors",
               "score_expression captures " + std::to_string(captures.size()));
  }
  for (std::size_t n = 0; n < given.size(); ++n) {
    const Tensor& t = given[n];
    if (!t.defined()) continue;
    const Tensor& of = captures[n].tensor();
    const std::string who = "dcaptures' " + captures[n].name();
    if (!is_floating(of.dtype))
      fail(who.c_str(), t, "expected a gradient only for a tensor of a float type");
    if (t.dtype != of.dtype || t.rank != of.rank || t.sizes != of.sizes) {
      fail(who.c_str(), t, "it must have the shape and type of " + of.describe());
    }
    arguments::require_device(who.c_str(), t, p.device);
    arguments::require_no_overlap(who.c_str(), t);
    if (purpose == Purpose::run) arguments::require_data(who.c_str(), t);
    p.dcaptures[n] = t;
  }
  recognize_score(p);
  if (!p.score_function.defined()) return;
  const Expression score = expression::as_real(spec.score_expression);
  p.score_gradient = expression::lower(score).gradient();
}

void require_capture_data(const AttentionSpec& spec) {
  const auto require = [](const char* name, const Expression& given) {
    for (const Captured& capture : given.captures())
      arguments::require_data(captured_name(name, capture).c_str(), capture.tensor());
  };
  require("score_expression", spec.score_expression);
  require("mask_expression", spec.mask_expression);
}

}  // namespace tilewise
