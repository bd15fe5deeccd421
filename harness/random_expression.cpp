#include "harness/random_expression.h"

#include <cmath>
#include <cstdlib>

namespace tilewise {

using namespace expression;

namespace {

/// Between 0.5 and 1.5, for what needs a positive operand.
Expression positive_of(const Expression& x) { return sigmoid(x) + 0.5; }

}  // namespace

RandomCaptures::RandomCaptures(std::uint64_t seed)
    : row(kSize), table(kSize * kSize), documents(kSize) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> real(-1.5, 1.5);
  for (double& x : row) x = real(random);
  for (double& x : table) x = real(random);
  for (std::int32_t& x : documents) x = static_cast<std::int32_t>(random() % 4);
  scalar = real(random);
  captures = {Captured("row", Tensor::contiguous(row.data(), DType::float64, {kSize})),
              Captured("table", Tensor::contiguous(table.data(), DType::float64, {kSize, kSize})),
              Captured("scalar", Tensor::contiguous(&scalar, DType::float64, {1})),
              Captured("doc", Tensor::contiguous(documents.data(), DType::int32, {kSize}))};
}

Draws::Draws(int usual) : count(usual) {
  if (const char* asked = std::getenv("TILEWISE_RANDOM_EXPRESSIONS")) count = std::atoi(asked);
  if (const char* asked = std::getenv("TILEWISE_RANDOM_SEED")) {
    seed = std::strtoull(asked, nullptr, 10);
  }
}

double RandomExpression::number() {
  return std::uniform_real_distribution<double>(-2.0, 2.0)(random_);
}

Expression RandomExpression::index(int depth) {
  const Expression any_integer = integer(depth);
  return any_integer % RandomCaptures::kSize;
}

Expression RandomExpression::smooth_leaf() {
  const auto& c = tensors_.captures;
  switch (pick(6)) {
    case 0:
      return number();
    case 1:
      return c[0](index(1));
    case 2:
      return c[1](index(1), index(1));
    case 3:
      return c[2]();
    default:
      return score();
  }
}

Expression RandomExpression::stepped(int depth) {
  const auto next = [&] { return real(depth - 1, false); };
  switch (pick(6)) {
    case 0:
      return floor(next());
    case 1:
      return round(next());
    case 2:
      return sign(next());
    case 3:
      return ceil(next());
    case 4:
      return floor_divide(next(), positive_of(next()));
    default:
      return next() % positive_of(next());
  }
}

Expression RandomExpression::real(int depth, bool smooth) {
  if (depth <= 0) return smooth_leaf();
  const auto next = [&] { return real(depth - 1, smooth); };
  const auto positive = [&] { return positive_of(next()); };
  if (!smooth && pick(5) == 0) return stepped(depth);
  switch (pick(27)) {
    case 0:
      return next() + next();
    case 1:
      return next() - next();
    case 2:
      return tanh(next()) * tanh(next());
    case 3:
      return next() / positive();
    case 4:
      return -next();
    case 5:
      return abs(next());
    case 6:
      return min(next(), next());
    case 7:
      return max(next(), next());
    case 8:
      return pow(positive(), tanh(next()));
    case 9:
      return where(boolean(depth - 1), next(), next());
    case 10:
      return exp(tanh(next()));
    case 11:
      return exp2(tanh(next()));
    case 12:
      return log(positive());
    case 13:
      return sqrt(positive());
    case 14:
      return rsqrt(positive());
    case 15:
      return tanh(next());
    case 16:
      return sigmoid(next());
    case 17:
      return sin(next());
    case 18:
      return cos(next());
    case 19:
      return erf(next());
    case 20:
      return atan(next());
    case 21:
      return relu(next());
    case 22:
      return silu(next());
    case 23:
      return gelu(next());
    case 24:
      return clamp(next(), -0.5, 0.75);
    case 25:
      return to_real(integer(depth - 1) % 5);
    default: {
      if (in_lanes_) return next();
      in_lanes_ = true;
      const Expression body = tanh(next());
      in_lanes_ = false;
      return sum(1 + pick(4), body) * 0.5;
    }
  }
}

Expression RandomExpression::integer(int depth) {
  if (depth <= 0 || pick(6) == 0) {
    switch (pick(in_lanes_ ? 9 : 8)) {
      case 0:
        return batch();
      case 1:
        return head();
      case 2:
        return query();
      case 3:
        return key();
      case 4:
        return query_length();
      case 5:
        return key_length();
      case 6:
        return tensors_.captures[3](key() % RandomCaptures::kSize);
      case 7:
        return pick(7) - 3;
      default:
        return lane();
    }
  }
  const auto next = [&] { return integer(depth - 1); };
  switch (pick(18)) {
    case 0:
      return next() + next();
    case 1:
      return next() - next();
    case 2:
      return (next() % 16) * (next() % 16);
    case 3:
      return floor_divide(next(), 1 + pick(5));
    case 4:
      return floor_divide(next(), -1 - pick(5));
    case 5:
      return next() % (1 + pick(5));
    case 6:
      return next() % (-1 - pick(5));
    case 7:
      return -next();
    case 8:
      return abs(next());
    case 9:
      return min(next(), next());
    case 10:
      return max(next(), next());
    case 11:
      return next() & next();
    case 12:
      return next() | next();
    case 13:
      return next() ^ next();
    case 14:
      return ~next();
    case 15:
      return next() << pick(4);
    case 16:
      return next() >> pick(4);
    default:
      return where(boolean(depth - 1), next(), next());
  }
}

Expression RandomExpression::boolean(int depth) {
  if (depth <= 0) return query() - key() < pick(9) - 4;
  const auto next = [&] { return boolean(depth - 1); };
  const auto number_of = [&] { return integer(depth - 1); };
  switch (pick(9)) {
    case 0:
      return number_of() == number_of();
    case 1:
      return number_of() != number_of();
    case 2:
      return number_of() < number_of();
    case 3:
      return number_of() <= number_of();
    case 4:
      return next() & next();
    case 5:
      return next() | next();
    case 6:
      return next() ^ next();
    case 7:
      return ~next();
    default: {
      if (in_lanes_) return next();
      in_lanes_ = true;
      const Expression body = next();
      in_lanes_ = false;
      return pick(2) == 0 ? any(1 + pick(4), body) : all(1 + pick(4), body);
    }
  }
}

}  // namespace tilewise
