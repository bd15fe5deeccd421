/// Exact sums of cuda/tile/exact_sum.cuh: against whole numbers of 128 bits, in any order.
#include "emulator.h"
//
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/tile/exact_sum.cuh"

namespace {

using namespace tilewise::tile;

int failures = 0;

double sum_of(const std::vector<float>& numbers, std::vector<u64>& words) {
  words.assign(ExactSum::kWords, 0);
  for (const float x : numbers) add_exactly(words.data(), x);
  return exact_sum(words.data());
}
void expect(const char* name, std::vector<float> numbers, double truth) {
  std::mt19937 random(3);
  std::vector<u64> words, other;
  const double sum = sum_of(numbers, words);
  std::shuffle(numbers.begin(), numbers.end(), random);
  sum_of(numbers, other);
  const bool same = std::isnan(truth) ? std::isnan(sum) : sum == truth;
  std::printf("%s %s: %.17g, expected %.17g\n", same && words == other ? "ok" : "FAILED", name, sum,
              truth);
  failures += same && words == other ? 0 : 1;
}

}  // namespace

int main() {
  const float inf = INFINITY;
  expect("nothing", {}, 0.0);
  expect("large ones that cancel", {0x1p127F, 1.0F, 0x1p-149F, -0x1p127F}, 1.0 + 0x1p-149);
  expect("a negative rest", {0x1p100F, -3.5F, -0x1p100F}, -3.5);
  expect("the largest", {3.4028234e38F, 3.4028234e38F}, 2.0 * double{3.4028234e38F});
  expect("subnormal ones", {0x1p-149F, 0x1p-140F, -0x1p-148F}, 0x1p-140 - 0x1p-149);
  expect("infinite", {1.0F, inf, 2.0F}, INFINITY);
  expect("infinite and negative", {1.0F, -inf}, -INFINITY);
  expect("infinite on both sides", {inf, -inf}, NAN);
  expect("no number", {1.0F, NAN}, NAN);
  std::mt19937 random(7);
  std::vector<float> numbers;
  __int128 whole = 0;  // in units of 2^-40
  for (int n = 0; n < 20000; ++n) {
    const int exponent = static_cast<int>(random() % 60) - 40;
    const float x =
        std::ldexp(static_cast<float>(static_cast<int>(random() % 4096) - 2048), exponent);
    numbers.push_back(x);
    whole += static_cast<__int128>(std::ldexp(static_cast<double>(x), 40));
  }
  const auto truth = static_cast<double>(static_cast<long double>(whole) * 0x1p-40L);
  expect("many", numbers, truth);
  return failures == 0 ? 0 : 1;
}
