/// Term: one operation of the DAG behind an Expression. Types are known when it is made, and
/// promotions are terms of their own, so that lowering only merges and folds.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "expression/lower.h"
#include "expression/program.h"
#include "tilewise/expression.h"

namespace tilewise {

struct Captured::Data {
  std::string name;
  Tensor tensor;
};

namespace expression {

struct Term {
  Op op = Op::constant;
  Type type = Type::real;
  int count = 0;
  std::array<Expression, 4> args;
  double real = 0.0;
  std::int64_t integer = 0;
  std::shared_ptr<const Captured::Data> capture;
  int depth = 0;         ///< of the longest chain below
  bool lanes = false;    ///< reads a lane that no reduction around it has bound
  bool reduces = false;  ///< a reduction is in it

  /// The program of a root, made once.
  mutable std::once_flag once;
  mutable std::shared_ptr<const Lowered> lowered;
};

/// Chains longer than this are refused: the tree is walked by recursion.
constexpr int kMaxDepth = 500;
constexpr std::int64_t kMaxLanes = 64;

const Term& term_of(const Expression& x);
Type type_of(const Expression& x);
/// As formulas name it: "+", "where", "exp".
std::string_view op_name(Op op);

/// The term `op` of operands of the types that it takes, as they are.
Expression make_term(Op op, Type type, std::span<const Expression> args);

/// Promotions: a boolean to an integer, both to a real.
Expression as_number(const Expression& x);
Expression as_real(const Expression& x);
Expression as_type(const Expression& x, Type type);

}  // namespace expression
}  // namespace tilewise
