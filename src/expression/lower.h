/// From an Expression to the flat program that evaluators read: constants folded, equal nodes once,
/// what no result needs left out.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "expression/affine.h"
#include "expression/program.h"
#include "tilewise/expression.h"

namespace tilewise::expression {

/// An expression's program. The gradient and the affine form are made when they are first asked
/// for.
class Lowered {
 public:
  explicit Lowered(const Expression& expression);
  const std::shared_ptr<const Program>& program() const { return program_; }
  const std::vector<Captured>& captures() const { return captures_; }
  std::shared_ptr<const Gradient> gradient() const;
  /// Null where the score function has no such form.
  std::shared_ptr<const Affine> affine() const;

 private:
  std::shared_ptr<const Program> program_;
  std::vector<Captured> captures_;
  mutable std::once_flag once_, once_affine_;
  mutable std::shared_ptr<const Gradient> gradient_;
  mutable std::shared_ptr<const Affine> affine_;
};

/// Made once for each expression, from whatever thread. Throws InvalidArgument for a lane outside a
/// reduction, for constants that 32 bits do not hold, and for too many nodes.
const Lowered& lower(const Expression& expression);
const Lowered& lower(Expression&&) = delete;  ///< what it gives lives as long as the expression

/// The program with its captured tensors.
Function function_of(const Expression& expression);

}  // namespace tilewise::expression
