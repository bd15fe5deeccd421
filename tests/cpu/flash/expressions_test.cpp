/// Score and mask expressions in the flash kernels of the CPU, forward and backward, against the
/// float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "api/machine.h"
#include "cpu/micro/elements.h"
#include "cpu/micro/isa.h"
#include "harness/materialize.h"
#include "harness/random_expression.h"
#include "problem/problem.h"
#include "reference/reference.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

/// Tensors that the formulas below capture, and room for their gradients.
struct Tables {
  std::vector<float> slopes, relative, matrix, rotary, factor{0.75F};
  std::vector<std::int32_t> documents, buckets;
  std::vector<std::vector<float>> gradients;

  Tables() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, std::size_t n) {
      x.resize(n);
      for (float& value : x) value = 0.5F * normal(random);
    };
    fill(slopes, 4);
    fill(relative, 399);
    fill(matrix, std::size_t{4} * 200 * 210);
    fill(rotary, std::size_t{210} * 8);
    for (int n = 0; n < 210; ++n) documents.push_back(n / 37);
    for (int n = 0; n < 399; ++n) buckets.push_back(n / 25);
  }
  std::vector<Captured> captures() {
    const auto tensor = [](auto& x, DType dtype, std::initializer_list<std::int64_t> sizes) {
      return Tensor::contiguous(x.data(), dtype, sizes);
    };
    return {{"slopes", tensor(slopes, DType::float32, {4})},
            {"relative", tensor(relative, DType::float32, {399})},
            {"matrix", tensor(matrix, DType::float32, {4, 200, 210})},
            {"rotary", tensor(rotary, DType::float32, {210, 8})},
            {"factor", tensor(factor, DType::float32, {1})},
            {"doc", tensor(documents, DType::int32, {210})},
            {"bucket", tensor(buckets, DType::int32, {399})}};
  }
  /// A gradient, full of NaN, for each captured float tensor.
  std::vector<Tensor> wanted(const Expression& formula) {
    gradients.clear();
    for (const Captured& c : formula.captures()) {
      gradients.emplace_back(static_cast<std::size_t>(c.tensor().numel()), NAN);
    }
    std::vector<Tensor> tensors;
    for (std::size_t n = 0; n < gradients.size(); ++n) {
      Tensor t = formula.captures()[n].tensor();
      t.data = gradients[n].data();
      tensors.push_back(t.dtype == DType::float32 ? t : Tensor{});
    }
    return tensors;
  }
};

std::vector<float> values(const Tensor& t) {
  std::vector<float> out;
  std::array<std::int64_t, 4> at{};
  for (std::int64_t n = 0; n < t.numel(); ++n) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(t.rank); ++axis) {
      offset += at[axis] * t.strides[axis];
    }
    float value = 0.0F;
    cpu::load_row(t, offset, 1, 1, &value);
    out.push_back(value);
    for (auto axis = static_cast<std::size_t>(t.rank); axis-- > 0;) {
      if (++at[axis] < t.sizes[axis]) break;
      at[axis] = 0;
    }
  }
  return out;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& want, double bound,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double worst = 0.0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (std::isinf(want[n])) {
      EXPECT_EQ(double{got[n]}, want[n]) << what << " " << n;
      continue;
    }
    const double error = std::abs(double{got[n]} - want[n]);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  double largest = 1.0;
  for (const double x : want) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0.0);
  EXPECT_LE(worst, bound * largest) << what;
}

struct Formula {
  const char* score;
  const char* mask;
};
const std::vector<Formula> kFormulas{
    {"score - 0.05*abs(i-j)", ""},
    {"10*tanh(score/10)", "i - j < 60"},
    {"score*factor - slopes[h]*abs(i - j)", "doc[i] == doc[j] | j < 3"},
    {"score + relative[bucket[i - j + 199]]", ""},
    {"score + relative[i - j + 199]*score", "(i ^ j) % 5 != 0"},
    {"score + matrix[h, i, j]", ""},
    {"score + matrix[h, i, j]*matrix[h, j, i]", "i + j != 9"},
    {"score*0.5 + sum(8, rotary[i, lane]*rotary[j, lane])", "i // 16 >= j // 16"},
    {"where(j % 7 == 3, -inf, score + rotary[j, 0])", ""},
    // Infinite and without a derivative where the mask hides the pair.
    {"score + log(abs(i - j))*factor", "i != j"},
    {"", "any(4, doc[j] == lane) & i >= j - 20"},
};

