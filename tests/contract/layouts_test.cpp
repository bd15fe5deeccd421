/// Strides: CONTRACT 16.
#include <algorithm>

#include "contract/harness.h"
#include "reference/elements.h"

namespace tilewise::contract {
namespace {

/// A tensor whose memory has the axes in another order, and every other element of its innermost
/// axis.
class Scattered {
 public:
  Scattered(DType dtype, const Sizes& sizes, const std::vector<std::size_t>& order,
            std::int64_t step)
      : memory_(dtype, {product(sizes) * step}) {
    tensor_ = memory_.tensor();
    tensor_.rank = static_cast<int>(sizes.size());
    std::int64_t stride = step;
    for (std::size_t n = order.size(); n-- > 0;) {
      tensor_.sizes[order[n]] = sizes[order[n]];
      tensor_.strides[order[n]] = stride;
      stride *= sizes[order[n]];
    }
  }
  Scattered(DType dtype, const Sizes& sizes, const std::vector<std::size_t>& order,
            std::int64_t step, const Values& values)
      : Scattered(dtype, sizes, order, step) {
    reference::from_double(tensor_, values);
  }
  Tensor tensor() const { return tensor_; }
  Values values() const { return reference::to_double(tensor_); }

 private:
  static std::int64_t product(const Sizes& sizes) {
    std::int64_t n = 1;
    for (const std::int64_t size : sizes) n *= size;
    return n;
  }
  Owned memory_;
  Tensor tensor_;
};

struct Layout {
  std::vector<std::size_t> order;
  std::int64_t step;
};
/// BSHD, (B, H, D, S), and BHSD with gaps.
const std::vector<Layout> kLayouts{{{0, 2, 1, 3}, 1}, {{0, 1, 3, 2}, 1}, {{0, 1, 2, 3}, 2}};

Trial odd_sizes(DType dtype) { return trial(dtype, 1, 2, 2, 33, 33, 40, 40).fill(30); }

TEST_P(Forward, C062AnyStrides) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Trial s = odd_sizes(dtype);
    const Results expected = run(s);
    for (const Layout& l : kLayouts) {
      const Sizes sizes{1, 2, 33, 40};
      Scattered q(dtype, sizes, l.order, l.step, s.q), k(dtype, sizes, l.order, l.step, s.k);
      Scattered v(dtype, sizes, l.order, l.step, s.v), o(dtype, sizes, l.order, l.step);
      Scattered lse(DType::float32, {1, 2, 33}, {0, 2, 1}, l.step);
      run_forward({.q = q.tensor(),
                   .k = k.tensor(),
                   .v = v.tensor(),
                   .o = o.tensor(),
                   .lse = lse.tensor(),
                   .saved = {}},
                  s.spec, GetParam().kernel);
      expect_near(o.values(), expected.o, dtype == DType::float32 ? 1e-6 : 0.01, "O");
      expect_near(lse.values(), expected.lse, 1e-5, "LSE");
    }
  }
}

/// Backward with the given dO on contiguous tensors and scattered gradients.
Results backward_with(const Trial& s, const Row& row, Tensor d_o, const Layout& l) {
  const Sizes sizes{2, 2, 49, 32};
  Owned q(s.dtype, sizes, s.q), k(s.dtype, sizes, s.k), v(s.dtype, sizes, s.v), o(s.dtype, sizes);
  Owned lse(DType::float32, {2, 2, 49});
  run_forward({.q = q.tensor(),
               .k = k.tensor(),
               .v = v.tensor(),
               .o = o.tensor(),
               .lse = lse.tensor(),
               .saved = {}},
              s.spec, "reference_fwd");
  Scattered dq(s.dtype, sizes, l.order, l.step), dk(s.dtype, sizes, l.order, l.step);
  Scattered dv(s.dtype, sizes, l.order, l.step);
  BackwardTensors t{.q = q.tensor(),
                    .k = k.tensor(),
                    .v = v.tensor(),
                    .o = o.tensor(),
                    .lse = lse.tensor(),
                    .d_o = d_o,
                    .d_lse = {},
                    .dq = dq.tensor(),
                    .dk = dk.tensor(),
                    .dv = dv.tensor(),
                    .dbias = {},
                    .dsinks = {},
                    .saved = {}};
  run_backward(t, s.spec, row.kernel);
  Results r;
  r.dq = dq.values();
  r.dk = dk.values();
  r.dv = dv.values();
  return r;
}

