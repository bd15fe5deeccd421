/// What a training step keeps: its bytes a token, its parts, its 16 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tilewise/asam.h"

namespace tilewise::asam {
namespace {

constexpr std::int64_t kVocabulary = 11, kClasses = 3, kRowsOfPart = 4096;

/// Counts the bytes that are held at once.
class Counter final : public Allocator {
 public:
  void* allocate(std::int64_t bytes, Device device, void* stream) override {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return default_allocator().allocate(bytes, device, stream);
  }
  void release(void* data, std::int64_t bytes, Device device, void* stream) noexcept override {
    held_ -= bytes;
    default_allocator().release(data, bytes, device, stream);
  }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t held_ = 0, peak_ = 0;
};

Config config(LayerKind kind, DType compute = DType::float32) {
  Config c;
  c.kind = kind;
  c.dim = 32;
  c.heads = 2;
  c.head_dim = 16;
  c.window_size = 8;
  c.block_size = 16;
  c.gate_hidden = 16;
  c.layers = 2;
  c.vocabulary = kVocabulary;
  c.classes = kClasses;
  c.pattern_tokens = 32;
  c.compute = compute;
  c.seed = 3;
  return c;
}

struct Batch {
  std::vector<std::int32_t> ids, labels;
  Batch(std::int64_t batch, std::int64_t tokens) {
    std::mt19937 random(1);
    for (std::int64_t n = 0; n < batch * tokens; ++n) ids.push_back(draw(random, kVocabulary));
    for (std::int64_t n = 0; n < batch; ++n) labels.push_back(draw(random, kClasses));
  }
  Tensor x() {
    const auto batch = static_cast<std::int64_t>(labels.size());
    return Tensor::contiguous(ids.data(), DType::int32,
                              {batch, static_cast<std::int64_t>(ids.size()) / batch});
  }
  Tensor y() {
    return Tensor::contiguous(labels.data(), DType::int32,
                              {static_cast<std::int64_t>(labels.size())});
  }

 private:
  static std::int32_t draw(std::mt19937& random, std::int64_t end) {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(end));
  }
};

/// Elements of float32 and of `dim`, that a token costs at the peak of a training step.
double units_of_token(LayerKind kind, DType compute) {
  constexpr std::int64_t kTokens = 32,
                         kBatches[] = {kRowsOfPart / kTokens, 2 * kRowsOfPart / kTokens};
  std::int64_t peaks[2];
  for (int n = 0; n < 2; ++n) {
    Counter counter;
    const Config c = config(kind, compute);
    Model model(c, {.allocator = &counter});
    Trainer trainer(model);
    Batch batch(kBatches[n], kTokens);
    trainer.step(batch.x(), batch.y());
    peaks[n] = counter.peak();
  }
  const std::int64_t rows = (kBatches[1] - kBatches[0]) * kTokens;
  return static_cast<double>(peaks[1] - peaks[0]) / static_cast<double>(rows * 32 * 4);
}

TEST(Memory, OfATokenAtThePeakOfAStep) {
  // Two layers of x, q, k, v, o, x1 and z (4), and the last one's output.
  EXPECT_LT(units_of_token(LayerKind::flash, DType::float32), 23.0);
  EXPECT_LT(units_of_token(LayerKind::flash, DType::float16), 14.0);
  EXPECT_LT(units_of_token(LayerKind::adaptive, DType::float32), 37.0);
  EXPECT_LT(units_of_token(LayerKind::adaptive, DType::bfloat16), 33.0);
}

std::vector<double> gradients(const Model& model) {
  std::vector<double> all;
  for (const Parameter& p : model.parameters()) {
    const auto* g = static_cast<const float*>(p.gradient.data);
    all.insert(all.end(), g, g + p.gradient.numel());
  }
  return all;
}

/// The largest difference in units of the largest element.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0.0, size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]);
    worst = std::max(worst, std::isnan(error) ? 1e30 : error);
    size = std::max(size, std::abs(b[i]));
  }
  return worst / size;
}

/// The gradient of the mean cross-entropy.
std::vector<float> gradient_of_loss(const std::vector<float>& logits,
                                    const std::vector<std::int32_t>& labels) {
  std::vector<float> d(logits.size());
  for (std::size_t b = 0; b < labels.size(); ++b) {
    const float* row = logits.data() + b * kClasses;
    double sum = 0.0;
    for (std::int64_t j = 0; j < kClasses; ++j) sum += std::exp(row[j]);
    for (std::int64_t j = 0; j < kClasses; ++j) {
      const double p = std::exp(row[j]) / sum - (j == labels[b] ? 1.0 : 0.0);
      d[b * kClasses + static_cast<std::size_t>(j)] =
          static_cast<float>(p / static_cast<double>(labels.size()));
    }
  }
  return d;
}

class Kinds : public testing::TestWithParam<LayerKind> {};

