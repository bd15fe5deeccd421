#include "tilewise/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "expect_parts.h"
#include "problem/problem.h"
#include "reference/reference.h"

namespace tilewise {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kQueries = 5, kKeys = 7, kDim = 3;

std::vector<double> values(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> made(count);
  for (double& x : made) x = normal(random);
  return made;
}

/// A float64 problem whose fields a test changes. Gradients are of sum(O * d_o).
struct Call {
  std::vector<double> q = values(kBatch * kHeads * kQueries * kDim, 1),
                      k = values(kBatch * kKeyHeads * kKeys * kDim, 2),
                      v = values(kBatch * kKeyHeads * kKeys * kDim, 3),
                      d_o = values(kBatch * kHeads * kQueries * kDim, 4), o = q, lse = q, dq = q,
                      dk = k, dv = v;
  std::vector<double> slopes{0.5, 0.25, 0.125, 1.0}, table = values(kHeads * 12, 5), factor{0.75};
  std::vector<std::int32_t> documents{0, 0, 1, 1, 2, 2, 2};
  std::vector<double> dslopes = slopes, dtable = table, dfactor = factor;
  AttentionSpec spec;
  std::vector<Tensor> dcaptures;

  static Tensor tensor(std::vector<double>& memory, std::initializer_list<std::int64_t> sizes) {
    return Tensor::contiguous(memory.data(), DType::float64, sizes);
  }
  std::vector<Captured> captures() {
    return {Captured("slopes", tensor(slopes, {kHeads})),
            Captured("table", tensor(table, {kHeads, 12})), Captured("factor", tensor(factor, {1})),
            Captured("doc", Tensor::contiguous(documents.data(), DType::int32, {kKeys}))};
  }
  ForwardTensors forward() {
    return {.q = tensor(q, {kBatch, kHeads, kQueries, kDim}),
            .k = tensor(k, {kBatch, kKeyHeads, kKeys, kDim}),
            .v = tensor(v, {kBatch, kKeyHeads, kKeys, kDim}),
            .o = tensor(o, {kBatch, kHeads, kQueries, kDim})};
  }
  BackwardTensors backward() {
    const ForwardTensors f = forward();
    Tensor statistics = tensor(lse, {kBatch, kHeads, kQueries});
    statistics.dtype = DType::float32;
    return {.q = f.q,
            .k = f.k,
            .v = f.v,
            .o = f.o,
            .lse = statistics,
            .d_o = tensor(d_o, {kBatch, kHeads, kQueries, kDim}),
            .dq = tensor(dq, {kBatch, kHeads, kQueries, kDim}),
            .dk = tensor(dk, {kBatch, kKeyHeads, kKeys, kDim}),
            .dv = tensor(dv, {kBatch, kKeyHeads, kKeys, kDim}),
            .dcaptures = dcaptures};
  }
  std::vector<double> output() {
    return reference::forward_f64(make_problem(forward(), spec, Purpose::run)).o;
  }
  reference::Backward gradients() {
    return reference::backward_f64(make_problem(backward(), spec, Purpose::run));
  }
  double loss() {
    const std::vector<double> out = output();
    double sum = 0.0;
    for (std::size_t n = 0; n < out.size(); ++n) sum += out[n] * d_o[n];
    return sum;
  }
};

void expect_equal(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) {
    EXPECT_NEAR(a[n], b[n], 1e-12 * (1 + std::fabs(b[n]))) << n;
  }
}

