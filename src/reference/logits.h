/// From a product q.k to the logit that softmax sees, (F2) to (F4), and which keys a query sees.
/// Shared by the oracle (Real = double) and its yardstick (Real = float).
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "expression/interpret.h"
#include "problem/problem.h"

namespace tilewise::reference {

/// One query head of one sequence.
struct Head {
  Head(const Problem& problem, std::int64_t b, std::int64_t h);

  const Problem& problem;
  std::int64_t b, h;
  std::int64_t h_k;  ///< the key head that it reads. CONTRACT 7
  Sequence sequence;
  double slope = 0.0;                                      ///< ALiBi's, 0 = none
  double sink = -std::numeric_limits<double>::infinity();  ///< -inf = none

  /// The spec's expressions, of backward the score's gradient; null without.
  std::unique_ptr<expression::Interpreter> score, mask;

  /// Pair (i, j) as an expression sees it.
  expression::Point point(std::int64_t i, std::int64_t j, double x = 0.0) const {
    return {.b = b,
            .h = h,
            .i = i,
            .j = j,
            .query_length = sequence.q_length,
            .key_length = sequence.k_length,
            .score = x};
  }
};

/// Which keys the queries of a head see. CONTRACT 1, 3 to 5.
class Visibility {
 public:
  explicit Visibility(const Head& head);
  /// The keys that query i sees, ascending. Costs as much as positions and the block list leave.
  const std::vector<std::int64_t>& of_row(std::int64_t i);

 private:
  enum class Block : std::uint8_t { hidden, partial, full };

  const Head& head_;
  std::vector<Block> blocks_;  ///< of the row's query block
  std::vector<std::int64_t> keys_;

  void add_listed(std::int64_t i, KeyRange range);
  void add_shown(std::int64_t i, std::int64_t begin, std::int64_t end);
};

/// The stages of one logit; backward needs them all.
template <class Real>
struct Logit {
  Real s = 0;                                       ///< (F1) scale * q.k
  Real x = 0;                                       ///< (F3) capped and biased
  Real y = -std::numeric_limits<Real>::infinity();  ///< (F4) what softmax sees; -inf = hidden
  bool hidden() const { return y == -std::numeric_limits<Real>::infinity(); }
};

/// bias_ij, as float32 (CONTRACT 15); 0 without a bias.
double bias_at(const Head& head, std::int64_t i, std::int64_t j);

/// The user's score callback on one logit, in float32, which is what it is defined on.
float apply_score_mod(const Head& head, std::int64_t i, std::int64_t j, float x);
/// Its derivative at x, the logit before it.
float score_mod_slope(const Head& head, std::int64_t i, std::int64_t j, float x);

/// The score expression on one logit.
double score_at(const Head& head, std::int64_t i, std::int64_t j, double x);
/// Its derivative at x. The interpreter then stands at the pair.
double score_slope(const Head& head, std::int64_t i, std::int64_t j, double x);
/// Calls add(capture, element, part) for what the pair where the interpreter stands adds to the
/// gradients of captured tensors: d result / d element, elements counted in row-major order.
void for_each_capture_part(
    const Head& head,
    const std::function<void(std::size_t capture, std::int64_t element, double part)>& add);

/// (F2) to (F4) for a visible pair.
template <class Real>
Logit<Real> make_logit(const Head& head, std::int64_t i, std::int64_t j, Real s) {
  const Problem& p = head.problem;
  const auto cap = static_cast<Real>(p.softcap);
  const auto distance = static_cast<Real>(std::abs(i + head.sequence.shift() - j));
  Logit<Real> logit{.s = s, .x = s};
  if (cap != 0) logit.x = cap * std::tanh(s / cap);                            // (F2)
  if (head.slope != 0.0) logit.x -= static_cast<Real>(head.slope) * distance;  // (F3)
  if (p.bias.defined()) logit.x += static_cast<Real>(bias_at(head, i, j));     // (F3)
  logit.y = logit.x;
  // NOTE a bias of -inf is a mask (CONTRACT 3), and masks are applied after the score function.
  if (p.score_mod != nullptr && !logit.hidden()) {
    logit.y = apply_score_mod(head, i, j, static_cast<float>(logit.x));  // (F4)
  }
  if (head.score != nullptr && !logit.hidden()) {
    logit.y = static_cast<Real>(score_at(head, i, j, logit.x));  // (F4)
  }
  return logit;
}

/// (B6): mod'(X), 1 without a score function.
template <class Real>
Real mod_derivative(const Head& head, std::int64_t i, std::int64_t j, const Logit<Real>& logit) {
  if (head.score != nullptr) return static_cast<Real>(score_slope(head, i, j, logit.x));
  if (head.problem.score_mod == nullptr) return 1;
  return score_mod_slope(head, i, j, static_cast<float>(logit.x));
}

/// (B7): cap'(S), 1 without a cap.
template <class Real>
Real cap_derivative(const Head& head, const Logit<Real>& logit) {
  if (head.problem.softcap == 0.0) return 1;
  const Real t = std::tanh(logit.s / static_cast<Real>(head.problem.softcap));
  return 1 - t * t;
}

}  // namespace tilewise::reference
