/// The machine at hand, looked at once per device.
#pragma once

#include "plan/tuning.h"
#include "tilewise/plan.h"

namespace tilewise {

/// Kept for the life of the process. Throws DeviceError.
const Hardware& machine_at_hand(Device device);

/// The results of `tilewise tune` on this machine, read once. Null with TILEWISE_TUNING=off.
const Tuning* tuning_at_hand(const Hardware& machine);

/// Under which such a file is true.
std::string identity_at_hand(const Hardware& machine);

}  // namespace tilewise