class ExpressionsTest : public ::testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > cpu::best_isa()) GTEST_SKIP() << "the CPU has no " << name();
  }
  std::string name() const { return std::string(isa_name(GetParam())); }
  void judge(const std::string& line, const Formula& formula) {
    judge(line, with({}, formula), line + ", " + formula.score + ", " + formula.mask);
  }
  AttentionSpec with(const AttentionSpec& given, const Formula& formula) {
    AttentionSpec spec = given;
    const std::vector<Captured> captures = tables_.captures();
    if (*formula.score != '\0') spec.score_expression = Expression::parse(formula.score, captures);
    if (*formula.mask != '\0') spec.mask_expression = Expression::parse(formula.mask, captures);
    return spec;
  }
  /// Forward and, unless the line says otherwise, backward of a problem by the row of a set.
  void judge(const std::string& line, const AttentionSpec& spec, const std::string& what) {
    const Case problem = parse_case(line);
    MaterializedCase made = materialize(problem, 5);
    AttentionSpec s = made.spec();
    s.score_expression = spec.score_expression;
    s.mask_expression = spec.mask_expression;
    const bool half = problem.dtype != DType::float32;
    const double bound = half ? 2e-2 : 5e-6;
    const reference::Forward truth =
        reference::forward_f64(make_problem(made.forward(), s, Purpose::run));
    forward(made.forward(), s, {}, {.implementation = "", .kernel = "flash_fwd_" + name()});
    expect_near(values(made.forward().o), truth.o, bound, what + ": o");
    expect_near(values(made.forward().lse), truth.lse, 1e-5, what + ": lse");
    if (!problem.backward) return;
    BackwardTensors tensors = made.backward();
    made.set_forward_results(truth.o, truth.lse);
    if (s.score_expression.defined()) tensors.dcaptures = tables_.wanted(s.score_expression);
    const reference::Backward gradients =
        reference::backward_f64(make_problem(tensors, s, Purpose::run));
    backward(tensors, s, {}, {.implementation = "", .kernel = "flash_bwd_" + name()});
    expect_near(values(tensors.dq), gradients.dq, 4 * bound, what + ": dq");
    expect_near(values(tensors.dk), gradients.dk, 4 * bound, what + ": dk");
    expect_near(values(tensors.dv), gradients.dv, 4 * bound, what + ": dv");
    for (std::size_t n = 0; n < tensors.dcaptures.size(); ++n) {
      if (!tensors.dcaptures[n].defined()) continue;
      expect_near(tables_.gradients[n], gradients.dcaptures[n], 8 * bound,
                  what + ": capture " + std::to_string(n));
    }
  }

  Tables tables_;
};

bool of_bfloat16(cpu::Isa isa) { return isa >= cpu::Isa::avx512bf16; }

TEST_P(ExpressionsTest, EqualTheReference) {
  std::vector<const char*> problems{
      "b1 h4/2 q130 k150 d24 f32", "b1 h2 s200 d32 f32 causal",
      "b1 h4/2 q100 k90 d32 f16 window=30,9", "packed=76,0,110/40,17,90 h4/2 d32 f32 causal",
      // few query rows: flash-decoding, with and without packed keys
      "b2 h4/2 q3 k190 d16 f32 pass=fwd", "b1 h4/1 q9 k200 d40 f16 causal pass=fwd",
      "b2 h4/1 q5 k100 d40 f32 lengths=99,64 paged=7 window=40,0 pass=fwd"};
  if (of_bfloat16(GetParam())) {
    problems = {"b1 h4/2 q130 k150 d24 bf16", "b1 h2 s200 d32 bf16 causal"};
  }
  for (const char* problem : problems) {
    for (const Formula& formula : kFormulas) judge(problem, formula);
  }
}

TEST_P(ExpressionsTest, BesideTheOtherOptions) {
  const std::string type = of_bfloat16(GetParam()) ? "bf16" : "f32";
  for (const char* options :
       {"softcap=3", "alibi causal", "bias=1,1,q,k:-inf@keys20-40", "mask=1,1,q,k:some0.3 sink",
        "dropout=0.2 seed=3", "bias=b,h,q,k causal deterministic"}) {
    const std::string problem = "b1 h4 q100 k60 d16 " + type + " " + options;
    judge(problem, kFormulas[2]);
    judge(problem, kFormulas[4]);
  }
}

TEST_P(ExpressionsTest, RandomFormulas) {
  const Draws draws(60);
  const RandomCaptures tensors(draws.seed + 17);
  RandomExpression random(draws.seed + 18, tensors);
  const std::string type = of_bfloat16(GetParam()) ? "bf16" : "f32";
  for (int n = 0; n < draws.count; ++n) {
    // What jumps would move results by more than any bound: its gradient is judged by values alone.
    AttentionSpec spec;
    spec.score_expression = random.real(1 + n % 7, true);
    if (n % 3 == 0) spec.mask_expression = random.boolean(1 + n % 4) | (expression::key() < 3);
    const std::string text = spec.score_expression.text() + ", " + spec.mask_expression.text();
    judge("b1 h2 q37 k50 d16 " + type, spec, text);
  }
}

