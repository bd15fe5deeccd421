/// CPUs that a container's control group gives this process.
#pragma once

#include <filesystem>

namespace tilewise::cpu {

/// CPUs that the CFS quotas of this process's control groups (version 1 and 2) and of those above
/// them leave, rounded down and at least 1; 0 when there is no quota. `root` is the folder that
/// holds proc and sys: the tests have their own.
int quota_cpus(const std::filesystem::path& root = "/");

}  // namespace tilewise::cpu
