/// The verbs and the models on a CUDA device against the CPU's. Skipped where there is no device;
/// every kernel is compiled where there is NVRTC.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cuda/driver/device.h"
#include "cuda/driver/memory.h"
#include "cuda/driver/stream.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "layers/cpu_ops.h"
#include "layers/cuda_ops.h"
#include "layers/pools.h"

namespace tilewise::asam {
namespace {

TEST(LayerKernels, CompileWithoutSpills) {
  std::string why_not;
  if (cuda::find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  const auto compile = [](const cuda::KernelUnit& unit) {
    const cuda::Compiled compiled = cuda::compile(unit, 90);
    EXPECT_EQ(compiled.report.spill_store_bytes, 0) << unit.entry << unit.config;
    EXPECT_GT(compiled.cubin.size(), 0U) << unit.entry << unit.config;
  };
  for (int n = 0; n < kSteps; ++n) {
    compile(step_unit(static_cast<Step>(n)));
    for (const DType half : {DType::float16, DType::bfloat16}) {
      const cuda::KernelUnit unit = step_unit(static_cast<Step>(n), half);
      if (!unit.config.empty()) compile(unit);
    }
  }
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::missing_driver_reason();
  }

  static Config config() {
    Config c;
    c.device = {DeviceType::cuda, 0};
    c.vocabulary = 11;
    return c;
  }
};

/// Runs a verb on both with arrays of so many random elements, and compares all of them after.
/// Token numbers and labels come from `whole`.
template <class Verb>
void agree(const std::vector<std::int64_t>& sizes, const Verb& verb, double bound = 2e-5,
           std::int32_t whole = 11) {
  CpuOps<float> cpu(default_executor());
  Config c;
  c.device = {DeviceType::cuda, 0};
  c.vocabulary = 11;
  Memory memory(c.device, {});
  CudaOps gpu(c, {}, memory);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> host;
  std::vector<float*> on_host, on_device;
  for (const std::int64_t size : sizes) {
    std::vector<float> x(static_cast<std::size_t>(size));
    for (float& value : x) value = normal(random);
    host.push_back(x);
    const std::int64_t bytes = std::max<std::int64_t>(4, size * 4);
    on_device.push_back(static_cast<float*>(cuda::allocate(bytes, 0, nullptr)));
    gpu.upload(on_device.back(), x.data(), size * 4);
  }
  for (std::vector<float>& x : host) on_host.push_back(x.data());
  std::vector<std::int32_t> ids(4096);
  for (std::int32_t& id : ids)
    id = static_cast<std::int32_t>(random() % static_cast<unsigned>(whole));
  auto* device_ids = static_cast<std::int32_t*>(cuda::allocate(4 * 4096, 0, nullptr));
  gpu.upload(device_ids, ids.data(), 4 * 4096);
  verb(static_cast<Ops<float>&>(cpu), on_host, ids.data());
  verb(static_cast<Ops<float>&>(gpu), on_device, device_ids);
  for (std::size_t n = 0; n < host.size(); ++n) {
    std::vector<float> back(host[n].size());
    gpu.download(back.data(), on_device[n], sizes[n] * 4);
    double worst = 0.0;
    for (std::size_t i = 0; i < back.size(); ++i) {
      const double error = std::abs(static_cast<double>(back[i]) - static_cast<double>(host[n][i]));
      worst = std::max(worst, std::isnan(error) ? 1e30 : error / (1.0 + std::abs(host[n][i])));
    }
    EXPECT_LT(worst, bound) << "array " << n;
    cuda::release(on_device[n], 0, nullptr);
  }
  cuda::release(device_ids, 0, nullptr);
}

using Arrays = std::vector<float*>;

TEST_F(OnDevice, Linear) {
  const LinearShape s{70, 33, 50};
  agree(
      {70 * 33, 50 * 33, 70 * 50, 70 * 33, 50 * 33},
      [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
        ops.linear(x[0], x[1], x[2], {}, s);
        ops.linear_backward(x[0], x[1], x[2], x[3], x[4], s);
      },
      1e-4);
}

TEST_F(OnDevice, LinearWithWhatFollows) {
  for (const LinearShape s : {LinearShape{70, 36, 50}, LinearShape{1000, 1024, 600}}) {
    const std::int64_t all = s.rows * s.out;
    agree(
        {s.rows * s.in, s.out * s.in, s.out, all, all, all},
        [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
          const Epilogue<float> epilogue{
              .bias = x[2], .residual = x[3], .z = x[4], .f = Activation::gelu};
          ops.linear(x[0], x[1], x[5], epilogue, s);
        },
        1e-4);
  }
}

TEST_F(OnDevice, Activations) {
  const Shape s{70, 41};
  for (const Activation f :
       {Activation::none, Activation::gelu, Activation::relu, Activation::sigmoid}) {
    agree({70 * 41, 41, 70 * 41, 70 * 41, 41},
          [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
            ops.activate(x[0], x[1], x[2], f, s);
            ops.activate_backward(x[0], x[2], x[3], x[4], f, s);
          });
  }
}

TEST_F(OnDevice, GeluBackward) {
  const Shape s{70, 41};
  for (const double p : {0.0, 0.3}) {
    const Drop drop{.p = p, .seed = 5, .site = 9, .draw = 4, .first = 100};
    agree({70 * 41, 70 * 41, 70 * 41}, [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
      ops.gelu_backward(x[0], x[1], x[2], drop, s);
      ops.gelu_backward(x[0], x[2], x[0], drop.from(30), s);
    });
  }
}

TEST_F(OnDevice, LayerNorm) {
  for (const Shape s : {Shape{70, 41}, Shape{3, 700}}) {
    const std::int64_t all = s.rows * s.cols;
    agree({all, s.cols, s.cols, all, 2 * s.rows, all, s.cols, s.cols},
          [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
            ops.layer_norm(x[0], x[1], x[2], x[3], x[4], s);
            ops.layer_norm_backward(x[0], x[1], x[4], x[3], x[5], x[6], x[7], s);
            ops.normalise(x[5], x[1], x[2], x[4], x[3], s);
          });
  }
}

TEST_F(OnDevice, DropsTheSameAsTheCpu) {
  const Shape s{70, 41};
  const Drop drop{.p = 0.3, .seed = (std::uint64_t{7} << 32) + 1, .site = 9, .draw = 4};
  agree({70 * 41, 70 * 41, 70 * 41, 70 * 41},
        [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
          ops.drop_add(x[0], x[1], x[2], drop, s);
          ops.drop_add(nullptr, x[2], x[3], drop, s);
          ops.drop_add(x[0], x[1], x[1], {}, s);
        });
}

TEST_F(OnDevice, Pools) {
  for (const TokenShape s : {TokenShape{2, 70, 40}, TokenShape{1, 1, 8}, TokenShape{3, 1030, 5}}) {
    const std::int64_t bins = pool_bin_count(s.dim);
    const std::int64_t kept = s.batch * (s.dim + 2 * s.tokens + 3 * bins);
    agree(
        {s.elems(), s.batch * bins, kept, s.batch * bins, s.elems()},
        [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
          ops.pool_bins(x[0], x[1], x[2], s);
          ops.pool_bins_backward(x[0], x[2], x[3], x[4], s);
        },
        1e-4);
    agree(
        {s.elems(), s.batch * kWindowFeatures * s.dim, s.batch * kWindowFeatures * s.dim,
         s.elems()},
        [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
          ops.pool_windows(x[0], nullptr, x[1], s);
          ops.pool_windows_backward(x[0], nullptr, x[1], x[2], x[3], s);
        },
        1e-4);
    agree(
        {s.elems(), s.batch * kWindowFeatures * s.dim, s.batch * kWindowFeatures * s.dim,
         s.elems()},
        [&](Ops<float>& ops, const Arrays& x, const std::int32_t* ids) {
          ops.pool_windows(x[0], ids, x[1], s);  // lengths of 0 to 10
          ops.pool_windows_backward(x[0], ids, x[1], x[2], x[3], s);
        },
        1e-4);
  }
}

TEST_F(OnDevice, GateAndMix) {
  const HeadShape s{2, 70, 3, 16};
  const std::int64_t rows = s.rows() * s.heads * s.dim, heads = s.batch * s.heads;
  agree(
      {heads, heads, s.heads, 1, heads, heads, heads, heads, s.heads, 1},
      [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
        ops.gate(x[0], x[1], x[2], x[3], x[4], {s.batch, s.heads});
        ops.gate_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9],
                          {s.batch, s.heads});
      },
      1e-4);
  agree(
      {2 * rows, heads, rows, 2 * rows, heads, heads, 3 * rows, 2 * rows},
      [&](Ops<float>& ops, const Arrays& x, const std::int32_t*) {
        ops.mix(x[0], x[1], x[2], s);
        ops.mix_backward(x[0], x[1], x[2], x[3], x[4], x[5], s);
        ops.twice(x[6], x[7], s);
        ops.twice_backward(x[3], x[6], s);
      },
      1e-4);
}

