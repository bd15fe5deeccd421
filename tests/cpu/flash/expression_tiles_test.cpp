/// The tile evaluator against the float64 interpreter, pair by pair.
#include "cpu/flash/expression_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "expression/interpret.h"
#include "expression/lower.h"
#include "harness/random_expression.h"
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
    if (name == "far") {  // offsets past 32 bits, if the first axis had more than one
      Tensor t = tensor(row_bias, DType::float32, {1, 80});
      t.strides = {std::int64_t{1} << 40, 1};
      return {name, t};
    }
    return {name, tensor(distance, DType::int32, {60, 70})};
  }
  std::vector<Captured> all() {
    std::vector<Captured> captures;
    for (const char* name : {"slopes", "row_bias", "relative", "matrix", "vectors", "documents",
                             "offsets", "flags", "transposed", "far", "distance"}) {
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

class ExpressionTilesTest : public ::testing::TestWithParam<Isa> {
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
           "score + far[i % 3, (i + j) % 80]",
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
  for (const char* name : {"exp", "exp2", "tanh", "sigmoid", "sin", "cos", "atan", "erf", "relu",
                           "silu", "gelu", "sign", "abs", "sqrt", "rsqrt", "log"}) {
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

/// Whether a formula has a function that jumps.
bool jumps(const std::string& text) {
  const char* const words[] = {"floor(", "ceil(", "round(", "sign(", "int(", "//", "%"};
  return std::any_of(std::begin(words), std::end(words),
                     [&](const char* word) { return text.find(word) != std::string::npos; });
}

TEST_P(ExpressionTilesTest, RandomFormulas) {
  const Draws draws(300);
  const RandomCaptures tensors(draws.seed + 1);
  RandomExpression random(draws.seed + 2, tensors);
  int jumped = 0;
  for (int n = 0; n < draws.count; ++n) {
    const Place& place = kPlaces[static_cast<std::size_t>(n) % kPlaces.size()];
    const Expression formula = random.real(1 + n % 8, false);
    const int wrong = differences(formula, place, 1e-5);
    // A rounding on the other side of a comparison or a floor: few pairs. But erf(4.0) is 1 in
    // float32, and its floor is another one in every pair.
    if (wrong > place.rows * place.cols / 50 && jumps(formula.text())) {
      ++jumped;
      continue;
    }
    EXPECT_LE(wrong, place.rows * place.cols / 50) << formula.text() << " at " << first_;
  }
  EXPECT_LE(jumped, draws.count / 200);
}

TEST_P(ExpressionTilesTest, RandomMasks) {
  const Draws draws(300);
  const RandomCaptures tensors(draws.seed + 3);
  RandomExpression random(draws.seed + 4, tensors);
  for (int n = 0; n < draws.count; ++n) {
    const Place& place = kPlaces[static_cast<std::size_t>(n) % kPlaces.size()];
    const Expression formula = random.boolean(1 + n % 8);
    EXPECT_EQ(differences(formula, place, 0.0), 0) << formula.text() << " at " << first_;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ExpressionTilesTest,
                         ::testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& set) { return std::string(isa_name(set.param)); });

}  // namespace
}  // namespace tilewise::cpu
