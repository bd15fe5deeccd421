/// What emulated layer_steps programs share: the kernels, numbers, a launch, a comparison.
#pragma once

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

// One block runs at a time, so that its threads share what is static.
#undef __shared__
#define __shared__ static

// CUDA's own functions stand in this namespace here.
namespace tilewise::tile {}
namespace tilewise::layer_steps {
using namespace tilewise::tile;
}

#include "cuda/kernels/layers/choice.cuh"
#include "cuda/kernels/layers/pools.cuh"
#include "cuda/kernels/layers/training.cuh"
// A product's shared memory is dynamic.
#undef __shared__
#define __shared__
#include "cuda/kernels/layers/product.cuh"
#include "layers/cpu_ops.h"
#include "layers/cuda_ops.h"
#include "layers/pools.h"
#include "problem/philox.h"

namespace tilewise::layer_steps {
alignas(1024) unsigned char product_memory[product_shared(64)];
}

namespace {

using namespace tilewise;
namespace asam = tilewise::asam;
namespace steps = tilewise::layer_steps;

constexpr steps::Config kConfig;
int failures = 0;
std::mt19937 random_bits(3);

std::vector<float> draw(std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = normal(random_bits);
  return x;
}
std::vector<float> nans(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), NAN);
}

template <class Kernel>
void run(std::int64_t blocks, const Kernel& kernel) {
  emulator::grid_size.x = static_cast<unsigned>(blocks);
  for (std::int64_t b = 0; b < blocks; ++b) {
    emulator::run_block(static_cast<unsigned>(b), steps::kThreads, kernel);
  }
}

template <class T>
void compare(const char* what, const std::vector<T>& ours, const std::vector<T>& expected,
             double bound = 1e-5) {
  double worst = ours.size() == expected.size() ? 0.0 : 1e30;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto a = static_cast<double>(ours[i]), b = static_cast<double>(expected[i]);
    const double error = std::abs(a - b) / (1.0 + std::abs(b));
    worst = std::max(worst, std::isnan(error) ? 1e30 : error);
  }
  const bool good = worst <= bound;
  std::printf("%s %s: off by %.1e\n", good ? "ok" : "FAILED", what, worst);
  failures += good ? 0 : 1;
}

asam::CpuOps<float>& cpu() {
  static asam::CpuOps<float> ops(default_executor());
  return ops;
}

}  // namespace
