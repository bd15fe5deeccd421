/// Whole models: gradients against finite differences in float64, float32 against the twin,
/// training.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "tilewise/asam.h"

namespace tilewise::asam {
namespace {

Config small(LayerKind kind, Pattern pattern) {
  Config c;
  c.kind = kind;
  c.pattern = pattern;
  c.dim = 24;
  c.heads = 3;
  c.head_dim = 8;
  c.dropout = 0.0;
  c.gate_dropout = 0.0;
  c.window_size = 20;
  c.stride = 32;
  c.clusters = 6;
  c.block_size = 16;
  c.gate_hidden = 32;
  c.layers = 2;
  c.seed = 5;
  return c;
}

template <class T>
Tensor tensor(std::vector<T>& x, std::initializer_list<std::int64_t> sizes) {
  const DType dtype = std::is_same_v<T, float>    ? DType::float32
                      : std::is_same_v<T, double> ? DType::float64
                                                  : DType::int32;
  return Tensor::contiguous(x.data(), dtype, sizes);
}

std::vector<double> draw(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> x(count);
  for (double& value : x) value = normal(random);
  return x;
}

/// A model of T with the inputs of the tests, and its results.
template <class T>
struct Trial {
  static constexpr std::int64_t kBatch = 2, kTokens = 70;
  Model model;
  std::vector<T> x, dy, y, dx;
  std::vector<std::int32_t> lengths = {70, 37};
  std::vector<std::uint8_t> mask;
  Visible visible;

  explicit Trial(Config c, bool ragged = false)
      : model([&] {
          c.dtype = std::is_same_v<T, float> ? DType::float32 : DType::float64;
          return c;
        }()) {
    const auto elems = static_cast<std::size_t>(kBatch * kTokens * c.dim);
    const std::vector<double> first = draw(elems, 1), second = draw(elems, 2);
    for (const double value : first) x.push_back(static_cast<T>(static_cast<float>(value)));
    for (const double value : second) dy.push_back(static_cast<T>(static_cast<float>(value)));
    y.assign(elems, static_cast<T>(NAN));
    dx.assign(elems, static_cast<T>(NAN));
    perturb();
    if (!ragged) return;
    visible.lengths = tensor(lengths, {kBatch});
    std::mt19937 random(4);
    for (std::int64_t n = 0; n < kBatch * c.heads * kTokens * kTokens; ++n) {
      mask.push_back(random() % 8 == 0 ? 0 : 1);
    }
    visible.mask =
        Tensor::contiguous(mask.data(), DType::boolean, {kBatch, c.heads, kTokens, kTokens});
  }
  Tensor view(std::vector<T>& v) { return tensor(v, {kBatch, kTokens, model.config().dim}); }
  void run(std::uint32_t number = 0) {
    model.clear_gradients();
    model.forward(view(x), view(y), number, visible);
    model.backward(view(x), view(dy), view(dx));
  }
  double loss() {
    model.forward(view(x), view(y), 0, visible);
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum += static_cast<double>(y[i]) * static_cast<double>(dy[i]);
    }
    return sum;
  }

 private:
  /// Norms' weights that are not 1, biases that are not 0: else some gradients vanish.
  void perturb() {
    for (const Parameter& p : model.parameters()) {
      const auto count = static_cast<std::size_t>(p.value.numel());
      const std::vector<double> noise = draw(count, static_cast<std::uint32_t>(count));
      T* values = static_cast<T*>(p.value.data);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] =
            static_cast<T>(static_cast<float>(static_cast<double>(values[i]) + 0.05 * noise[i]));
      }
    }
  }
};

struct Kind {
  LayerKind kind;
  Pattern pattern;
  bool causal = false;
  bool gated = true;
  bool ragged = false;  ///< lengths, and a mask for each head
};

class Models : public testing::TestWithParam<Kind> {
 protected:
  static Config config() {
    Config c = small(GetParam().kind, GetParam().pattern);
    c.causal = GetParam().causal;
    c.adaptive_gate = GetParam().gated;
    c.pattern_tokens = Trial<double>::kTokens;
    return c;
  }
};

/// Those whose gradients are derivatives: a threshold, or a straight-through draw, has others.
class Derivatives : public Models {};

