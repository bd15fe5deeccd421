#include "expression/recognize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "expression/interpret.h"
#include "expression/lower.h"
#include "problem/problem.h"

namespace tilewise {
namespace {

using expression::Function;
using expression::Interpreter;

struct Shape {
  const char* name;
  std::int64_t seq_q, seq_k;
  std::vector<std::int32_t> lengths;               ///< key lengths of two batch entries
  std::vector<std::int32_t> q_offsets, k_offsets;  ///< of two packed sequences
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{"square", 9, 9, {}, {}, {}},
                                         {"more keys", 6, 11, {}, {}, {}},
                                         {"more queries", 11, 6, {}, {}, {}},
                                         {"lengths", 7, 10, {10, 4}, {}, {}},
                                         {"packed", 12, 13, {}, {0, 5, 12}, {0, 9, 13}}};
  return all;
}

struct Call {
  std::vector<float> memory = std::vector<float>(4096), output = memory;
  std::vector<float> slopes{0.5F, 0.25F, 0.125F, 1.0F};
  std::vector<std::int32_t> documents = std::vector<std::int32_t>(16);
  Shape shape;
  AttentionSpec spec;

  explicit Call(const Shape& given) : shape(given) {
    for (std::size_t n = 0; n < documents.size(); ++n) {
      documents[n] = static_cast<std::int32_t>(n / 4);
    }
    if (!shape.lengths.empty()) {
      spec.key_lengths = Tensor::contiguous(shape.lengths.data(), DType::int32, {2});
    }
    if (!shape.q_offsets.empty()) {
      spec.cu_seqlens_q = Tensor::contiguous(shape.q_offsets.data(), DType::int32, {3});
      spec.cu_seqlens_k = Tensor::contiguous(shape.k_offsets.data(), DType::int32, {3});
    }
  }
  std::vector<Captured> captures() {
    return {Captured("slopes", Tensor::contiguous(slopes.data(), DType::float32, {2})),
            Captured("both", Tensor::contiguous(slopes.data(), DType::float32, {2, 2})),
            Captured("wide", Tensor::contiguous(slopes.data(), DType::float32, {4})),
            Captured("doc", Tensor::contiguous(documents.data(), DType::int32, {16})),
            Captured("rows", Tensor::contiguous(documents.data(), DType::int32, {4, 4}))};
  }
  Problem forward() {
    const std::int64_t batch = shape.q_offsets.empty() ? 2 : 1;
    const auto tensor = [&](std::int64_t rows) {
      return Tensor::bhsd(memory.data(), DType::float32, batch, 2, rows, 4);
    };
    ForwardTensors t{.q = tensor(shape.seq_q),
                     .k = tensor(shape.seq_k),
                     .v = tensor(shape.seq_k),
                     .o = tensor(shape.seq_q)};
    t.o.data = output.data();
    return make_problem(t, spec, Purpose::run);
  }
};

/// Calls f(b, sequence, i, j) for all pairs.
void for_each_pair(
    const Problem& p,
    const std::function<void(std::int64_t, const Sequence&, std::int64_t, std::int64_t)>& f) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = p.sequence(b);
    for (std::int64_t i = 0; i < s.q_length; ++i) {
      for (std::int64_t j = 0; j < s.k_length; ++j) f(b, s, i, j);
    }
  }
}

expression::Point point(std::int64_t b, std::int64_t h, const Sequence& s, std::int64_t i,
                        std::int64_t j) {
  return {.b = b,
          .h = h,
          .i = i,
          .j = j,
          .query_length = s.q_length,
          .key_length = s.k_length,
          .score = 0.75};
}

