/// Quotas of control groups, read below a folder that stands for the root.
#include "cpu/cgroup.h"

#include <gtest/gtest.h>

#include <fstream>

namespace tilewise::cpu {
namespace {

namespace fs = std::filesystem;

class QuotaCpus : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / ("tilewise_cgroup_" + std::string(test->name()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }

  fs::path root_;
};

TEST_F(QuotaCpus, NoGroupsAreNoQuota) { EXPECT_EQ(quota_cpus(root_), 0); }

TEST_F(QuotaCpus, UnifiedQuotaIsRoundedDownAndAtLeastOne) {
  write("proc/self/cgroup", "0::/");
  const fs::path file = "sys/fs/cgroup/cpu.max";
  for (const auto& [text, cpus] :
       {std::pair{"max 100000", 0}, std::pair{"50000 100000", 1}, std::pair{"150000 100000", 1},
        std::pair{"400000 100000", 4}, std::pair{"399999 100000", 3}, std::pair{"garbage", 0}}) {
    write(file, text);
    EXPECT_EQ(quota_cpus(root_), cpus) << text;
  }
}

TEST_F(QuotaCpus, TheLeastOfAGroupAndThoseAboveIt) {
  write("proc/self/cgroup", "0::/pod/container");
  write("sys/fs/cgroup/pod/container/cpu.max", "800000 100000");
  EXPECT_EQ(quota_cpus(root_), 8);
  write("sys/fs/cgroup/pod/cpu.max", "300000 100000");
  EXPECT_EQ(quota_cpus(root_), 3);
}

TEST_F(QuotaCpus, VersionOneHasAFileEach) {
  write("proc/self/cgroup", "9:cpuset:/c\n4:cpu,cpuacct:/c\n1:name=systemd:/c");
  const fs::path group = "sys/fs/cgroup/cpu,cpuacct/c";
  write(group / "cpu.cfs_period_us", "100000");
  write(group / "cpu.cfs_quota_us", "-1");
  EXPECT_EQ(quota_cpus(root_), 0);
  write(group / "cpu.cfs_quota_us", "250000");
  EXPECT_EQ(quota_cpus(root_), 2);
}

TEST_F(QuotaCpus, AContainerSeesTheHostsPathButItsOwnMount) {
  write("proc/self/cgroup", "4:cpu:/docker/0123");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000");
  EXPECT_EQ(quota_cpus(root_), 1);
}

}  // namespace
}  // namespace tilewise::cpu