std::string message(const std::function<void(Call&)>& spoil) {
  Call call;
  spoil(call);
  try {
    make_problem(call.backward(), call.spec, Purpose::run);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "accepted";
}

TEST(AttentionExpression, EqualsTheOptionsOfTheSpec) {
  std::vector<float> slopes{0.5F, 0.25F, 0.125F, 1.0F};
  const std::vector<std::pair<const char*, std::function<void(AttentionSpec&)>>> scores = {
      {"score - slopes[h]*float(abs(i + (key_length - query_length) - j))",
       [&](AttentionSpec& s) {
         s.alibi_slopes = Tensor::contiguous(slopes.data(), DType::float32, {kHeads});
       }},
      {"5*tanh(score/5)", [](AttentionSpec& s) { s.softcap = 5.0; }},
      {"where(j <= i, score, -inf)", [](AttentionSpec& s) { s.causal = Causal::top_left; }}};
  for (const auto& [text, option] : scores) {
    Call ours;
    ours.spec.score_expression = Expression::parse(text, ours.captures());
    Call builtin;
    option(builtin.spec);
    expect_equal(ours.output(), builtin.output());
    const reference::Backward a = ours.gradients();
    const reference::Backward b = builtin.gradients();
    expect_equal(a.dq, b.dq);
    expect_equal(a.dk, b.dk);
    expect_equal(a.dv, b.dv);
  }
  const std::vector<std::pair<const char*, std::function<void(AttentionSpec&)>>> masks = {
      {"j <= i", [](AttentionSpec& s) { s.causal = Causal::top_left; }},
      {"j <= i + key_length - query_length",
       [](AttentionSpec& s) { s.causal = Causal::bottom_right; }},
      {"i + 2 - j <= 1 & j - i <= 3", [](AttentionSpec& s) { s.window = {.left = 1, .right = 1}; }},
      {"false", [](AttentionSpec& s) { s.window = {.left = -20, .right = -20}; }}};
  for (const auto& [text, option] : masks) {
    Call ours;
    ours.spec.mask_expression = Expression::parse(text);
    Call builtin;
    option(builtin.spec);
    expect_equal(ours.output(), builtin.output());
    expect_equal(ours.gradients().dk, builtin.gradients().dk);
  }
}

TEST(AttentionExpression, ComesAfterCapAndBias) {
  Call call;
  std::vector<double> bias = values(kQueries * kKeys, 7);
  call.spec.bias = Tensor::contiguous(bias.data(), DType::float64, {1, 1, kQueries, kKeys});
  call.spec.softcap = 2.0;
  Call doubled = call;
  doubled.spec.bias.data = bias.data();
  call.spec.score_expression = Expression::parse("score + float(j)");
  for (std::int64_t i = 0; i < kQueries; ++i) {
    for (std::int64_t j = 0; j < kKeys; ++j) {
      bias[static_cast<std::size_t>(i * kKeys + j)] += 0.0;
    }
  }
  const std::vector<double> ours = call.output();
  for (std::int64_t n = 0; n < kQueries * kKeys; ++n) {
    bias[static_cast<std::size_t>(n)] =
        static_cast<double>(static_cast<float>(bias[static_cast<std::size_t>(n)])) +
        static_cast<double>(n % kKeys);
  }
  const std::vector<double> theirs = doubled.output();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t n = 0; n < ours.size(); ++n) EXPECT_NEAR(ours[n], theirs[n], 1e-5);
}

TEST(AttentionExpression, GradientsEqualCentralDifferences) {
  for (const char* text : {
           "score*slopes[h] + table[h, i - j]",
           "score + factor*tanh(table[h, abs(i - j)]) + table[0, j]",
           "score*factor - slopes[h]*float(abs(i - j))",
           "where(doc[i] == doc[j], score, score*table[h, lanes])",
           "score + sum(3, table[h, lane]*slopes[lane])*0.25 + slopes[-1]",
           "log(sigmoid(score) + exp(slopes[h]))",
       }) {
    std::string formula = text;
    if (const auto at = formula.find("lanes"); at != std::string::npos) formula.replace(at, 5, "2");
    Call call;
    const std::vector<Captured> captures = call.captures();
    call.spec.score_expression = Expression::parse(formula, captures);
    call.spec.mask_expression = Expression::parse("j - i < 3 & doc[j] != 1", captures);
    std::deque<std::vector<double>> gradients;  // a gradient needs memory of its own
    for (const Captured& used : call.spec.score_expression.captures()) {
      Tensor gradient;
      if (used.tensor().dtype == DType::float64) {
        gradient = used.tensor();
        gradients.emplace_back(static_cast<std::size_t>(gradient.numel()));
        gradient.data = gradients.back().data();
      }
      call.dcaptures.push_back(gradient);
    }
    const reference::Backward made = call.gradients();
    const auto judge = [&](double slope, double& moved) {
      constexpr double kStep = 1e-5;
      const double kept = moved;
      moved = kept + kStep;
      const double above = call.loss();
      moved = kept - kStep;
      const double below = call.loss();
      moved = kept;
      EXPECT_NEAR(slope, (above - below) / (2 * kStep), 1e-7) << formula;
    };
    for (std::size_t n = 0; n < call.q.size(); n += 7) judge(made.dq[n], call.q[n]);
    for (std::size_t n = 0; n < call.k.size(); n += 5) judge(made.dk[n], call.k[n]);
    const std::vector<Captured> used = call.spec.score_expression.captures();
    for (std::size_t c = 0; c < used.size(); ++c) {
      if (!call.dcaptures[c].defined()) continue;
      auto* memory = static_cast<double*>(used[c].tensor().data);
      for (std::size_t n = 0; n < made.dcaptures[c].size(); ++n) {
        judge(made.dcaptures[c][n], memory[n]);
      }
    }
  }
}

