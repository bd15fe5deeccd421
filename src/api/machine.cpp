#include "api/machine.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "cpu/micro/isa.h"
#include "cuda/driver/device.h"

namespace tilewise {

const Hardware& machine_at_hand(Device device) {
  if (device.type == DeviceType::cpu) {
    if (device.index != 0) {
      throw DeviceError("device cpu:" + std::to_string(device.index) +
                        " does not exist: the CPU is one device, index 0");
    }
    static const Hardware cpu = cpu::describe_cpu();
    return cpu;
  }
  return cuda::hardware(device.index);
}

Hardware hardware(Device device) { return machine_at_hand(device); }

namespace {

struct Tunings {
  std::mutex mutex;
  std::map<std::string, Tuning> by_path;
};
/// Never destroyed: a thread may still be in a call while the process ends.
Tunings& tunings() {
  static Tunings& kept = *new Tunings;
  return kept;
}

}  // namespace

const Tuning* tuning_at_hand(const Hardware& machine) {
  const char* word = std::getenv("TILEWISE_TUNING");
  if (word != nullptr && std::string_view(word) == "off") return nullptr;
  const std::string path = tuning_path(machine);
  Tunings& kept = tunings();
  const std::scoped_lock lock(kept.mutex);
  const auto at = kept.by_path.find(path);
  if (at != kept.by_path.end()) return &at->second;
  Tuning read = Tuning::read(path, identity_at_hand(machine));
  return &kept.by_path.emplace(path, std::move(read)).first->second;
}

std::string identity_at_hand(const Hardware& machine) {
  const bool cuda = machine.device.type == DeviceType::cuda;
  return tuning_identity(machine, cuda ? cuda::driver_version() : "");
}

}  // namespace tilewise
