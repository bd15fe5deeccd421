/// The tile evaluator against the float64 interpreter, pair by pair.
#include "cpu/flash/expression_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "expression/interpret.h"
#include "expression/lower.h"
#include "tilewise/expression.h"

namespace tilewise::cpu {
namespace {

using expression::Function;
using expression::Interpreter;
using expression::Type;

constexpr float kBehind = 777.0F;
constexpr int kRoom = 16;  ///< rows have room for whole vectors of every set

/// Captured tensors of every kind of index, element type and layout.
struct Tables {
  std::vector<float> slopes, row_bias, relative, matrix, vectors;
  std::vector<std::int32_t> documents, distance;
  std::vector<std::int64_t> offsets;
  std::vector<std::uint8_t> flags;

  explicit Tables(std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-2.0F, 2.0F);
    const auto fill = [&](std::vector<float>& x, std::size_t n) {
      x.resize(n);
      for (float& value : x) value = uniform(random);
    };
    fill(slopes, 4);
    fill(row_bias, 80);
    fill(relative, 199);
    fill(matrix, std::size_t{4} * 60 * 70);
    fill(vectors, std::size_t{80} * 16);
    for (int n = 0; n < 80; ++n) {
      documents.push_back(n / 13);
      offsets.push_back(n / 13 * 13);
      flags.push_back(static_cast<std::uint8_t>(random() % 3 != 0 ? 1 : 0));
    }
    for (int n = 0; n < 60 * 70; ++n) distance.push_back(static_cast<std::int32_t>(random() % 19));
  }
  Captured capture(const std::string& name) {
    const auto tensor = [](auto& x, DType dtype, std::initializer_list<std::int64_t> sizes) {
      return Tensor::contiguous(x.data(), dtype, sizes);
    };
    if (name == "slopes") return {name, tensor(slopes, DType::float32, {4})};
    if (name == "row_bias") return {name, tensor(row_bias, DType::float32, {80})};
    if (name == "relative") return {name, tensor(relative, DType::float32, {199})};
    if (name == "matrix") return {name, tensor(matrix, DType::float32, {4, 60, 70})};
    if (name == "vectors") return {name, tensor(vectors, DType::float32, {80, 16})};
    if (name == "documents") return {name, tensor(documents, DType::int32, {80})};
    if (name == "offsets") return {name, tensor(offsets, DType::int64, {80})};
    if (name == "flags") return {name, tensor(flags, DType::boolean, {80})};
    if (name == "transposed") {  // every second row, the axes the other way round
      Tensor t = tensor(matrix, DType::float32, {70, 30});
      t.strides = {1, 140};
      return {name, t};
    }
    return {name, tensor(distance, DType::int32, {60, 70})};
  }
  std::vector<Captured> all() {
    std::vector<Captured> captures;
    for (const char* name : {"slopes", "row_bias", "relative", "matrix", "vectors", "documents",
                             "offsets", "flags", "transposed", "distance"}) {
      captures.push_back(capture(name));
    }
    return captures;
  }
};

struct Place {
  std::int64_t b, h, i0, j0;
  int rows, cols;
};
const std::vector<Place> kPlaces{{0, 0, 0, 0, 24, 64}, {1, 3, 17, 5, 7, 33},   {0, 2, 30, 40, 1, 1},
                                 {1, 1, 3, 0, 48, 40}, {0, 1, 50, 60, 13, 19}, {0, 3, 1, 2, 2, 70}};

class ExpressionTilesTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "the CPU has no " << isa_name(GetParam());
  }

  /// Pairs of a tile where the evaluator is not what the interpreter says.
  int differences(const Expression& formula, const Place& place, double bound) {
    const Function function = expression::function_of(formula);
    const expression::Program& program = *function.program;
    const bool mask = program.nodes[static_cast<std::size_t>(program.result)].type == Type::boolean;
    const ExpressionTiles tiles(program, function.captures, {{{program.result}, 1}},
                                expression_ops(GetParam()));
    const Sequence sequence{0, 75, 0, 77};
    const std::int64_t ld = place.cols + kRoom;
    const TilePlace at{sequence, place.b, place.h, place.i0, place.j0, place.rows, place.cols, ld};
    std::vector<float> scores(static_cast<std::size_t>(place.rows * ld + kRoom), kBehind);
    std::normal_distribution<float> normal(0.0F, 2.0F);
    for (float& score : scores) score = normal(random_);
    scores[static_cast<std::size_t>(place.cols) / 2] = 0.0F;
    std::vector<float> got = scores;
    mask ? tiles.hide(at, got.data()) : tiles.replace(at, got.data());
    Interpreter interpreter(program, function.captures);
    int wrong = 0;
    for (int r = 0; r < place.rows; ++r) {
      for (int c = 0; c < place.cols; ++c) {
        const auto n = static_cast<std::size_t>(r * ld + c);
        interpreter.turn_to({.b = place.b,
                             .h = place.h,
                             .i = place.i0 + r,
                             .j = place.j0 + c,
                             .query_length = sequence.q_length,
                             .key_length = sequence.k_length,
                             .score = double{scores[n]}});
        const double hidden = -std::numeric_limits<double>::infinity();
        const double want = !mask                                 ? interpreter.real(program.result)
                            : interpreter.boolean(program.result) ? double{scores[n]}
                                                                  : hidden;
        const double is = double{got[n]};
        const bool same = std::isnan(want) ? std::isnan(is)
                          : std::isinf(want)
                              ? is == want
                              : std::abs(is - want) <= bound * (1.0 + std::abs(want));
        if (!same && wrong++ == 0) {
          first_ = std::to_string(r) + ", " + std::to_string(c) + ": " + std::to_string(is) +
                   ", not " + std::to_string(want);
        }
      }
    }
    return wrong;
  }

  void expect_same(const std::string& text, double bound = 2e-6) {
    const Expression formula = Expression::parse(text, tables_.all());
    for (const Place& place : kPlaces) {
      EXPECT_EQ(differences(formula, place, bound), 0)
          << text << " at " << place.i0 << ", " << place.j0 << ": " << first_;
    }
  }

  std::mt19937 random_{7};
  Tables tables_{random_};
  std::string first_;
};