TEST_F(OnDevice, EmbeddingAndReadOut) {
  const TokenShape s{4, 33, 40};
  agree({11 * s.dim, s.elems(), 11 * s.dim, s.batch * s.dim, s.elems(), s.batch * s.dim, s.elems()},
        [&](Ops<float>& ops, const Arrays& x, const std::int32_t* ids) {
          ops.embed(ids, x[0], x[1], {s.rows(), s.dim});
          ops.embed_backward(ids, x[1], x[2], {s.rows(), s.dim});
          ops.read_out(x[1], ids, x[3], Readout::mean, s);
          ops.read_out_backward(x[3], ids, x[4], Readout::mean, s);
          ops.read_out(x[1], nullptr, x[5], Readout::last, s);
          ops.read_out_backward(x[5], nullptr, x[6], Readout::last, s);
          ops.add(x[4], x[6], s.elems());
          ops.copy(x[6], x[4], s.elems());
        });
}

Config pupil(LayerKind kind, Pattern pattern, bool on_device) {
  Config c;
  c.kind = kind;
  c.pattern = pattern;
  c.dim = 64;
  c.heads = 2;
  c.head_dim = 32;
  c.layers = 2;
  c.dropout = c.gate_dropout = 0.1;
  c.block_size = 16;
  c.clusters = 6;
  c.gate_hidden = 32;
  c.vocabulary = 11;
  c.classes = 5;
  c.pattern_tokens = 100;
  if (on_device) c.device = {DeviceType::cuda, 0};
  return c;
}

