// Memory that the caller gives beside the tensors: workspace and saved state. CONTRACT 19.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "problem/apart.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

constexpr std::int64_t kSeq = 24, kDim = 8;

/// One head; what a call says of its memory, and that it wrote nothing.
struct Call {
  std::vector<float> memory = std::vector<float>(1 << 18, 1.0F);
  std::vector<float> o = std::vector<float>(kSeq * kDim, 7.0F);
  AttentionSpec spec;
  Launch launch;
  SavedState saved;
  Choice choice = {.implementation = "eager"};

  Tensor tensor(float* data) const { return Tensor::bhsd(data, DType::float32, 1, 1, kSeq, kDim); }
  ForwardTensors tensors() {
    const Tensor q = tensor(memory.data());
    return {.q = q, .k = q, .v = q, .o = tensor(o.data()), .lse = {}, .saved = saved};
  }
  std::string complaint() {
    try {
      forward(tensors(), spec, launch, choice);
    } catch (const InvalidArgument& error) {
      for (const float x : o) EXPECT_EQ(x, 7.0F);
      return error.what();
    }
    return "";
  }
};

TEST(CallersMemory, WorkspaceSharesNothingWithTensors) {
  Call call;
  const std::int64_t bytes = plan(call.tensors(), {}, call.choice).workspace_bytes;
  ASSERT_GT(bytes, 0);
  call.launch.workspace_bytes = static_cast<std::int64_t>(call.memory.size() * sizeof(float));
  call.launch.workspace = call.memory.data();
  EXPECT_EQ(call.complaint(), "workspace shares memory with q: its " + std::to_string(bytes) +
                                  " bytes need their own memory");
  // Memory past what the kernel uses may be anybody's.
  std::vector<std::byte> apart(static_cast<std::size_t>(bytes));
  call.launch = {.workspace = apart.data(), .workspace_bytes = bytes + (std::int64_t{1} << 40)};
  EXPECT_EQ(call.complaint(), "");
}

TEST(CallersMemory, SavedStateIsThereAndSharesNothing) {
  Call call;
  call.saved.bytes = 1;
  const std::int64_t bytes = plan(call.tensors(), {}, call.choice).saved_bytes;
  ASSERT_GT(bytes, 1);
  EXPECT_EQ(call.complaint().rfind("saved.data is null", 0), 0U);
  call.saved = {call.memory.data(), bytes - 1};
  EXPECT_NE(call.complaint().find("needs at least " + std::to_string(bytes)), std::string::npos);
  call.saved = {call.memory.data(), bytes};
  EXPECT_EQ(call.complaint().rfind("saved shares memory with q", 0), 0U);
  call.choice = {.implementation = "flash"};  // saves nothing
  EXPECT_EQ(call.complaint(), "");
}

TEST(CallersMemory, BackwardNamesMissingSavedState) {
  Call call;
  std::vector<float> lse(kSeq), gradients(3 * kSeq * kDim);
  const Tensor q = call.tensor(call.memory.data()), o = call.tensor(call.o.data());
  float* next = gradients.data();
  const BackwardTensors t{.q = q,
                          .k = q,
                          .v = q,
                          .o = o,
                          .lse = Tensor::contiguous(lse.data(), DType::float32, {1, 1, kSeq}),
                          .d_o = o,
                          .dq = call.tensor(next),
                          .dk = call.tensor(next + kSeq * kDim),
                          .dv = call.tensor(next + 2 * kSeq * kDim),
                          .saved = {nullptr, 1 << 20}};
  EXPECT_THROW(backward(t, {}, {}, call.choice), InvalidArgument);
}

TEST(CallersMemory, AGpuNeedsItAligned) {
  alignas(256) std::byte memory[512];
  Problem p;
  p.device = {DeviceType::cuda, 0};
  EXPECT_NO_THROW(require_usable("workspace", memory, 256, p));
  EXPECT_THROW(require_usable("workspace", memory + 16, 256, p), InvalidArgument);
  p.device = {};
  EXPECT_NO_THROW(require_usable("workspace", memory + 16, 256, p));
}

TEST(CallersMemory, OutputsShareNothingWithOffsetsOrLists) {
  Call call;
  const auto offsets = [&](std::int64_t size) {
    return Tensor::contiguous(call.o.data(), DType::int32, {size});
  };
  std::fill(call.o.begin(), call.o.end(), 0.0F);  // as offsets: one empty sequence
  call.spec.cu_seqlens_q = call.spec.cu_seqlens_k = offsets(2);
  try {
    forward(call.tensors(), call.spec);
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("shares memory with cu_seqlens_q"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tilewise
