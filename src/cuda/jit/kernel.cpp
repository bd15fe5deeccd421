#include "cuda/jit/kernel.h"

#include <deque>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "cuda/jit/pack.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

/// Compared by what it points to: looking a kernel up copies no text.
struct LoadedKey {
  const KernelUnit* unit;
  int device = 0;
  bool operator==(const LoadedKey& other) const {
    return device == other.device && *unit == *other.unit;
  }
};

struct LoadedKeyHash {
  std::size_t operator()(const LoadedKey& key) const {
    const std::hash<std::string> hash;
    // Stems and entries have few values, configs many; what else differs is left to the comparison.
    return hash(key.unit->config) * 31 + hash(key.unit->stem) * 7 + hash(key.unit->entry) +
           static_cast<std::size_t>(key.device);
  }
};

/// Kernels of this process. Never unloaded: functions handed out stay valid.
struct Table {
  std::shared_mutex mutex;
  std::deque<KernelUnit> units;  // what the keys point to
  std::unordered_map<LoadedKey, Kernel, LoadedKeyHash> kernels;
};

Table& table() {
  static Table& kept = *new Table;
  return kept;
}

/// Architectures whose machine code a device runs: its own, then older ones of the same generation.
std::vector<int> runnable_archs(int arch) {
  std::vector<int> archs = {arch};
  // NOTE: sm_90a code runs on 9.0 only; arch_name() makes it for 90 alone, and nothing is older in
  // its generation.
  for (int older = arch - 1; older >= arch / 10 * 10; --older) archs.push_back(older);
  return archs;
}

/// Loads machine code into the current context. False when the driver does not take it.
bool load_module(const KernelEntry& entry, CUfunction* function) {
  const Driver& d = driver();
  CUmodule module = nullptr;
  const CUresult result = d.cuModuleLoadData(&module, entry.cubin.data());
  if (result == kCudaOutOfMemory) check(result, "cuModuleLoadData");
  return result == kCudaSuccess &&
         d.cuModuleGetFunction(function, module, entry.name.c_str()) == kCudaSuccess;
}

CUfunction load_packed(const KernelUnit& unit, int arch) {
  CUfunction function = nullptr;
  for (const int candidate : runnable_archs(arch)) {
    const std::optional<KernelEntry> entry = installed_pack().read(unit_key(unit, candidate));
    if (entry && load_module(*entry, &function)) return function;
  }
  return nullptr;
}

CUfunction load_compiled(const KernelUnit& unit, int arch) {
  CUfunction function = nullptr;
  const DiskCache cache(default_cache_folder());
  bool cached = false;
  if (load_module(compile_through(unit, arch, cache, &cached), &function)) return function;
  if (cached) {
    // An entry that reads well and does not load: another driver's, say. What is compiled now
    // replaces it.
    const KernelEntry fresh = make_entry(unit, arch, compile(unit, arch));
    if (load_module(fresh, &function)) {
      cache.write(fresh);
      return function;
    }
  }
  throw DeviceError("the driver (CUDA " + driver_version() + ") does not load kernel " +
                    unit.name() + " {" + unit.config + "} for " + arch_name(arch));
}

Kernel load_new(const KernelUnit& unit, int device) {
  const ContextScope scope(device);
  const int arch = device_arch(device);
  Kernel kernel;
  kernel.device = device;
  kernel.threads = unit.threads;
  kernel.shared_bytes = unit.shared_bytes;
  kernel.function = load_packed(unit, arch);
  if (kernel.function == nullptr) kernel.function = load_compiled(unit, arch);
  if (unit.shared_bytes > 0) {
    check(driver().cuFuncSetAttribute(kernel.function, FunctionAttribute::max_dynamic_shared_bytes,
                                      unit.shared_bytes),
          "cuFuncSetAttribute", device);
  }
  return kernel;
}

}  // namespace

Kernel load(const KernelUnit& unit, int device) {
  Table& loaded = table();
  const LoadedKey key{&unit, device};
  {
    const std::shared_lock lock(loaded.mutex);
    const auto found = loaded.kernels.find(key);
    if (found != loaded.kernels.end()) return found->second;
  }
  // Outside the lock: compiling takes long. Two threads may load the same kernel; one of them is
  // kept.
  const Kernel kernel = load_new(unit, device);
  const std::unique_lock lock(loaded.mutex);
  loaded.units.push_back(unit);
  return loaded.kernels.emplace(LoadedKey{&loaded.units.back(), device}, kernel).first->second;
}

}  // namespace tilewise::cuda
