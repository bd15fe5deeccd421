#include "api/machine.h"

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

}  // namespace tilewise
