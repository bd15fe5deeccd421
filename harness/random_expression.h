/// Random formulas over the whole grammar, for checks.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tilewise/expression.h"

namespace tilewise {

/// Captured tensors that random formulas read, with contents of their own.
struct RandomCaptures {
  static constexpr std::int64_t kSize = 8;

  explicit RandomCaptures(std::uint64_t seed);
  RandomCaptures(const RandomCaptures&) = delete;
  RandomCaptures& operator=(const RandomCaptures&) = delete;

  std::vector<double> row, table;
  std::vector<std::int32_t> documents;
  double scalar = 0.0;
  std::vector<Captured> captures;
};

/// What a test draws: `count` formulas from a seed of its own on. TILEWISE_RANDOM_EXPRESSIONS is
/// another count, TILEWISE_RANDOM_SEED is added to the seed.
struct Draws {
  int count;
  std::uint64_t seed = 0;

  explicit Draws(int usual);
};

/// Formulas of depth at most `depth`. Their values stay moderate: what can grow is passed through
/// a bounded function.
class RandomExpression {
 public:
  RandomExpression(std::uint64_t seed, const RandomCaptures& tensors)
      : random_(seed), tensors_(tensors) {}

  /// `smooth`: differences tell the derivative, so that nothing jumps where the score or a captured
  /// real moves it.
  Expression real(int depth, bool smooth);
  Expression integer(int depth);
  Expression boolean(int depth);

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }
  double number();
  Expression index(int depth);
  Expression smooth_leaf();
  /// A function of reals that has steps.
  Expression stepped(int depth);

  std::mt19937_64 random_;
  const RandomCaptures& tensors_;
  bool in_lanes_ = false;
};

}  // namespace tilewise