TEST_P(ExpressionTilesTest, Formulas) {
  for (const char* text : {
           "score",
           "3.5",
           "score - 0.1*abs(i-j)",
           "score - slopes[h]*abs(i - j + key_length - query_length)",
           "20*tanh(score/20)",
           "score + row_bias[i]",
           "score + row_bias[j]",
           "score + relative[i - j + 99]",
           "score + relative[j - i]",
           "score + matrix[h, i, j]",
           "score + transposed[j, i % 30]",
           "score + matrix[h, j % 60, i % 70]",
           "score + slopes[distance[i, j] % 4]",
           "score * slopes[h] + row_bias[offsets[j]]",
           "score + sum(16, vectors[i, lane] * vectors[j, lane])",
           "score + sum(5, vectors[i, lane] * lane)",
           "score + sum(5, row_bias[(j + lane) % 80] + score)",
           "where(documents[i] == documents[j], score, -inf)",
           "score + (i // 7 - j // -3) * 0.5 + i % -5 + -j % 4",
       }) {
    expect_same(text);
  }
}

TEST_P(ExpressionTilesTest, Masks) {
  for (const char* text : {
           "i >= j",
           "i - j < 20 & i - j > -3 | j < 4",
           "documents[i] == documents[j]",
           "flags[j]",
           "flags[i] & ~flags[j] ^ (i < 20)",
           "any(16, vectors[i, lane] > vectors[j, lane] + 1.5)",
           "all(6, lane + documents[j] != i // 8)",
           "i // 16 == j // 16 | (i - j) % 5 == 0",
           "(i ^ j) & 3 == 0",
           "(i << 2) >> 3 < j",
           "true",
           "false",
       }) {
    expect_same(text);
  }
}

TEST_P(ExpressionTilesTest, Functions) {
  // Arguments that float32 has exactly.
  for (const char* name : {"exp", "exp2", "tanh", "sigmoid", "sin", "cos", "erf", "relu", "silu",
                           "gelu", "sign", "abs", "sqrt", "rsqrt", "log"}) {
    expect_same(std::string(name) + "(score)", 1e-6);
    expect_same(std::string(name) + "(min(score * 8, 80.0))", 2e-6);
  }
  for (const char* name : {"floor", "ceil", "round"}) {
    expect_same(std::string(name) + "(score)", 0.0);
    expect_same(std::string(name) + "(i * 0.5 - 7.0)", 0.0);
    expect_same(std::string(name) + "(i * 268435456.0 - 8589934592.0)", 0.0);
  }
  expect_same("sin(score * 4096)", 1e-6);
  expect_same("cos(score * 8589934592.0)", 1e-6);
  expect_same("pow(abs(score), 1.7) + pow(score, 3)", 4e-6);
  expect_same("(i * 0.25 - 9.0) // 0.75 + (i * 0.25 - 9.0) % 0.75", 1e-6);
  expect_same("min(score, 0.5) * max(row_bias[j], score) / clamp(score, 0.5, 1.0)");
}

/// Random formulas: types agree, everything else may be anything.
class Formulas {
 public:
  Formulas(std::mt19937& random, Tables& tables) : random_(random), captures_(tables.all()) {}

