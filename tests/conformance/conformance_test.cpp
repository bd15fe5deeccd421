// Every kernel row over cases/ against the float64 reference. One test is a stretch of a case file
// with all rows of a device, so that the reference is worked out once for all of them. A sanitizer
// looks at how the rows handle memory, which a part of the cases shows: every fourth one.
#include "harness/conformance.h"

#include <gtest/gtest.h>

#include <map>
#include <ostream>

#include "plan/kernel_row.h"

namespace tilewise {
namespace {

constexpr std::size_t kStretch = 25;
constexpr std::size_t kStep = TILEWISE_SANITIZED ? 4 : 1;

struct Stretch {
  std::string file;
  std::size_t begin = 0, end = 0;
  DeviceType device = DeviceType::cpu;
};

std::ostream& operator<<(std::ostream& out, const Stretch& stretch) {
  return out << stretch.file << " cases " << stretch.begin << " to " << stretch.end;
}

std::string path_of(const std::string& file) {
  return cases_dir(TILEWISE_CASES_DIR) + "/" + file + ".txt";
}

std::vector<Stretch> stretches(DeviceType device) {
  std::vector<Stretch> all;
  for (const char* file :
       {"smoke", "seeds", "edge", "conformance", "three_way", "block_lists", "expressions"}) {
    const std::size_t count = read_case_file(path_of(file)).size();
    for (std::size_t begin = 0; begin < count; begin += kStretch) {
      all.push_back({file, begin, std::min(begin + kStretch, count), device});
    }
  }
  return all;
}

std::string stretch_name(const testing::TestParamInfo<Stretch>& info) {
  return info.param.file + "_" + std::to_string(info.param.begin);
}

/// Why nothing can run on the device; empty when it is there.
std::string missing(DeviceType type) {
  try {
    hardware({type, 0});
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

std::string words(const CheckResult& result) {
  return result.kernel + ": " + result.reason + "\n  repeat: " + result.repeat + "\n";
}

class Conformance : public testing::TestWithParam<Stretch> {};

TEST_P(Conformance, AgreesWithReference) {
  const Stretch& stretch = GetParam();
  if (const std::string reason = missing(stretch.device); !reason.empty()) GTEST_SKIP() << reason;
  const std::vector<Case> cases = read_case_file(path_of(stretch.file));
  CheckOptions options;
  options.device = {stretch.device, 0};
  options.cache = make_reference_cache();
  for (std::size_t n = stretch.begin; n < stretch.end; n += kStep) {
    for (const KernelRow& row : kernel_table()) {
      if (row.device != stretch.device) continue;
      const CheckResult result = check_case(row, cases[n], options);
      EXPECT_NE(result.status, CheckStatus::failed)
          << stretch.file << ".txt:" << cases[n].line << " " << words(result);
      const bool wanted = row.pass == Pass::forward ? cases[n].forward : cases[n].backward;
      if (wanted && row.implementation == std::string("reference")) {
        EXPECT_EQ(result.status, CheckStatus::passed) << words(result);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(cpu, Conformance, testing::ValuesIn(stretches(DeviceType::cpu)),
                         stretch_name);
INSTANTIATE_TEST_SUITE_P(cuda, Conformance, testing::ValuesIn(stretches(DeviceType::cuda)),
                         stretch_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conformance);

// Lists of blocks beside whatever a random problem has, on all tiled rows.
class RandomLists : public testing::TestWithParam<std::int64_t> {};

TEST_P(RandomLists, AgreeWithTheReference) {
  CheckOptions options;
  options.cache = make_reference_cache();
  int passed = 0;
  for (std::size_t n = 0; n < kStretch; n += kStep) {
    const Case c = random_list_case(19, GetParam() + static_cast<std::int64_t>(n));
    for (const KernelRow& row : kernel_table()) {
      if (row.device != DeviceType::cpu || row.implementation != std::string("flash")) continue;
      const CheckResult result = check_case(row, c, options);
      EXPECT_NE(result.status, CheckStatus::failed) << words(result);
      passed += result.status == CheckStatus::passed ? 1 : 0;
    }
  }
  EXPECT_GT(passed, 0);
}

INSTANTIATE_TEST_SUITE_P(cpu, RandomLists, testing::Range<std::int64_t>(0, 300, kStretch));

// A row that refuses everything would pass the tests above.
TEST(Rows, EachRunsSomeSmokeCases) {
  const std::vector<Case> cases = read_case_file(path_of("smoke"));
  CheckOptions options;
  options.repeatable = false;
  options.cache = make_reference_cache();
  for (const KernelRow& row : kernel_table()) {
    if (!missing(row.device).empty()) continue;
    options.device = {row.device, 0};
    int passed = 0;
    std::map<std::string, int> refusals;
    for (const Case& c : cases) {
      const CheckResult result = check_case(row, c, options);
      if (result.status == CheckStatus::passed) ++passed;
      if (result.status == CheckStatus::skipped) ++refusals[result.reason];
    }
    // Rows of an instruction set that this machine lacks give one reason for all.
    if (passed == 0 && refusals.size() <= 2) continue;
    EXPECT_GT(passed, 3) << row.name;
  }
}

}  // namespace
}  // namespace tilewise