TEST(Recognize, MasksKeepTheirMeaning) {
  for (const char* text : {
           "i >= j",
           "j <= i",
           "~(j > i)",
           "i - j >= 0",
           "j < i + 1",
           "i > j",
           "j - 2 <= i",
           "j <= i + key_length - query_length",
           "i + key_length >= j + query_length",
           "j < i + (key_length - query_length) - 1",
           "i - j < 4",
           "i - j <= 3 & i >= j",
           "j >= i + key_length - query_length - 2",
           "abs(i - j) <= 2",
           "i >= j & doc[i] == doc[j]",
           "doc[j] < 2 & i - j < 5 & j - i < 3",
           "i >= j | j < 3",
           "(i >= j) ^ (h == 1)",
           "2*i >= 2*j",
           "i + j < 8",
           "j < 5",
           "i >= 2",
           "j <= i & j <= i + key_length - query_length",
           "i >= j & i >= j + 2",
           "j <= i + key_length",
           "j + i >= 3 & j <= i",
           "true",
           "i < i",
           "j - i <= 300000000",
       }) {
    for (const Shape& shape : shapes()) {
      for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
        Call plain(shape);
        plain.spec.causal = causal;
        plain.spec.window.left = 6;
        const Problem before = plain.forward();
        Call call(shape);
        call.spec.causal = causal;
        call.spec.window.left = 6;
        call.spec.mask_expression = Expression::parse(text, call.captures());
        const Problem p = call.forward();
        const Function whole = expression::function_of(call.spec.mask_expression);
        Interpreter mask(*whole.program, whole.captures);
        std::optional<Interpreter> rest;
        if (p.mask_function.defined()) {
          rest.emplace(*p.mask_function.program, p.mask_function.captures);
        }
        for_each_pair(p, [&](std::int64_t b, const Sequence& s, std::int64_t i, std::int64_t j) {
          const auto inside = [&](const Problem& of) {
            const KeyRange range = of.visible_keys(s, i);
            return j >= range.begin && j < range.end;
          };
          mask.turn_to(point(b, 1, s, i, j));
          bool sees = inside(p);
          if (rest) {
            rest->turn_to(point(b, 1, s, i, j));
            sees = sees && rest->boolean(p.mask_function.program->result);
          }
          EXPECT_EQ(sees, inside(before) && mask.boolean(whole.program->result))
              << text << ", " << shape.name << ": " << b << ' ' << i << ' ' << j;
        });
      }
    }
  }
}

TEST(Recognize, MasksThatTheSpecHasCostNothing) {
  const auto of = [](const char* text, std::size_t shape) {
    Call call(shapes()[shape]);
    call.spec.mask_expression = Expression::parse(text, call.captures());
    return call.forward();
  };
  for (std::size_t shape = 0; shape < shapes().size(); ++shape) {
    const Problem top = of("i >= j", shape);
    EXPECT_FALSE(top.mask_function.defined()) << shape;
    EXPECT_EQ(top.causal, shape == 0 ? Causal::bottom_right : Causal::top_left) << shape;
    const Problem bottom = of("j <= i + key_length - query_length", shape);
    EXPECT_FALSE(bottom.mask_function.defined()) << shape;
    EXPECT_EQ(bottom.causal, Causal::bottom_right) << shape;
    EXPECT_EQ(bottom.right, 0);
  }
  const Problem window = of("i - j < 4 & i >= j", 0);
  EXPECT_FALSE(window.mask_function.defined());
  EXPECT_EQ(window.left, 3);
  const Problem documents = of("doc[i] == doc[j] & i >= j", 0);
  EXPECT_EQ(documents.causal, Causal::bottom_right);
  EXPECT_EQ(documents.mask_function.program->text,
            of("doc[i] == doc[j]", 0).mask_function.program->text);
  EXPECT_EQ(of("i >= j | j < 3", 0).causal, Causal::none);
}

TEST(Recognize, DocumentsByTheirNumbers) {
  const auto axis = [](const char* text) {
    Call call(shapes()[0]);
    const std::vector<Captured> captures = call.captures();
    const auto found = expression::documents_of(
        *expression::function_of(Expression::parse(text, captures)).program);
    return found ? found->axis : -1;
  };
  EXPECT_EQ(axis("doc[i] == doc[j]"), 0);
  EXPECT_EQ(axis("doc[j] == doc[i]"), 0);
  EXPECT_EQ(axis("rows[b, i] == rows[b, j]"), 1);
  for (const char* other :
       {"doc[i] == doc[i]", "doc[i] != doc[j]", "doc[i] == doc[j + 1]", "rows[b, i] == doc[j]",
        "rows[h, i] == rows[h, j]", "rows[i, b] == rows[j, b]", "slopes[i] == slopes[j]",
        "doc[i] == doc[j] | j < 3", "doc[i] == j"}) {
    EXPECT_EQ(axis(other), -1) << other;
  }
}

