/// dbias where no sequence is: a bias that broadcasts over an empty batch still has elements, and
/// they are 0.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tilewise/attention.h"

namespace tilewise {
namespace {

TEST(BiasGradient, IsZeroWithoutSequences) {
  std::vector<std::int32_t> offsets{0};
  std::vector<float> rows(8, 1.0F);
  std::vector<float> bias(3, 0.5F);
  std::vector<float> dbias(3, NAN);
  const auto packed = [&](std::int64_t total) {
    return Tensor::packed(rows.data(), DType::float32, total, 1, 4);
  };
  const auto vector = [](std::vector<float>& x) {
    return Tensor::contiguous(x.data(), DType::float32,
                              {1, 1, static_cast<std::int64_t>(x.size())});
  };
  AttentionSpec spec;
  spec.cu_seqlens_q = spec.cu_seqlens_k = Tensor::contiguous(offsets.data(), DType::int32, {1});
  spec.max_seqlen_q = 2;
  spec.max_seqlen_k = 3;
  spec.bias = vector(bias);
  std::vector<float> lse(1);
  const Tensor statistics = Tensor::contiguous(lse.data(), DType::float32, {1, 0});
  BackwardTensors t;
  t.q = t.k = t.v = t.o = t.d_o = t.dq = t.dk = t.dv = packed(0);
  t.lse = statistics;
  t.dbias = vector(dbias);
  backward(t, spec);
  EXPECT_EQ(dbias, std::vector<float>(3, 0.0F));
}

}  // namespace
}  // namespace tilewise