/// A model that learns on one device, from the same weights and batches.
class Pupil {
 public:
  Pupil(const Config& c, void* stream, const TrainOptions& options = {.learning_rate = 1e-3})
      : model_(c, {.stream = stream}), trainer_(model_, options) {
    std::mt19937 random(2);
    for (std::int32_t& id : ids_) id = static_cast<std::int32_t>(random() % 11);
    for (std::int32_t& label : labels_) label = static_cast<std::int32_t>(random() % 5);
    on_device_ = c.device.type == DeviceType::cuda;
    if (!on_device_) return;
    for (auto [to, from] : {std::pair{&x_, &ids_}, std::pair{&y_, &labels_}}) {
      const auto bytes = static_cast<std::int64_t>(from->size()) * 4;
      *to = static_cast<std::int32_t*>(cuda::allocate(bytes, 0, nullptr));
      cuda::copy_to_device(*to, from->data(), bytes, 0, nullptr);
      cuda::synchronize(0, nullptr);
    }
  }
  ~Pupil() {
    model_.synchronize();
    if (x_ != nullptr) cuda::release(x_, 0, nullptr);
    if (y_ != nullptr) cuda::release(y_, 0, nullptr);
  }
  double step() {
    const Device device = model_.config().device;
    trainer_.step(Tensor::contiguous(on_device_ ? x_ : ids_.data(), DType::int32, {3, 100}, device),
                  Tensor::contiguous(on_device_ ? y_ : labels_.data(), DType::int32, {3}, device));
    return trainer_.status().loss;
  }
  /// An inference on one sequence of all the numbers, three times as long as a step's.
  void look() {
    const Device device = model_.config().device;
    auto* logits = static_cast<float*>(cuda::allocate(5 * 4, 0, nullptr));
    model_.infer(Tensor::contiguous(x_, DType::int32, {1, 300}, device),
                 Tensor::contiguous(logits, DType::float32, {1, 5}, device));
    model_.synchronize();
    cuda::release(logits, 0, nullptr);
  }
  TrainStatus status() const { return trainer_.status(); }
  /// The largest difference of a weight.
  double gap(const Pupil& other) const {
    double worst = 0.0;
    for (std::size_t n = 0; n < model_.parameters().size(); ++n) {
      const std::vector<float> a = host(model_.parameters()[n]),
                               b = other.host(other.model_.parameters()[n]);
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double error = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        worst = std::max(worst, std::isnan(error) ? 1e30 : error);
      }
    }
    return worst;
  }

 private:
  std::vector<float> host(const Parameter& p) const {
    std::vector<float> values(static_cast<std::size_t>(p.value.numel()));
    const auto bytes = static_cast<std::int64_t>(values.size()) * 4;
    if (on_device_) {
      cuda::copy_to_host(values.data(), p.value.data, bytes, 0, nullptr);
      cuda::synchronize(0, nullptr);
    } else {
      std::memcpy(values.data(), p.value.data, static_cast<std::size_t>(bytes));
    }
    return values;
  }

  Model model_;
  Trainer trainer_;
  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(300);
  std::vector<std::int32_t> labels_ = std::vector<std::int32_t>(3);
  std::int32_t *x_ = nullptr, *y_ = nullptr;
  bool on_device_ = false;
};