TEST(Recognize, ScoresKeepTheirMeaning) {
  const std::vector<std::pair<const char*, bool>> scores = {
      {"score - slopes[h]*float(abs(i + key_length - query_length - j))", true},
      {"score - slopes[h]*abs(j + query_length - i - key_length)", true},
      {"score - abs(float(i + key_length - query_length - j))*both[b, h]", true},
      {"score + slopes[h]*float(j - i - key_length + query_length)", true},
      {"score - slopes[h]*(i + key_length - query_length - j)", true},
      {"score + (-slopes[h])*abs(i - j)", false},
      {"score - slopes[h]*abs(i - j)", false},
      {"score + slopes[h]*(i - j)", false},
      {"score - wide[h]*abs(i + key_length - query_length - j)", false},
      {"score - slopes[0]*abs(i + key_length - query_length - j)", false},
      {"score + slopes[h]*abs(i + key_length - query_length - j)", false},
      {"5*tanh(score/5)", true},
      {"tanh(score*0.25)*4.0", true},
      {"8*tanh(score/8.0)", true},
      {"5*tanh(score/4)", false},
      {"-5*tanh(score/-5)", false},
      {"tanh(score)", false},
      {"1e-39*tanh(score/1e-39)", false},
      {"3e38*tanh(score/3e38)", false},
  };
  for (const auto& [text, recognized] : scores) {
    for (std::size_t shape = 1; shape < shapes().size(); ++shape) {
      Call call(shapes()[shape]);
      call.spec.causal = Causal::bottom_right;
      call.spec.score_expression = Expression::parse(text, call.captures());
      const Problem p = call.forward();
      EXPECT_EQ(!p.score_function.defined(), recognized) << text << ", " << shapes()[shape].name;
      if (p.score_function.defined()) continue;
      const Function whole = expression::function_of(call.spec.score_expression);
      Interpreter score(*whole.program, whole.captures);
      for_each_pair(p, [&](std::int64_t b, const Sequence& s, std::int64_t i, std::int64_t j) {
        if (j > i + s.shift()) return;
        score.turn_to(point(b, 1, s, i, j));
        double expected = 0.75;
        if (p.softcap > 0.0) expected = p.softcap * std::tanh(expected / p.softcap);
        if (p.alibi_slopes.defined()) {
          const auto* slopes = static_cast<const float*>(p.alibi_slopes.data);
          expected -= static_cast<double>(
                          slopes[b * p.alibi_slopes.strides[0] + p.alibi_slopes.strides[1]]) *
                      static_cast<double>(std::abs(i + s.shift() - j));
        }
        EXPECT_NEAR(score.real(whole.program->result), expected, 1e-12)
            << call.spec.score_expression.text();
      });
    }
  }
}

TEST(Recognize, ScoresKeepTheirPlaceAmongTheOptions) {
  Call call(shapes()[0]);
  call.spec.score_expression = Expression::parse("5*tanh(score/5)");
  std::vector<float> bias(81);
  call.spec.bias = Tensor::contiguous(bias.data(), DType::float32, {1, 1, 9, 9});
  EXPECT_TRUE(call.forward().score_function.defined()) << "the cap comes before the bias";
  call.spec.bias = {};
  call.spec.softcap = 3.0;
  EXPECT_TRUE(call.forward().score_function.defined()) << "two caps";
  call.spec.softcap = 0.0;
  call.spec.score_expression = Expression::parse("score - slopes[h]*(i - j)", call.captures());
  EXPECT_TRUE(call.forward().score_function.defined()) << "later keys are seen";
}

}  // namespace
}  // namespace tilewise
