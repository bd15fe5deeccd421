#include "cpu/cgroup.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace tilewise::cpu {
namespace {

namespace fs = std::filesystem;

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

/// Version 2: "max 100000" or "50000 100000", quota and period in microseconds.
double unified_quota(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0.0;  // "max" is no number
  double period = 0.0;
  return file >> quota >> period && quota > 0.0 && period > 0.0 ? quota / period : kNoQuota;
}

/// Version 1: a file each, and a quota of -1 is none.
double controller_quota(const fs::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us");
  std::ifstream period_file(group / "cpu.cfs_period_us");
  double quota = 0.0;
  double period = 0.0;
  const bool read = quota_file >> quota && period_file >> period;
  return read && quota > 0.0 && period > 0.0 ? quota / period : kNoQuota;
}

/// The least quota of the group at `path` below `mount` and of those above it. In a container the
/// path may be the host's, which is not there: then the mount itself is the process's group.
template <class Quota>
double least(const fs::path& mount, const fs::path& path, const Quota& quota) {
  double found = quota(mount);
  fs::path group = mount;
  for (const fs::path& part : path.relative_path()) {
    group /= part;
    found = std::min(found, quota(group));
  }
  return found;
}

bool lists_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

int quota_cpus(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  double cpus = kNoQuota;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b" or "0::/a/b"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) {
      cpus = std::min(cpus, least(mounts, path, unified_quota));
    } else if (lists_cpu(controllers)) {
      for (const std::string& mount : {controllers, std::string("cpu")}) {
        cpus = std::min(cpus, least(mounts / mount, path, controller_quota));
      }
    }
  }
  if (cpus == kNoQuota) return 0;
  constexpr double kMost = 1 << 20;
  return static_cast<int>(std::clamp(cpus, 1.0, kMost));
}

}  // namespace tilewise::cpu
