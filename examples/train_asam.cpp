/// An ASAM classifier that learns without Python: one of 4 marked tokens stands somewhere in a
/// random sequence, and the model says which.
///
/// Build against an installed Tilewise:
///   c++ -std=c++20 train_asam.cpp $(pkg-config --cflags --libs tilewise)
#include <tilewise/asam.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using tilewise::DType;
using tilewise::Tensor;
namespace asam = tilewise::asam;

constexpr int kBatch = 16, kTokens = 96, kNoise = 12, kMarks = 4;

struct Batch {
  std::vector<std::int32_t> ids, labels;
  explicit Batch(std::mt19937& random) {
    for (int b = 0; b < kBatch; ++b) {
      labels.push_back(static_cast<std::int32_t>(random() % kMarks));
      for (int i = 0; i < kTokens; ++i) {
        ids.push_back(static_cast<std::int32_t>(random() % kNoise));
      }
      ids[ids.size() - 1 - random() % kTokens] = kNoise + labels.back();
    }
  }
  Tensor tokens() { return Tensor::contiguous(ids.data(), DType::int32, {kBatch, kTokens}); }
  Tensor answers() { return Tensor::contiguous(labels.data(), DType::int32, {kBatch}); }
};

}  // namespace

int main() {
  asam::Config config;
  config.kind = asam::LayerKind::adaptive;
  config.pattern =
      asam::Pattern::automatic;  // the gate chooses a pattern for each sequence and head
  config.dim = 32;
  config.heads = 2;
  config.head_dim = 16;
  config.block_size = 16;
  config.dropout = config.gate_dropout = 0.0;
  config.vocabulary = kNoise + kMarks;
  config.classes = kMarks;
  asam::Model model(config);
  asam::Trainer trainer(model, {.learning_rate = 5e-3});

  std::mt19937 random(1);
  for (int step = 0; step <= 150; ++step) {
    Batch batch(random);
    trainer.step(batch.tokens(), batch.answers());
    if (step % 50 == 0) std::printf("step %3d: loss %.3f\n", step, trainer.status().loss);
  }

  Batch batch(random);
  std::vector<float> logits(kBatch * kMarks);
  model.infer(batch.tokens(), Tensor::contiguous(logits.data(), DType::float32, {kBatch, kMarks}));
  int right = 0;
  for (int b = 0; b < kBatch; ++b) {
    const auto row = logits.begin() + b * kMarks;
    const auto answer = std::max_element(row, row + kMarks) - row;
    if (answer == batch.labels[static_cast<std::size_t>(b)]) ++right;
  }
  const asam::LayerInfo info = model.info(0);
  std::printf("%d of %d new sequences are right; block pairs that ran: %.2f of all\n", right,
              kBatch, info.density_run);
  return right >= 3 * kBatch / 4 ? 0 : 1;
}
