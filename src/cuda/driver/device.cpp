#include "cuda/driver/device.h"

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/driver/driver.h"
#include "plan/gpu_facts.h"

namespace tilewise::cuda {
namespace {

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

Hardware read_hardware(const Driver& d, int index, CUdevice device) {
  GpuFacts facts;
  std::array<char, 256> name{};
  check(d.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName");
  facts.name = name.data();
  std::size_t bytes = 0;
  check(d.cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem");
  facts.memory_bytes = static_cast<std::int64_t>(bytes);
  facts.arch = 10 * attribute(d, DeviceAttribute::capability_major, device) +
               attribute(d, DeviceAttribute::capability_minor, device);
  facts.multiprocessors = attribute(d, DeviceAttribute::multiprocessors, device);
  facts.shared_kib = attribute(d, DeviceAttribute::shared_bytes_per_block_optin, device) / 1024;
  facts.l2_bytes = attribute(d, DeviceAttribute::l2_bytes, device);
  facts.clock_mhz = 1e-3 * attribute(d, DeviceAttribute::clock_rate_khz, device);
  facts.matrix_fma_per_clock = matrix_fma_per_clock(facts.arch, facts.name);
  facts.float32_fma_per_clock = float32_fma_per_clock(facts.arch);
  // Two transfers a memory clock.
  facts.bandwidth_gbps = 2e-6 * attribute(d, DeviceAttribute::memory_clock_khz, device) *
                         (attribute(d, DeviceAttribute::memory_bus_bits, device) / 8.0);
  Hardware hw = sustained(facts);
  hw.device = {DeviceType::cuda, index};
  hw.at_hand = true;
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