struct Kind {
  LayerKind kind;
  Pattern pattern;
};

class DeviceModels : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::missing_driver_reason();
  }
};

TEST_P(DeviceModels, TrainAsTheCpuDoes) {
  Pupil cpu(pupil(GetParam().kind, GetParam().pattern, false), nullptr);
  Pupil gpu(pupil(GetParam().kind, GetParam().pattern, true), nullptr);
  for (int n = 0; n < 4; ++n) EXPECT_NEAR(gpu.step(), cpu.step(), 2e-4) << "step " << n;
  EXPECT_LT(gpu.gap(cpu), 4e-3);  // four steps of 1e-3: signs of tiny gradients may differ
}

TEST_P(DeviceModels, AGraphTrainsBitByBitAlike) {
  const cuda::Stream first(0), second(0);
  Config c = pupil(GetParam().kind, GetParam().pattern, true);
  Pupil plain(c, first.get());
  c.graph = true;
  Pupil replayed(c, second.get());
  for (int n = 0; n < 4; ++n) EXPECT_EQ(plain.step(), replayed.step()) << "step " << n;
  EXPECT_EQ(plain.gap(replayed), 0.0);
}

TEST_P(DeviceModels, AGraphOutlivesAnInferenceThatTookItsMemory) {
  const cuda::Stream first(0), second(0);
  Config c = pupil(GetParam().kind, GetParam().pattern, true);
  Pupil plain(c, first.get());
  c.graph = true;
  Pupil replayed(c, second.get());
  for (int n = 0; n < 6; ++n) {
    EXPECT_EQ(plain.step(), replayed.step()) << "step " << n;
    if (n % 3 != 2) continue;
    plain.look();
    replayed.look();
  }
  EXPECT_EQ(plain.gap(replayed), 0.0);
}

TEST_P(DeviceModels, SixteenBitsTrainNearly) {
  for (const DType compute : {DType::bfloat16, DType::float16}) {
    Config c = pupil(GetParam().kind, GetParam().pattern, true);
    Pupil wide(c, nullptr);
    c.compute = compute;
    Pupil narrow(c, nullptr, {.learning_rate = 1e-3, .scale_loss = compute == DType::float16});
    for (int n = 0; n < 4; ++n) EXPECT_NEAR(narrow.step(), wide.step(), 0.05) << "step " << n;
    EXPECT_EQ(narrow.status().skipped, 0);
  }
}

TEST_P(DeviceModels, AnOverflowLeavesTheWeightsBitwiseAlone) {
  Config c = pupil(GetParam().kind, GetParam().pattern, true);
  c.compute = DType::float16;
  const TrainOptions huge{.learning_rate = 1e-3, .scale_loss = true, .initial_scale = 1e30};
  Pupil untouched(c, nullptr, huge), overflowing(c, nullptr, huge);
  overflowing.step();
  EXPECT_EQ(overflowing.status().skipped, 1);
  EXPECT_EQ(overflowing.status().steps, 0);
  EXPECT_FLOAT_EQ(static_cast<float>(overflowing.status().scale), 0.5e30F);
  EXPECT_EQ(overflowing.gap(untouched), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceModels,
                         testing::Values(Kind{LayerKind::flash, Pattern::local},
                                         Kind{LayerKind::original, Pattern::local},
                                         Kind{LayerKind::original, Pattern::hierarchical},
                                         Kind{LayerKind::adaptive, Pattern::local},
                                         Kind{LayerKind::adaptive, Pattern::clustered},
                                         Kind{LayerKind::adaptive, Pattern::selected},
                                         Kind{LayerKind::adaptive, Pattern::automatic}),
                         [](const auto& at) {
                           return std::string(kind_name(at.param.kind)) + "_" +
                                  std::string(pattern_name(at.param.pattern));
                         });

}  // namespace
}  // namespace tilewise::asam