  Expression real(int depth) {
    using namespace expression;  // NOLINT(google-build-using-namespace): a grammar of its names
    if (depth == 0) {
      switch (pick(6)) {
        case 0:
          return Expression(static_cast<double>(pick(9)) * 0.5 - 2.0);
        case 1:
          return captures_[0](integer(0));
        case 2:
          return captures_[1](integer(0));
        default:
          return score();
      }
    }
    const auto x = [&] { return real(depth - 1); };
    switch (pick(24)) {
      case 0:
        return x() + x();
      case 1:
        return x() - x();
      case 2:
      case 3:
        return clamp(x(), Expression(-8.0), Expression(8.0)) * x();
      case 4:
        return x() / (abs(x()) + 0.5);
      case 5:
        return min(x(), x());
      case 6:
        return max(x(), x());
      case 7:
        return abs(x());
      case 8:
        return exp(min(x(), Expression(3.0)));
      case 9:
        return tanh(x());
      case 10:
        return sigmoid(x());
      case 11:
        return sin(clamp(x(), Expression(-50.0), Expression(50.0)));
      case 12:
        return log(abs(x()) + 0.1);
      case 13:
        return sqrt(abs(x()) + 0.01);
      case 14:
        return erf(x());
      case 15:
        return relu(x());
      case 16:
        return gelu(x());
      case 17:
        return silu(x());
      case 18:
        return where(boolean(depth - 1), x(), x());
      case 19:
        return to_real(integer(depth - 1)) * 0.01;
      case 20:
        return captures_[2](integer(depth - 1));
      case 21:
        return captures_[3](integer(depth - 1), integer(0), integer(0));
      case 22:
        return expression::sum(1 + pick(6), x() * captures_[4](integer(depth - 1), lane()));
      default:
        return x() + captures_[8](integer(0), integer(0)) * 0.5;
    }
  }

  Expression integer(int depth) {
    using namespace expression;  // NOLINT(google-build-using-namespace)
    if (depth == 0) {
      const Expression leaves[] = {
          query(), key(),   query(),      key(),
          head(),  batch(), key_length(), Expression(static_cast<std::int64_t>(pick(9)) - 3)};
      return leaves[pick(8)];
    }
    const auto x = [&] { return integer(depth - 1); };
    switch (pick(16)) {
      case 0:
      case 1:
        return x() - x();
      case 2:
        return x() + x();
      case 3:
        return x() * x();
      case 4:
        return floor_divide(x(), Expression(static_cast<std::int64_t>(pick(2) == 0 ? 8 : -3)));
      case 5:
        return x() % Expression(static_cast<std::int64_t>(pick(2) == 0 ? 16 : 7));
      case 6:
        return abs(x());
      case 7:
        return min(x(), x());
      case 8:
        return x() & Expression(std::int64_t{29});
      case 9:
        return x() ^ x();
      case 10:
        return x() >> Expression(static_cast<std::int64_t>(pick(4)));
      case 11:
        return where(boolean(depth - 1), x(), x());
      case 12:
        return captures_[5](x());
      case 13:
        return captures_[6](x());
      case 14:
        return captures_[9](x(), integer(0));
      default:
        return x() - key() + query();
    }
  }

  Expression boolean(int depth) {
    using namespace expression;  // NOLINT(google-build-using-namespace)
    if (depth == 0) return pick(2) == 0 ? query() >= key() : captures_[7](integer(0));
    switch (pick(9)) {
      case 0:
        return integer(depth - 1) < integer(depth - 1);
      case 1:
        return integer(depth - 1) == integer(depth - 1);
      case 2:
        return boolean(depth - 1) & boolean(depth - 1);
      case 3:
        return boolean(depth - 1) | boolean(depth - 1);
      case 4:
        return boolean(depth - 1) ^ boolean(depth - 1);
      case 5:
        return ~boolean(depth - 1);
      case 6:
        return captures_[7](integer(depth - 1));
      case 7:
        return expression::any(1 + pick(4), integer(depth - 1) == lane());
      default:
        return captures_[1](integer(0)) < captures_[2](integer(0));
    }
  }

 private:
  std::int64_t pick(int n) {
    return static_cast<std::int64_t>(random_() % static_cast<unsigned>(n));
  }
  std::mt19937& random_;
  std::vector<Captured> captures_;
};

/// Lanes do not nest: such a formula is none, and another is drawn.
template <class Draw>
Expression drawn(const Draw& draw) {
  for (;;) {
    try {
      Expression formula = draw();
      expression::function_of(formula);
      return formula;
    } catch (const InvalidArgument&) {
    }
  }
}

TEST_P(ExpressionTilesTest, RandomFormulas) {
  Formulas formulas(random_, tables_);
  for (int n = 0; n < 150; ++n) {
    const int depth = 1 + n % 7;
    const Place& place = kPlaces[static_cast<std::size_t>(n) % kPlaces.size()];
    const Expression formula = drawn([&] { return formulas.real(depth); });
    const int wrong = differences(formula, place, 1e-4);
    // A rounding on the other side of a comparison, a floor, an index: few pairs.
    EXPECT_LE(wrong, place.rows * place.cols / 50) << formula.text() << " at " << first_;
  }
}

TEST_P(ExpressionTilesTest, RandomMasks) {
  Formulas formulas(random_, tables_);
  for (int n = 0; n < 150; ++n) {
    const int depth = 1 + n % 6;
    const Place& place = kPlaces[static_cast<std::size_t>(n) % kPlaces.size()];
    const Expression formula = drawn([&] { return formulas.boolean(depth); });
    EXPECT_EQ(differences(formula, place, 0.0), 0) << formula.text() << " at " << first_;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ExpressionTilesTest,
                         testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& set) { return std::string(isa_name(set.param)); });

}  // namespace
}  // namespace tilewise::cpu