/// Over keys of several tiles: what one form of mask shows whole another one hides.
TEST_P(ExpressionsTest, RandomMasksBesideOtherMasks) {
  const char* const forms[] = {"b1 h2 q20 k300 d16 mask=1,1,q,k:some0.3",
                               "b2 h2/1 q20 k300 d16 mask=b,h,1,k:some0.5 causal",
                               "b2 h2 q20 k300 d16 lengths=270,77 blocks=16,64:b,h:0.6",
                               "packed=20,9/300,140 h2 d16 mask=1,q,k:some0.3 window=200,none",
                               "b1 h2 q19 k600 d16 mask=1,h,q,k:some0.3 pass=fwd",
                               "b1 h2 q20 k300 d16 mask=1,1,q,k:some0.4 blocks=32,32:1,1:0.7"};
  const Draws draws(24);
  const RandomCaptures tensors(draws.seed + 19);
  RandomExpression random(draws.seed + 20, tensors);
  const std::string type = of_bfloat16(GetParam()) ? " bf16" : " f32";
  for (int n = 0; n < draws.count; ++n) {
    AttentionSpec spec;  // half of them are true in whole blocks
    const Expression edge = expression::key() != 3 + n % 5;
    spec.mask_expression = n % 2 == 0 ? edge : random.boolean(1 + n % 4) | (expression::key() < 3);
    const std::string problem = forms[static_cast<std::size_t>(n / 2) % std::size(forms)] + type;
    judge(problem, spec, problem + ", " + spec.mask_expression.text());
  }
}

TEST_P(ExpressionsTest, GradientsAreTheSameForAnyNumberOfThreads) {
  const std::string type = of_bfloat16(GetParam()) ? "bf16" : "f32";
  MaterializedCase made = materialize(parse_case("b2 h4 s200 d16 causal deterministic " + type), 6);
  AttentionSpec spec = with(made.spec(), kFormulas[3]);
  forward(made.forward(), spec, {}, {.implementation = "flash"});
  BackwardTensors tensors = made.backward();
  tensors.o = made.forward().o;
  tensors.lse = made.forward().lse;
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 3, 7}) {
    tensors.dcaptures = tables_.wanted(spec.score_expression);
    const auto executor = make_thread_pool(threads);
    Hardware machine = machine_at_hand({});
    machine.threads = threads;
    Launch launch;
    launch.executor = executor.get();
    const Choice choice{.implementation = "", .kernel = "flash_bwd_" + name()};
    run(plan(tensors, spec, choice, &machine), tensors, spec, launch);
    std::vector<std::vector<float>> results = tables_.gradients;
    for (const Tensor& t : {tensors.dq, tensors.dk, tensors.dv}) results.push_back(values(t));
    if (first.empty()) first = results;
    for (std::size_t n = 0; n < results.size(); ++n) {
      EXPECT_EQ(std::memcmp(results[n].data(), first[n].data(), 4 * first[n].size()), 0)
          << threads << " threads, result " << n;
    }
  }
}

TEST_P(ExpressionsTest, GradientsMayHaveAnyStrides) {
  const std::string type = of_bfloat16(GetParam()) ? "bf16" : "f32";
  MaterializedCase made = materialize(parse_case("b1 h4 q60 k70 d16 " + type), 8);
  const AttentionSpec spec = with(made.spec(), kFormulas[5]);
  forward(made.forward(), spec, {}, {.implementation = "flash"});
  BackwardTensors tensors = made.backward();
  tensors.o = made.forward().o;
  tensors.lse = made.forward().lse;
  const Choice choice{.implementation = "", .kernel = "flash_bwd_" + name()};
  tensors.dcaptures = tables_.wanted(spec.score_expression);
  backward(tensors, spec, {}, choice);
  const std::vector<float> contiguous = values(tensors.dcaptures[0]);
  tensors.dcaptures = tables_.wanted(spec.score_expression);
  tensors.dcaptures[0].strides = {1, 4, 4 * 200};
  backward(tensors, spec, {}, choice);
  EXPECT_EQ(values(tensors.dcaptures[0]), contiguous);
}

INSTANTIATE_TEST_SUITE_P(Sets, ExpressionsTest,
                         ::testing::Values(cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avx512,
                                           cpu::Isa::avx512bf16, cpu::Isa::amx),
                         [](const auto& set) { return std::string(isa_name(set.param)); });

}  // namespace
}  // namespace tilewise