/// A trainer's backward writes over what forward kept, a model's does not. More rows than a part.
TEST_P(Kinds, AStepHasTheGradientsOfForwardAndBackward) {
  struct {
    DType compute;
    bool recompute;
    double bound;
  } const trials[] = {
      {DType::float32, false, 1e-5}, {DType::float32, true, 1e-5}, {DType::bfloat16, false, 1e-3}};
  for (const auto& trial : trials) {
    Config c = config(GetParam(), trial.compute);
    c.recompute = trial.recompute;
    Batch batch(130, 32);
    const auto count = static_cast<std::int64_t>(batch.labels.size());
    Model model(c), other(c);
    Trainer trainer(model, {.learning_rate = 0.0});
    trainer.step(batch.x(), batch.y());
    std::vector<float> logits(batch.labels.size() * kClasses);
    const auto view = [&](std::vector<float>& v) {
      return Tensor::contiguous(v.data(), DType::float32, {count, kClasses});
    };
    other.forward(batch.x(), view(logits));
    std::vector<float> d = gradient_of_loss(logits, batch.labels);
    for (int n = 0; n < 2; ++n) {  // the second time, what was kept is still there
      other.clear_gradients();
      other.backward(batch.x(), view(d));
      EXPECT_LT(apart(gradients(model), gradients(other)), trial.bound) << n;
    }
  }
}

/// Against the same model in float64, whose attention is the reference.
TEST_P(Kinds, SixteenBitsAreNearTheTwin) {
  for (const DType compute : {DType::float16, DType::bfloat16}) {
    const double unit = compute == DType::float16 ? 0x1p-11 : 0x1p-8;
    Config c = config(GetParam());
    c.vocabulary = c.classes = 0;
    c.dropout = c.gate_dropout = 0.0;
    constexpr std::int64_t kBatch = 2, kTokens = 70;
    const auto elems = static_cast<std::size_t>(kBatch * kTokens * c.dim);
    std::mt19937 random(2);
    std::normal_distribution<double> normal;
    std::vector<double> x(elems), dy(elems), y(elems), dx(elems);
    for (std::vector<double>* of : {&x, &dy}) {
      for (double& value : *of) value = static_cast<double>(static_cast<float>(normal(random)));
    }
    const std::vector<float> x32(x.begin(), x.end()), dy32(dy.begin(), dy.end());
    std::vector<float> y32(elems), dx32(elems);
    const auto view = [&](auto& v, DType dtype) {
      return Tensor::contiguous(const_cast<void*>(static_cast<const void*>(v.data())), dtype,
                                {kBatch, kTokens, c.dim});
    };
    Config twin_config = c;
    twin_config.dtype = DType::float64;
    c.compute = compute;
    Model twin(twin_config), model(c);
    twin.forward(view(x, DType::float64), view(y, DType::float64));
    twin.backward(view(x, DType::float64), view(dy, DType::float64), view(dx, DType::float64));
    model.forward(view(x32, DType::float32), view(y32, DType::float32));
    model.backward(view(x32, DType::float32), view(dy32, DType::float32),
                   view(dx32, DType::float32));
    EXPECT_LT(apart({y32.begin(), y32.end()}, y), 4.0 * unit);
    EXPECT_LT(apart({dx32.begin(), dx32.end()}, dx), 8.0 * unit);
    for (std::size_t n = 0; n < model.parameters().size(); ++n) {
      const Parameter &p = model.parameters()[n], &q = twin.parameters()[n];
      const auto* g = static_cast<const float*>(p.gradient.data);
      const auto* truth = static_cast<const double*>(q.gradient.data);
      const auto size = p.gradient.numel();
      if (std::all_of(truth, truth + size, [](double value) { return std::abs(value) < 1e-9; }))
        continue;
      EXPECT_LT(apart({g, g + size}, {truth, truth + size}), 24.0 * unit) << p.name;
    }
  }
}

TEST_P(Kinds, LossesOfSixteenBitsAreWithinAPercent) {
  std::vector<double> losses[3];
  constexpr DType kTypes[] = {DType::float32, DType::float16, DType::bfloat16};
  for (int n = 0; n < 3; ++n) {
    Config c = config(GetParam(), kTypes[n]);
    c.dropout = c.gate_dropout = 0.0;
    Model model(c);
    Trainer trainer(model, {.learning_rate = 1e-3, .scale_loss = kTypes[n] == DType::float16});
    Batch batch(8, 32);
    for (int step = 0; step < 20; ++step) {
      trainer.step(batch.x(), batch.y());
      losses[n].push_back(trainer.status().loss);
    }
    EXPECT_EQ(trainer.status().skipped, 0);
  }
  EXPECT_LT(losses[0].back(), 0.9 * losses[0].front());
  for (std::size_t step = 0; step < losses[0].size(); ++step) {
    EXPECT_NEAR(losses[1][step], losses[0][step], 0.01 * losses[0][step]) << step;
    EXPECT_NEAR(losses[2][step], losses[0][step], 0.01 * losses[0][step]) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, Kinds,
                         testing::Values(LayerKind::flash, LayerKind::efficient,
                                         LayerKind::original, LayerKind::adaptive),
                         [](const auto& at) { return std::string(kind_name(at.param)); });

}  // namespace
}  // namespace tilewise::asam