TEST(AttentionExpression, HiddenPairsAddNothingBeTheirDerivativeInfinite) {
  Call call;
  call.spec.score_expression = Expression::parse("score + log(float(j))*factor", call.captures());
  call.spec.mask_expression = Expression::parse("j > 0");
  call.dcaptures = {Call::tensor(call.dfactor, {1})};
  const reference::Backward made = call.gradients();
  EXPECT_TRUE(std::isfinite(made.dcaptures[0][0]));
  for (const double x : made.dq) EXPECT_TRUE(std::isfinite(x));
  Call by_score;  // -inf * factor hides key 0 as well
  by_score.spec.score_expression = call.spec.score_expression;
  by_score.dcaptures = {Call::tensor(by_score.dfactor, {1})};
  EXPECT_NEAR(by_score.gradients().dcaptures[0][0], made.dcaptures[0][0], 1e-12);
}

TEST(AttentionExpression, ReadsLocalPositionsOfPackedSequences) {
  Call call;
  std::vector<std::int32_t> q_offsets{0, 2, 5}, k_offsets{0, 4, 7};
  ForwardTensors packed = call.forward();
  packed.q.sizes[0] = packed.k.sizes[0] = packed.v.sizes[0] = packed.o.sizes[0] = 1;
  call.spec.cu_seqlens_q = Tensor::contiguous(q_offsets.data(), DType::int32, {3});
  call.spec.cu_seqlens_k = Tensor::contiguous(k_offsets.data(), DType::int32, {3});
  const auto output = [&] {
    return reference::forward_f64(make_problem(packed, call.spec, Purpose::run)).o;
  };
  AttentionSpec plain = call.spec;
  call.spec.score_expression = Expression::parse(
      "where(j <= i + (key_length - query_length) & (b == 0 | j > 0), score, -inf)");
  const std::vector<double> ours = output();
  call.spec = plain;
  call.spec.causal = Causal::bottom_right;
  std::vector<char> bits(kQueries * 4, 1);
  for (std::size_t row = 2; row < 5; ++row) bits[row * 4] = 0;
  call.spec.mask = Tensor::contiguous(bits.data(), DType::boolean, {1, kQueries, 4});
  expect_equal(ours, output());
}

