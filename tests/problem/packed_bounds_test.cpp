#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "problem/problem.h"

namespace tilewise {
namespace {

/// What make_problem says of packed tensors with a mask without columns, or "accepted". `hidden`:
/// the host cannot read the offsets, as on a device.
std::string without_keys(bool hidden, std::int64_t max_k, std::vector<std::int32_t> k_offsets,
                         std::int64_t rows_k = 10) {
  std::vector<std::int32_t> q_offsets = {0, 4, 10};
  std::vector<float> memory(200), output(200);
  const Tensor q = Tensor::packed(memory.data(), DType::float32, 10, 2, 4);
  const Tensor k = Tensor::packed(memory.data(), DType::float32, rows_k, 2, 4);
  const Tensor o = Tensor::packed(output.data(), DType::float32, 10, 2, 4);
  AttentionSpec spec;
  spec.cu_seqlens_q = Tensor::contiguous(q_offsets.data(), DType::int32, {3});
  spec.cu_seqlens_k = Tensor::contiguous(k_offsets.data(), DType::int32, {3});
  spec.max_seqlen_q = 6;
  spec.max_seqlen_k = max_k;
  spec.mask = Tensor::contiguous(nullptr, DType::boolean, {1, 10, 0});
  if (hidden) spec.cu_seqlens_q.data = spec.cu_seqlens_k.data = nullptr;
  try {
    const Purpose purpose = hidden ? Purpose::plan : Purpose::run;
    const Problem p = make_problem(ForwardTensors{q, k, k, o, {}, {}}, spec, purpose);
    EXPECT_EQ(p.seq_q, 6);
    EXPECT_EQ(p.seq_k, 0);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "accepted";
}

TEST(PackedBounds, SayThatNoSequenceHasAKey) {
  for (const bool hidden : {false, true}) {
    EXPECT_EQ(without_keys(hidden, kNoRows, {0, 0, 0}), "accepted");
    EXPECT_EQ(without_keys(hidden, -2, {0, 0, 0}),
              "max_seqlen_k is -2: it must be >= 0, or -1 where no sequence has a row");
    EXPECT_EQ(without_keys(hidden, 0, {0, 0, 0}, 0), "accepted") << "the tensor has no row";
  }
  EXPECT_EQ(without_keys(false, 0, {0, 0, 0}), "accepted") << "read from the offsets";
  EXPECT_NE(without_keys(true, 0, {0, 0, 0}).find("must be given"), std::string::npos);
  EXPECT_EQ(without_keys(false, kNoRows, {0, 0, 3}),
            "max_seqlen_k is -1: the longest sequence has 3 rows");
}

}  // namespace
}  // namespace tilewise