TEST_P(Backward, C063TheStridesOfTheOutputGradient) {
  Trial s = trial(DType::float32, 2, 2, 2, 49, 49, 32, 32).fill(31);
  const auto expect_same = [&](Tensor d_o, const Layout& l) {
    s.d_o = reference::to_double(d_o);
    const Results expected = run(s);
    const Results r = backward_with(s, GetParam(), d_o, l);
    expect_near(r.dq, expected.dq, 1e-5, "dQ");
    expect_near(r.dk, expected.dk, 1e-5, "dK");
    expect_near(r.dv, expected.dv, 1e-5, "dV");
  };
  const Sizes sizes{2, 2, 49, 32};
  for (const Layout& l : kLayouts) {
    Scattered d_o(DType::float32, sizes, l.order, l.step, randn(2 * 2 * 49 * 32, 99));
    expect_same(d_o.tensor(), l);
  }
  Owned one(DType::float32, {1}, {1.0});
  Tensor ones = one.tensor();  // as the gradient of a sum comes: one element, all strides 0
  ones.rank = 4;
  ones.sizes = {2, 2, 49, 32};
  ones.strides = {0, 0, 0, 0};
  expect_same(ones, kLayouts[0]);
}

TEST_P(Forward, C068MasksWithStridesTwoAndZero) {
  constexpr std::int64_t kQueries = 20, kKeys = 30;
  Trial s = trial(DType::float32, 1, 1, 1, kQueries, kKeys, 16, 16).fill(32);
  std::vector<bool> visible;
  for (std::int64_t n = 0; n < kQueries * kKeys; ++n)
    visible.push_back((n * 7 + n / kKeys) % 5 < 3);
  Owned dense = booleans({kQueries, kKeys}, visible);
  s.spec.mask = dense.tensor();
  const Results expected = run(s);

  std::vector<bool> interleaved;  // rows in between say the opposite
  for (std::int64_t i = 0; i < kQueries; ++i) {
    for (const bool opposite : {false, true}) {
      for (std::int64_t j = 0; j < kKeys; ++j) {
        interleaved.push_back(visible[static_cast<std::size_t>(i * kKeys + j)] != opposite);
      }
    }
  }
  Owned twice = booleans({2 * kQueries, kKeys}, interleaved);
  Tensor every_other = twice.tensor();
  every_other.sizes[0] = kQueries;
  every_other.strides[0] = 2 * kKeys;
  s.spec.mask = every_other;
  expect_near(run(s).o, expected.o, 0.0, "O, stride 2");

  Owned row = booleans({1, kKeys}, {visible.begin(), visible.begin() + kKeys});
  s.spec.mask = row.tensor();
  const Results broadcast = run(s);
  Tensor repeated = row.tensor();
  repeated.sizes[0] = kQueries;
  repeated.strides[0] = 0;
  s.spec.mask = repeated;
  expect_near(run(s).o, broadcast.o, 0.0, "O, stride 0");
}

/// K and V shared by all heads and the batch through strides of 0.
TEST_P(Forward, KeysThatAreBroadcast) {
  Trial s = trial(DType::float32, 2, 2, 2, 10, 12, 16, 16).fill(33);
  Owned k(DType::float32, {12, 16}, slice(s.k, 0, 192)),
      v(DType::float32, {12, 16}, slice(s.v, 0, 192));
  for (int copy = 1; copy < 4; ++copy) {
    std::copy_n(s.k.begin(), 192, s.k.begin() + copy * 192);
    std::copy_n(s.v.begin(), 192, s.v.begin() + copy * 192);
  }
  const auto expand = [](Tensor t) {
    t.rank = 4;
    t.sizes = {2, 2, 12, 16};
    t.strides = {0, 0, 16, 1};
    return t;
  };
  Owned q(DType::float32, {2, 2, 10, 16}, s.q), o(DType::float32, {2, 2, 10, 16});
  run_forward({.q = q.tensor(),
               .k = expand(k.tensor()),
               .v = expand(v.tensor()),
               .o = o.tensor(),
               .lse = {},
               .saved = {}},
              s.spec, GetParam().kernel);
  expect_near(o.values(), run(s).o, 1e-6, "O");
}

}  // namespace
}  // namespace tilewise::contract