TEST(AttentionExpression, NamesTheArgumentAtFault) {
  EXPECT_EQ(message([](Call& c) { c.spec.score_expression = expression::score(); }), "accepted");
  expect_parts(message([](Call& c) { c.spec.score_expression = Expression::parse("i < j"); }),
               {"score_expression is a boolean", "mask_expression"});
  expect_parts(message([](Call& c) { c.spec.mask_expression = Expression::parse("i - j"); }),
               {"mask_expression is a number", "boolean"});
  expect_parts(message([](Call& c) { c.spec.mask_expression = Expression::parse("score > 0"); }),
               {"mask_expression is a formula that reads score"});
  expect_parts(
      message([](Call& c) {
        c.spec.score_expression = expression::score();
        static const ScoreMod mod{[](const ScoreTile&) {}, [](const ScoreTile&, float*) {}};
        c.spec.score_mod = &mod;
      }),
      {"score_expression is given together with score_mod"});
  const auto reads_slopes = [](Call& c) {
    c.spec.score_expression = Expression::parse("score*slopes[h]", c.captures());
  };
  expect_parts(message([&](Call& c) {
                 reads_slopes(c);
                 c.dcaptures = {Tensor{}, Tensor{}};
               }),
               {"dcaptures is 2 tensors", "captures 1"});
  expect_parts(message([&](Call& c) {
                 reads_slopes(c);
                 c.dcaptures = {Call::tensor(c.dfactor, {1})};
               }),
               {"dcaptures' slopes is float64 (1)", "shape and type of float64 (4)"});
  expect_parts(message([&](Call& c) {
                 reads_slopes(c);
                 c.dcaptures = {Call::tensor(c.dslopes, {kHeads})};
                 c.dcaptures[0].data = nullptr;
               }),
               {"dcaptures' slopes", "null"});
  expect_parts(message([](Call& c) { c.dcaptures = {Call::tensor(c.dfactor, {1})}; }),
               {"dcaptures is 1 tensors", "requires score_expression"});
  expect_parts(message([](Call& c) {
                 Tensor t = Call::tensor(c.slopes, {kHeads});
                 t.device = {DeviceType::cuda, 0};
                 c.spec.mask_expression = Captured("far", t)(expression::head()) > 0;
               }),
               {"mask_expression's far is", "q's device, cpu"});
  expect_parts(message([](Call& c) {
                 Tensor t = Call::tensor(c.slopes, {0});
                 c.spec.mask_expression = Captured("empty", t)(expression::head()) > 0;
               }),
               {"mask_expression's empty is float64 (0)", "must not be empty"});
  expect_parts(message([](Call& c) {
                 Tensor t = Call::tensor(c.slopes, {kHeads});
                 t.data = nullptr;
                 c.spec.mask_expression = Captured("none", t)(expression::head()) > 0;
               }),
               {"mask_expression's none", "null"});
  std::vector<std::int64_t> hashes = {1, 5, -7, (std::int64_t{1} << 40) + 5};
  expect_parts(message([&](Call& c) {
                 const Tensor t = Tensor::contiguous(hashes.data(), DType::int64, {kHeads});
                 c.spec.mask_expression = Captured("hashes", t)(expression::head()) == 5;
               }),
               {"mask_expression's hashes is int64 (4)", "contains 1099511627781", "32 bits"});
}

TEST(AttentionExpression, IndicesOutsideTheirAxisAreNamed) {
  const auto reads = [](const char* text) {
    return message(
        [&](Call& c) { c.spec.score_expression = Expression::parse(text, c.captures()); });
  };
  expect_parts(reads("score + slopes[i]"), {"score_expression's slopes is float64 (4)", "i 4, j 0",
                                            "index of axis 0 is 4", "expected -4 to 3"});
  expect_parts(reads("score + table[h, i*3]"), {"table", "axis 1 is 12", "expected -12 to 11"});
  expect_parts(reads("score + table[h, i - j - 7]"), {"axis 1 is -13"});
  expect_parts(reads("score + table[h + 1, 0]"), {"h 3", "axis 0 is 4"});
  expect_parts(reads("score + table[0, key_length + 5]"), {"axis 1 is 12"});
  for (const char* text : {
           "score + table[h, i - j]",
           "score + slopes[i - 4]",
           "score + slopes[clamp(i, 0, 3)]",
           "score + table[h, i*2 + 3]",
           "score + slopes[doc[i] + 7]",
           "score + slopes[i - i // 4*4]",
           "score + table[h, j % 12]",
           "score + sum(4, table[h, lane*4])",
           "score + where(i < 4, slopes[i % 4], 0.0)",
       }) {
    EXPECT_EQ(reads(text), "accepted") << text;
  }
}

TEST(AttentionExpression, RowsThatCannotRunThemSaySo) {
  Call call;
  std::vector<float> memory(1024);
  const auto tensor = [&](std::int64_t heads, std::int64_t length) {
    return Tensor::bhsd(memory.data(), DType::float32, 1, heads, length, 4);
  };
  const ForwardTensors tensors{
      .q = tensor(2, 5), .k = tensor(2, 7), .v = tensor(2, 7), .o = tensor(2, 5)};
  AttentionSpec spec;
  spec.score_expression = Expression::parse("score*score");
  spec.mask_expression = Expression::parse("(i ^ j) < 3");
  const auto refusal = [&](const char* implementation) -> std::string {
    try {
      (void)plan(tensors, spec, {.implementation = implementation});
    } catch (const Unsupported& e) {
      return e.what();
    }
    return "";
  };
  expect_parts(refusal("baseline"), {"a score expression is not supported by this kernel"});
  spec.score_expression = {};
  expect_parts(refusal("baseline"), {"a mask expression is not supported by this kernel"});
  EXPECT_EQ(plan(tensors, spec, {.implementation = "reference"}).implementation, "reference");
}

}  // namespace
}  // namespace tilewise
