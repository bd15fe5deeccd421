#include "tilewise/dlpack.h"

#include <gtest/gtest.h>

namespace tilewise {
namespace {

// The layouts of the DLPack 1.0 specification on a 64-bit machine.
static_assert(sizeof(dlpack::View) == 48 && alignof(dlpack::View) == 8);
static_assert(sizeof(dlpack::ManagedView) == 64);
static_assert(sizeof(dlpack::ManagedViewVersioned) == 80);

TEST(Dlpack, RoundTripKeepsEverything) {
  float data[24];
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16,
                            DType::boolean, DType::uint8, DType::int32, DType::int64}) {
    Tensor t = Tensor::bshd(data, dtype, 1, 2, 3, 4);
    t.device = {DeviceType::cuda, 3};
    dlpack::ManagedViewVersioned* managed = dlpack::to_dlpack(t);
    const Tensor back = dlpack::from_dlpack(*managed, true);
    EXPECT_EQ(back.data, t.data);
    EXPECT_EQ(back.dtype, dtype);
    EXPECT_EQ(back.device, t.device);
    EXPECT_EQ(back.rank, 4);
    EXPECT_EQ(back.sizes, t.sizes);
    EXPECT_EQ(back.strides, t.strides);
    managed->deleter(managed);
  }
}

TEST(Dlpack, ReleasesOnce) {
  int released = 0;
  float data[1];
  auto* managed = dlpack::to_dlpack(Tensor::contiguous(data, DType::float32, {1}), &released,
                                    [](void* count) { ++*static_cast<int*>(count); });
  EXPECT_EQ(released, 0);
  managed->deleter(managed);
  EXPECT_EQ(released, 1);
}

TEST(Dlpack, ReadsNullStridesAndByteOffset) {
  float data[8];
  std::int64_t sizes[] = {2, 3};
  const dlpack::View view{data, {}, 2, {}, sizes, nullptr, 8};
  const Tensor t = dlpack::from_dlpack(view);
  EXPECT_EQ(t.data, data + 2);
  EXPECT_EQ(t.strides[0], 3);
  EXPECT_EQ(t.strides[1], 1);
}

TEST(Dlpack, RefusesByName) {
  float data[1];
  std::int64_t sizes[] = {1, 1, 1, 1, 1};
  dlpack::ManagedViewVersioned managed{.view = {data, {}, 1, {}, sizes, nullptr, 0}};
  EXPECT_NO_THROW(dlpack::from_dlpack(managed, true, "q"));
  managed.flags = dlpack::kReadOnly;
  EXPECT_NO_THROW(dlpack::from_dlpack(managed, false, "q"));
  EXPECT_THROW(dlpack::from_dlpack(managed, true, "q"), InvalidArgument);
  managed.version.major = 2;
  EXPECT_THROW(dlpack::from_dlpack(managed, false, "q"), InvalidArgument);
  dlpack::View view = managed.view;
  view.rank = 5;
  EXPECT_THROW(dlpack::from_dlpack(view, "q"), InvalidArgument);
  view.rank = 1;
  view.dtype.lanes = 4;
  try {
    dlpack::from_dlpack(view, "q");
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_EQ(std::string(e.what()).rfind("q (DLPack)", 0), 0U) << e.what();
  }
  view.dtype.lanes = 1;
  view.device.type = static_cast<dlpack::DeviceCode>(10);  // ROCm
  EXPECT_THROW(dlpack::from_dlpack(view, "q"), InvalidArgument);
  std::int64_t huge[] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  view = {data, {}, 2, {}, huge, nullptr, 0};
  EXPECT_THROW(dlpack::from_dlpack(view, "q"), InvalidArgument);
}

}  // namespace
}  // namespace tilewise
