#include "problem/expressions.h"

#include <string>

#include "expression/lower.h"
#include "expression/term.h"
#include "problem/arguments.h"

namespace tilewise {
namespace {

using arguments::fail;
using arguments::fail_value;
using expression::Function;
using expression::Type;

std::string called(const char* argument, const Captured& capture) {
  return std::string(argument) + "'s " + capture.name();
}

Function take_function(const Problem& p, const char* name, const Expression& given) {
  for (const Captured& capture : given.captures()) {
    const Tensor& t = capture.tensor();
    const std::string who = called(name, capture);
    arguments::require_device(who.c_str(), t, p.device);
    arguments::require_countable(who.c_str(), t);
    if (t.numel() == 0 && p.batch * p.seq_q * p.seq_k > 0) {
      fail(who.c_str(), t, "it must have elements");
    }
  }
  return expression::function_of(given);
}

}  // namespace

void take_expressions(Problem& p, const AttentionSpec& spec) {
  if (spec.score_expression.defined()) {
    if (spec.score_mod != nullptr) {
      fail_value("score_expression", "given beside score_mod", "one of them at most");
    }
    if (expression::type_of(spec.score_expression) == Type::boolean) {
      fail_value("score_expression", "a boolean",
                 "its value must be a number; masks go into "
                 "mask_expression");
    }
    p.score_function =
        take_function(p, "score_expression", expression::as_real(spec.score_expression));
  }
  if (spec.mask_expression.defined()) {
    if (expression::type_of(spec.mask_expression) != Type::boolean) {
      fail_value("mask_expression", "a number", "its value must be a boolean (true = visible)");
    }
    p.mask_function = take_function(p, "mask_expression", spec.mask_expression);
    const expression::Program& program = *p.mask_function.program;
    const auto& result = program.nodes[static_cast<std::size_t>(program.result)];
    if ((result.depends & expression::kScore) != 0) {
      fail_value("mask_expression", "reads the score", "only score_expression may");
    }
  }
}

void take_capture_gradients(Problem& p, const BackwardTensors& tensors, const AttentionSpec& spec,
                            Purpose purpose) {
  const std::vector<Tensor>& given = tensors.dcaptures;
  if (!p.score_function.defined()) {
    if (!given.empty()) {
      fail_value("dcaptures", std::to_string(given.size()) + " tensors",
                 "given without a score_expression");
    }
    return;
  }
  p.score_gradient = expression::lower(expression::as_real(spec.score_expression)).gradient();
  const std::vector<Captured> captures = spec.score_expression.captures();
  p.dcaptures.resize(captures.size());
  if (given.empty()) return;
  if (given.size() != captures.size()) {
    fail_value("dcaptures", std::to_string(given.size()) + " tensors",
               "score_expression captures " + std::to_string(captures.size()));
  }
  for (std::size_t n = 0; n < given.size(); ++n) {
    const Tensor& t = given[n];
    if (!t.defined()) continue;
    const Tensor& of = captures[n].tensor();
    const std::string who = "dcaptures' " + captures[n].name();
    if (!is_floating(of.dtype)) fail(who.c_str(), t, "given for a tensor that is no float type");
    if (t.dtype != of.dtype || t.rank != of.rank || t.sizes != of.sizes) {
      fail(who.c_str(), t, "it must have the shape and type of " + of.describe());
    }
    arguments::require_device(who.c_str(), t, p.device);
    arguments::require_no_overlap(who.c_str(), t);
    if (purpose == Purpose::run && t.data == nullptr && t.numel() > 0) {
      fail(who.c_str(), t, "its data pointer is null");
    }
    p.dcaptures[n] = t;
  }
}

void require_capture_data(const AttentionSpec& spec) {
  const auto require = [](const char* name, const Expression& given) {
    for (const Captured& capture : given.captures()) {
      const Tensor& t = capture.tensor();
      if (t.data == nullptr && t.numel() > 0) {
        fail(called(name, capture).c_str(), t, "its data pointer is null");
      }
    }
  };
  require("score_expression", spec.score_expression);
  require("mask_expression", spec.mask_expression);
}

}  // namespace tilewise