TEST_P(Derivatives, AreFiniteDifferences) {
  Trial<double> trial(config(), GetParam().ragged);
  trial.run();
  // Along a random direction of each parameter, and of x.
  const auto compare = [&](double* values, const double* gradient, std::size_t count,
                           const std::string& name) {
    const std::vector<double> direction = draw(count, 9);
    const std::vector<double> at(values, values + count);
    double slope = 0.0;
    for (std::size_t i = 0; i < count; ++i) slope += gradient[i] * direction[i];
    double losses[2];
    constexpr double kStep = 1e-6;
    for (int side = 0; side < 2; ++side) {
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = at[i] + (side == 0 ? kStep : -kStep) * direction[i];
      }
      losses[side] = trial.loss();
    }
    std::copy(at.begin(), at.end(), values);
    EXPECT_NEAR((losses[0] - losses[1]) / (2.0 * kStep), slope, 1e-5 * (1.0 + std::abs(slope)))
        << name;
  };
  for (const Parameter& p : trial.model.parameters()) {
    compare(static_cast<double*>(p.value.data), static_cast<const double*>(p.gradient.data),
            static_cast<std::size_t>(p.value.numel()), p.name);
  }
  const std::vector<double> dx = trial.dx;
  compare(trial.x.data(), dx.data(), dx.size(), "x");
}

TEST_P(Models, Float32IsNearItsTwin) {
  Trial<double> twin(config(), GetParam().ragged);
  Trial<float> trial(config(), GetParam().ragged);
  twin.run();
  trial.run();
  double worst = 0.0;
  for (std::size_t i = 0; i < twin.y.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(trial.y[i]) - twin.y[i]));
  }
  EXPECT_LT(worst, 2e-5);
  for (std::size_t n = 0; n < twin.model.parameters().size(); ++n) {
    const Parameter& p = trial.model.parameters()[n];
    const Parameter& q = twin.model.parameters()[n];
    const auto* g = static_cast<const float*>(p.gradient.data);
    const auto* truth = static_cast<const double*>(q.gradient.data);
    double size = 1.0;
    for (std::int64_t i = 0; i < p.value.numel(); ++i) size = std::max(size, std::abs(truth[i]));
    for (std::int64_t i = 0; i < p.value.numel(); ++i) {
      ASSERT_NEAR(static_cast<double>(g[i]), truth[i], 1e-4 * size) << p.name << " " << i;
    }
  }
}

TEST_P(Models, RecomputationChangesNoBit) {
  Config c = config();
  c.dropout = 0.2;
  c.gate_dropout = 0.2;
  Trial<float> kept(c, GetParam().ragged);
  c.recompute = true;
  Trial<float> again(c, GetParam().ragged);
  kept.run(3);
  again.run(3);
  EXPECT_EQ(std::memcmp(kept.dx.data(), again.dx.data(), kept.dx.size() * sizeof(float)), 0);
  for (std::size_t n = 0; n < kept.model.parameters().size(); ++n) {
    const Tensor& a = kept.model.parameters()[n].gradient;
    const Tensor& b = again.model.parameters()[n].gradient;
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.numel()) * sizeof(float)), 0)
        << kept.model.parameters()[n].name;
  }
  EXPECT_LT(again.model.bytes(), kept.model.bytes());
}

const Kind kDerivable[] = {{LayerKind::flash, Pattern::local},
                           {LayerKind::original, Pattern::local},
                           {LayerKind::original, Pattern::strided},
                           {LayerKind::original, Pattern::random, false, false},
                           {LayerKind::original, Pattern::hierarchical},
                           {LayerKind::adaptive, Pattern::local, true},
                           {LayerKind::adaptive, Pattern::strided},
                           {LayerKind::adaptive, Pattern::hierarchical, true},
                           {LayerKind::adaptive, Pattern::selected},
                           {LayerKind::adaptive, Pattern::local, false, false},
                           {LayerKind::efficient, Pattern::local},
                           {LayerKind::efficient, Pattern::local, false, true, true},
                           {LayerKind::original, Pattern::strided, false, true, true},
                           {LayerKind::adaptive, Pattern::local, true, true, true},
                           {LayerKind::adaptive, Pattern::selected, false, true, true}};
const Kind kChosen[] = {{LayerKind::original, Pattern::clustered},
                        {LayerKind::adaptive, Pattern::clustered},
                        {LayerKind::adaptive, Pattern::automatic},
                        {LayerKind::original, Pattern::clustered, false, true, true},
                        {LayerKind::adaptive, Pattern::clustered, false, true, true}};

