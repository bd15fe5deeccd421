// The driver's side that needs no GPU: what is said without one, which tensors TMA can express.
#include <gtest/gtest.h>

#include "cuda/driver/device.h"
#include "cuda/driver/library.h"
#include "cuda/driver/tensor_map.h"
#include "tilewise/attention.h"

namespace tilewise::cuda {
namespace {

TEST(SharedLibrary, SaysWhatWasLookedFor) {
  SharedLibrary library;
  const std::vector<std::string> names = {"libno_such_library.so.1"};
  EXPECT_FALSE(library.open(names));
  EXPECT_NE(library.error().find("libno_such_library.so.1"), std::string::npos) << library.error();
}

TEST(SharedLibrary, NamesTheMissingFunction) {
  SharedLibrary library;
  const std::vector<std::string> names = {"libm.so.6"};
  ASSERT_TRUE(library.open(names));
  double (*cosine)(double) = nullptr;
  EXPECT_TRUE(library.resolve("cos", cosine));
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_FALSE(library.resolve("no_such_function", cosine));
  EXPECT_NE(library.error().find("no_such_function"), std::string::npos);
}

TEST(Devices, MissingOnesAreNamed) {
  const int beyond = device_count();
  const Device device{DeviceType::cuda, beyond};
  try {
    tilewise::hardware(device);
    FAIL() << "there is a " << device_name(device);
  } catch (const DeviceError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(device_name(device)), std::string::npos) << message;
    if (beyond == 0) {
      EXPECT_NE(message.find(missing_driver_reason()), std::string::npos);
      EXPECT_FALSE(missing_driver_reason().empty());
    }
  }
}

TEST(Devices, MemoryOfAMissingOneIsAnError) {
  const Device device{DeviceType::cuda, device_count()};
  EXPECT_THROW(default_allocator().allocate(256, device, nullptr), DeviceError);
}

TensorMapSpec good_spec() {
  const Tensor t = Tensor::bshd(nullptr, DType::bfloat16, 2, 300, 4, 64, {DeviceType::cuda, 0});
  return attention_tensor_map(t, 64, 128);
}

TEST(TensorMap, AxesAreFastestFirst) {
  const TensorMapSpec spec = good_spec();
  EXPECT_EQ(spec.sizes, (std::array<std::int64_t, 5>{64, 4, 300, 2, 0}));
  EXPECT_EQ(spec.strides[1], 64 * 2);
  EXPECT_EQ(spec.strides[2], 4 * 64 * 2);
  EXPECT_EQ(spec.strides[3], 300 * 4 * 64 * 2);
  EXPECT_EQ(spec.box, (std::array<std::int32_t, 5>{64, 1, 128, 1, 0}));
  EXPECT_EQ(tensor_map_refusal(spec), "");
}

TEST(TensorMap, RefusesWhatTmaCannotExpress) {
  const auto refuses = [](auto&& change) {
    TensorMapSpec spec = good_spec();
    change(spec);
    return !tensor_map_refusal(spec).empty();
  };
  alignas(16) static char bytes[32];
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.data = bytes + 8; }));
  EXPECT_FALSE(refuses([](TensorMapSpec& s) { s.data = bytes + 16; }));
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.strides[1] = 40; }));
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.strides[2] = -128; }));
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.strides[3] = std::int64_t{1} << 40; }));
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.sizes[2] = 0; }));
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.box[2] = 257; }));
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.box[0] = 72; }));
  EXPECT_TRUE(refuses([](TensorMapSpec& s) { s.box[0] = 4; }));
}

}  // namespace
}  // namespace tilewise::cuda
