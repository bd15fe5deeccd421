#include "cuda/driver/device.h"

#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "cuda/driver/driver.h"

namespace tilewise::cuda {
namespace {

/// Share of the peak rates that kernels reach over long runs; the plan's numbers are sustained
/// ones.
constexpr double kSustainedMatrix = 0.65;
constexpr double kSustainedFloat32 = 0.85;
constexpr double kSustainedBandwidth = 0.9;
/// One kernel after another on a stream, microseconds.
constexpr double kLaunchMicroseconds = 3.0;

struct DeviceState {
  CUdevice handle = 0;
  Hardware hardware;
  std::once_flag retained;
  CUcontext context = nullptr;
};

struct DeviceList {
  std::vector<std::unique_ptr<DeviceState>> devices;
  std::string reason;  // why there are none
};

int attribute(const Driver& d, DeviceAttribute which, CUdevice device) {
  int value = 0;
  check(d.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

/// bf16 multiply-adds with float32 accumulation of one multiprocessor in a clock, from the vendor's
/// architecture papers. GeForce cards of these generations run them at half the rate of their
/// professional twins.
double matrix_fma_per_clock(int arch, std::string_view name) {
  const bool half_rate = name.find("GeForce") != std::string_view::npos;
  if (arch >= 120) return half_rate ? 256 : 512;
  if (arch >= 100) return 4096;
  if (arch >= 90) return 2048;
  if (arch == 80) return 1024;
  return half_rate ? 256 : 512;
}

Hardware read_hardware(const Driver& d, int index, CUdevice device) {
  Hardware hw;
  hw.device = {DeviceType::cuda, index};
  std::array<char, 256> name{};
  check(d.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName");
  hw.name = name.data();
  std::size_t bytes = 0;
  check(d.cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem");
  hw.memory_bytes = static_cast<std::int64_t>(bytes);
  hw.arch = 10 * attribute(d, DeviceAttribute::capability_major, device) +
            attribute(d, DeviceAttribute::capability_minor, device);
  hw.multiprocessors = attribute(d, DeviceAttribute::multiprocessors, device);
  hw.shared_kib = attribute(d, DeviceAttribute::shared_bytes_per_block_optin, device) / 1024;
  hw.l2_bytes = attribute(d, DeviceAttribute::l2_bytes, device);

  const double clock_hz = 1e3 * attribute(d, DeviceAttribute::clock_rate_khz, device);
  const double tera_per_fma = 2e-12 * clock_hz * hw.multiprocessors;
  hw.matrix_tflops = kSustainedMatrix * tera_per_fma * matrix_fma_per_clock(hw.arch, hw.name);
  hw.float32_tflops = kSustainedFloat32 * tera_per_fma * (hw.arch == 80 ? 64 : 128);
  // Two transfers a memory clock.
  hw.bandwidth_gbps = kSustainedBandwidth * 2e-6 *
                      attribute(d, DeviceAttribute::memory_clock_khz, device) *
                      (attribute(d, DeviceAttribute::memory_bus_bits, device) / 8.0);
  hw.launch_us = kLaunchMicroseconds;
  return hw;
}

DeviceList list_devices() {
  DeviceList list;
  const Driver* d = find_driver(&list.reason);
  if (d == nullptr) return list;
  int count = 0;
  const CUresult result = d->cuDeviceGetCount(&count);
  if (result != kCudaSuccess || count == 0) {
    list.reason = "the NVIDIA driver reports no device: " +
                  describe_error(result == kCudaSuccess ? kCudaNoDevice : result);
    return list;
  }
  for (int i = 0; i < count; ++i) {
    auto state = std::make_unique<DeviceState>();
    check(d->cuDeviceGet(&state->handle, i), "cuDeviceGet", i);
    state->hardware = read_hardware(*d, i, state->handle);
    list.devices.push_back(std::move(state));
  }
  return list;
}

const DeviceList& device_list() {
  static const DeviceList list = list_devices();
  return list;
}

DeviceState& device_state(int device) {
  const DeviceList& list = device_list();
  if (device >= 0 && device < static_cast<int>(list.devices.size())) {
    return *list.devices[static_cast<std::size_t>(device)];
  }
  const std::string name = "cuda:" + std::to_string(device);
  if (list.devices.empty()) throw DeviceError(name + " cannot be used: " + list.reason);
  throw DeviceError(
      name + " does not exist; devices: cuda:0 to cuda:" + std::to_string(list.devices.size() - 1));
}

CUcontext primary_context(int device) {
  DeviceState& state = device_state(device);
  std::call_once(state.retained, [&] {
    check(driver().cuDevicePrimaryCtxRetain(&state.context, state.handle),
          "cuDevicePrimaryCtxRetain", device);
  });
  return state.context;
}

}  // namespace

int device_count() { return static_cast<int>(device_list().devices.size()); }

std::string missing_driver_reason() { return device_list().reason; }

std::string driver_version() {
  const Driver* d = find_driver(nullptr);
  int version = 0;
  if (d == nullptr || d->cuDriverGetVersion(&version) != kCudaSuccess) return {};
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

const Hardware& hardware(int device) { return device_state(device).hardware; }

int device_arch(int device) { return device_state(device).hardware.arch; }

ContextScope::ContextScope(int device) {
  const CUcontext wanted = primary_context(device);
  const Driver& d = driver();
  CUcontext current = nullptr;
  check(d.cuCtxGetCurrent(&current), "cuCtxGetCurrent", device);
  if (current == wanted) return;
  check(d.cuCtxPushCurrent(wanted), "cuCtxPushCurrent", device);
  pushed_ = true;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  driver().cuCtxPopCurrent(&popped);
}

}  // namespace tilewise::cuda