std::string case_name(const testing::TestParamInfo<Kind>& at) {
  return std::string(kind_name(at.param.kind)) + "_" + std::string(pattern_name(at.param.pattern)) +
         (at.param.causal ? "_causal" : "") + (at.param.gated ? "" : "_ungated") +
         (at.param.ragged ? "_ragged" : "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, Derivatives, testing::ValuesIn(kDerivable), case_name);
INSTANTIATE_TEST_SUITE_P(Derivable, Models, testing::ValuesIn(kDerivable), case_name);
INSTANTIATE_TEST_SUITE_P(Chosen, Models, testing::ValuesIn(kChosen), case_name);

TEST(Model, RoutedInferenceRunsWhatTheGateLeaves) {
  Config c = small(LayerKind::adaptive, Pattern::local);
  c.layers = 1;
  c.route_above = 0.5;  // every head runs one of the two
  Trial<float> trial(c);
  trial.model.infer(trial.view(trial.x), trial.view(trial.y));
  const LayerInfo info = trial.model.info(0);
  double run = 0.0;
  for (std::size_t n = 0; n < info.gate.size(); ++n) {
    run += info.gate[n] > 0.5F ? info.density[n] : 1.0F;
  }
  EXPECT_NEAR(info.density_run, run / static_cast<double>(info.gate.size()), 1e-6);
  for (const float value : trial.y) EXPECT_TRUE(std::isfinite(value));
}

/// Sequences in one padded batch answer as each alone does, whatever the padding holds.
TEST(Model, PaddingChangesNothing) {
  for (const LayerKind kind :
       {LayerKind::flash, LayerKind::efficient, LayerKind::original, LayerKind::adaptive}) {
    for (const Readout readout : {Readout::mean, Readout::last}) {
      Config c = small(kind, Pattern::local);
      c.adaptive_gate = kind == LayerKind::adaptive;  // the published gate pools the padding
      c.vocabulary = 10;
      c.classes = 3;
      c.readout = readout;
      Model model(c);
      std::vector<std::int32_t> ids, lengths = {50, 33, 0};
      std::mt19937 random(7);
      for (int i = 0; i < 150; ++i) ids.push_back(static_cast<std::int32_t>(random() % 10));
      std::vector<float> y(9, NAN), alone(3);
      model.infer(tensor(ids, {3, 50}), tensor(y, {3, 3}), {.lengths = tensor(lengths, {3})});
      for (std::size_t b = 0; b < 2; ++b) {
        std::vector<std::int32_t> own(
            ids.begin() + 50 * static_cast<std::ptrdiff_t>(b),
            ids.begin() + 50 * static_cast<std::ptrdiff_t>(b) + lengths[b]);
        model.infer(tensor(own, {1, lengths[b]}), tensor(alone, {1, 3}));
        for (std::size_t j = 0; j < 3; ++j) {
          EXPECT_NEAR(y[3 * b + j], alone[j], 2e-6) << kind_name(kind) << " sequence " << b;
        }
      }
      for (std::size_t j = 6; j < 9; ++j) EXPECT_TRUE(std::isfinite(y[j])) << kind_name(kind);
    }
  }
}

TEST(Model, BadInputNamesTheArgument) {
  const auto fails = [](const Config& c, const char* what) {
    try {
      const Model model(c);
      ADD_FAILURE() << "no error about " << what;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  Config c = small(LayerKind::adaptive, Pattern::local);
  c.block_size = 48;
  fails(c, "config.block_size is 48");
  c = small(LayerKind::original, Pattern::selected);
  fails(c, "config.pattern is selected");
  c = small(LayerKind::flash, Pattern::local);
  c.head_dim = 7;
  fails(c, "config.head_dim is 7");
  c = small(LayerKind::flash, Pattern::local);
  c.causal = true;
  fails(c, "config.causal");
  c = small(LayerKind::adaptive, Pattern::local);
  c.heads = c.head_dim = std::int64_t{1} << 20;  // their products with dim fit no 64 bits
  fails(c, "config.heads * head_dim is 1099511627776: it must be at most 2^24");
  c = small(LayerKind::adaptive, Pattern::local);
  c.vocabulary = std::int64_t{1} << 31;
  fails(c, "config.vocabulary is 2147483648: tokens and labels are int32");

  Trial<float> trial(small(LayerKind::flash, Pattern::local));
  std::vector<float> few(8);
  EXPECT_THROW(trial.model.infer(tensor(few, {1, 1, 8}), trial.view(trial.y)), InvalidArgument);
  EXPECT_THROW(trial.model.backward(trial.view(trial.x), trial.view(trial.dy)), InvalidArgument);
  std::vector<std::int32_t> three(3);
  EXPECT_THROW(
      trial.model.infer(trial.view(trial.x), trial.view(trial.y), {.lengths = tensor(three, {3})}),
      InvalidArgument);
  std::vector<std::int32_t> outside = {70, 71};
  EXPECT_THROW(trial.model.infer(trial.view(trial.x), trial.view(trial.y),
                                 {.lengths = tensor(outside, {2})}),
               InvalidArgument);
  std::vector<float> mask(70);
  EXPECT_THROW(
      trial.model.infer(trial.view(trial.x), trial.view(trial.y), {.mask = tensor(mask, {1, 70})}),
      InvalidArgument);
}

TEST(Model, ListsOfMoreThan32BitsAreRefused) {
  Config c = small(LayerKind::adaptive, Pattern::local);
  c.dim = c.head_dim = 1;
  c.heads = 256;
  Model model(c);
  std::vector<float> x(32768), y(x.size());
  try {
    model.infer(tensor(x, {1, 32768, 1}), tensor(y, {1, 32768, 1}));
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("block_size"), std::string::npos) << error.what();
  }
}

TEST(Model, BackwardWantsItsOwnForward) {
  for (const auto& [kind, pattern] : {std::pair(LayerKind::flash, Pattern::local),
                                      std::pair(LayerKind::adaptive, Pattern::selected)}) {
    Trial<float> trial(small(kind, pattern));
    const Tensor x = trial.view(trial.x), y = trial.view(trial.y), dy = trial.view(trial.dy);
    EXPECT_THROW(trial.model.backward(x, dy), InvalidArgument);
    trial.model.forward(x, y);
    trial.model.backward(x, dy);
    trial.model.backward(x, dy);  // adds the same again
    trial.model.infer(x, y);      // writes over what forward() saved
    EXPECT_THROW(trial.model.backward(x, dy), InvalidArgument);
  }
}

/// Two classes of token sequences that the token at a fixed place tells apart.
struct Lesson {
  std::vector<std::int32_t> ids, labels;
  explicit Lesson(std::uint32_t seed, std::int64_t batch = 8, std::int64_t tokens = 40) {
    std::mt19937 random(seed);
    for (std::int64_t b = 0; b < batch; ++b) {
      labels.push_back(static_cast<std::int32_t>(random() % 2));
      for (std::int64_t i = 0; i < tokens; ++i) {
        ids.push_back(static_cast<std::int32_t>(random() % 8));
      }
      ids[ids.size() - 20] = 8 + labels.back();
    }
  }
};

Config pupil(LayerKind kind) {
  Config c = small(kind, Pattern::local);
  c.layers = 1;
  c.vocabulary = 10;
  c.classes = 2;
  return c;
}

TEST(Trainer, NumbersThatNameNothingAreRefused) {
  Lesson lesson(1);
  Model model(pupil(LayerKind::flash));
  Trainer trainer(model);
  const auto step = [&] { trainer.step(tensor(lesson.ids, {8, 40}), tensor(lesson.labels, {8})); };
  for (std::vector<std::int32_t>* numbers : {&lesson.ids, &lesson.labels}) {
    for (const std::int32_t wrong : {-1, 10}) {
      const std::int32_t right = std::exchange(numbers->back(), wrong);
      EXPECT_THROW(step(), InvalidArgument);
      numbers->back() = right;
    }
  }
  step();
  EXPECT_EQ(trainer.status().steps, 1);
}

TEST(Trainer, OptionsThatMeanNothingAreRefused) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Model model(pupil(LayerKind::flash));
  for (const auto& [options, name] : std::vector<std::pair<TrainOptions, std::string>>{
           {{.learning_rate = kNaN}, "learning_rate"},
           {{.learning_rate = -1e-3}, "learning_rate"},
           {{.beta1 = 1.0}, "beta1"},
           {{.beta2 = kNaN}, "beta2"},
           {{.epsilon = -1e-8}, "epsilon"},
           {{.initial_scale = 0.0}, "initial_scale"},
           {{.initial_scale = 1e39}, "initial_scale"},
           {{.growth_interval = 0}, "growth_interval"},
           {{.growth_interval = std::int64_t{1} << 32}, "growth_interval"}}) {
    try {
      Trainer trainer(model, options);
      ADD_FAILURE() << name << " is accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).rfind("options." + name + " is ", 0), 0U) << error.what();
    }
  }
}

TEST(Trainer, LearnsAndTheLossFalls) {
  for (const LayerKind kind : {LayerKind::flash, LayerKind::original, LayerKind::adaptive}) {
    Model model(pupil(kind));
    Trainer trainer(model, {.learning_rate = 1e-2});
    double first = 0.0;
    for (std::uint32_t n = 0; n < 80; ++n) {
      Lesson lesson(n);
      trainer.step(tensor(lesson.ids, {8, 40}), tensor(lesson.labels, {8}));
      if (n == 0) first = trainer.status().loss;
    }
    EXPECT_GT(first, 0.3) << kind_name(kind);
    EXPECT_LT(trainer.status().loss, 0.1) << kind_name(kind);
  }
}

TEST(Trainer, AnInfinityLeavesTheWeightsBitwiseAloneAndHalvesTheScale) {
  Model model(pupil(LayerKind::adaptive));
  Trainer trainer(model, {.scale_loss = true, .growth_interval = 3});
  Lesson lesson(1);
  const Tensor ids = tensor(lesson.ids, {8, 40}), labels = tensor(lesson.labels, {8});
  trainer.step(ids, labels);
  EXPECT_EQ(trainer.status().scale, 65536.0);
  EXPECT_EQ(trainer.status().steps, 1);
  const Parameter* head = nullptr;
  for (const Parameter& p : model.parameters()) {
    if (p.name == "head.bias") head = &p;
  }
  ASSERT_NE(head, nullptr);
  auto* bias = static_cast<float*>(head->value.data);
  const float before = bias[0];
  bias[0] = INFINITY;
  std::vector<std::vector<float>> weights;
  for (const Parameter& p : model.parameters()) {
    const auto* data = static_cast<const float*>(p.value.data);
    weights.emplace_back(data, data + p.value.numel());
  }
  trainer.step(ids, labels);
  for (std::size_t n = 0; n < weights.size(); ++n) {
    EXPECT_EQ(std::memcmp(weights[n].data(), model.parameters()[n].value.data,
                          weights[n].size() * sizeof(float)),
              0);
  }
  EXPECT_EQ(trainer.status().scale, 32768.0);
  EXPECT_EQ(trainer.status().skipped, 1);
  EXPECT_EQ(trainer.status().steps, 1);
  bias[0] = before;
  for (int n = 0; n < 3; ++n) trainer.step(ids, labels);
  EXPECT_EQ(trainer.status().scale, 65536.0);  // doubled after three good steps in a row
  EXPECT_EQ(trainer.status().steps, 4);
}

/// Dropout of the layers, the gates and the attention goes with the steps, and with nothing else.
TEST(Trainer, EveryStepDropsAnew) {
  for (const LayerKind kind : {LayerKind::flash, LayerKind::adaptive}) {
    Config c = pupil(kind);
    c.dropout = c.gate_dropout = 0.3;
    std::vector<double> losses[2];
    for (std::vector<double>& of : losses) {
      Model model(c);
      Trainer trainer(model, {.learning_rate = 0.0});
      Lesson lesson(1);
      for (int n = 0; n < 3; ++n) {
        trainer.step(tensor(lesson.ids, {8, 40}), tensor(lesson.labels, {8}));
        of.push_back(trainer.status().loss);
      }
    }
    EXPECT_EQ(losses[0], losses[1]) << kind_name(kind);
    EXPECT_NE(losses[0][0], losses[0][1]) << kind_name(kind);
    EXPECT_NE(losses[0][1], losses[0][2]) << kind_name(kind);
  }
}

TEST(Trainer, TheScaleOfTheLossChangesWeightsByRoundingAlone) {
  Model plain(pupil(LayerKind::flash)), scaled(pupil(LayerKind::flash));
  Trainer first(plain, {.learning_rate = 1e-3});
  Trainer second(scaled, {.learning_rate = 1e-3, .scale_loss = true});
  for (std::uint32_t n = 0; n < 5; ++n) {
    Lesson lesson(n);
    first.step(tensor(lesson.ids, {8, 40}), tensor(lesson.labels, {8}));
    second.step(tensor(lesson.ids, {8, 40}), tensor(lesson.labels, {8}));
  }
  EXPECT_NEAR(first.status().loss, second.status().loss, 1e-5);
}

}  // namespace
}  // namespace tilewise::asam
