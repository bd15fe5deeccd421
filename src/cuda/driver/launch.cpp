#include "cuda/driver/launch.h"

#include <array>
#include <limits>
#include <string>

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

constexpr std::int64_t kMaxGridX = std::numeric_limits<std::int32_t>::max();

}  // namespace

void launch_kernel(const Kernel& kernel, const Grid& grid, void* stream, const void* args) {
  if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0) return;
  if (grid.x > kMaxGridX) {
    throw DeviceError("a grid of " + std::to_string(grid.x) + " blocks does not fit cuda:" +
                      std::to_string(kernel.device) + "; at most " + std::to_string(kMaxGridX));
  }
  std::array<LaunchAttribute, 2> attributes{};
  LaunchConfig config;
  config.grid_x = static_cast<unsigned>(grid.x);
  config.grid_y = static_cast<unsigned>(grid.y);
  config.grid_z = static_cast<unsigned>(grid.z);
  config.block_x = static_cast<unsigned>(kernel.threads);
  config.shared_bytes = static_cast<unsigned>(kernel.shared_bytes);
  config.stream = static_cast<CUstream>(stream);
  config.attributes = attributes.data();
  if (grid.cluster > 1) {
    LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = LaunchAttribute::kClusterDimension;
    attribute.value.cluster = {static_cast<unsigned>(grid.cluster), 1, 1};
  }
  if (grid.overlap_previous) {
    LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = LaunchAttribute::kProgrammaticStreamSerialization;
    attribute.value.programmatic_serialization = 1;
  }
  const ContextScope scope(kernel.device);
  // The driver copies the parameters before it returns.
  void* parameters[] = {const_cast<void*>(args)};
  check(driver().cuLaunchKernelEx(&config, kernel.function, parameters, nullptr),
        "cuLaunchKernelEx", kernel.device);
}

}  // namespace tilewise::cuda
