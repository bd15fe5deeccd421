#include "harness/environment.h"

#include <gtest/gtest.h>

#include <regex>

#include "tilewise/attention.h"

namespace tilewise {
namespace {

TEST(Environment, SaysWhereItRuns) {
  const Environment e = read_environment();
  EXPECT_EQ(e.library_version, version());
  EXPECT_TRUE(std::regex_match(e.date, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"))) << e.date;
  EXPECT_NE(e.host_os.find("Linux"), std::string::npos);
  EXPECT_FALSE(e.cpu.empty());
  EXPECT_GE(e.cpu_usable, 1);
  EXPECT_GE(e.cpu_count, e.cpu_usable);
  EXPECT_EQ(e.isa, hardware().isa);
  EXPECT_GT(e.memory_bytes, 0);
  EXPECT_FALSE(e.compiler.empty());
  EXPECT_FALSE(e.commit.empty());
  for (const Environment::Gpu& gpu : e.gpus) EXPECT_TRUE(gpu.arch.starts_with("sm_")) << gpu.name;
}

}  // namespace
}  // namespace tilewise
