/// The machine at hand, looked at once per device.
#pragma once

#include "tilewise/plan.h"

namespace tilewise {

/// Kept for the life of the process. Throws DeviceError.
const Hardware& machine_at_hand(Device device);

}  // namespace tilewise
