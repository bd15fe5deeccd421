// The runner itself: what it calls passed, failed and skipped.
#include <gtest/gtest.h>

#include <string>

#include "harness/conformance.h"
#include "plan/choose.h"

namespace tilewise {
namespace {

const KernelRow& row(const char* name, Pass pass) { return find_row(kernel_table(), name, pass); }

TEST(Check, RepeatLineReadsBack) {
  const Case c = parse_case("b2 h4/2 s16 d8 bf16 causal id=X1");
  CheckOptions options;
  options.seed = 5;
  const std::string line = repeat_line(row("reference_fwd", Pass::forward), c, options);
  EXPECT_EQ(
      line,
      "tilewise check --kernel reference_fwd --seed 5 --case \"b2 h4/2 s16 d8 bf16 causal id=X1\"");
}

TEST(Check, SaysWhatItMeasured) {
  const CheckResult result =
      check_case(row("reference_bwd", Pass::backward), parse_case("s16 d8 bf16 bias=1,h,q,k sink"));
  EXPECT_EQ(result.status, CheckStatus::passed) << result.reason;
  ASSERT_EQ(result.deviations.size(), 5U);
  EXPECT_EQ(result.deviations[3].quantity, "dbias");
  EXPECT_GT(result.deviations[0].bound, result.deviations[0].error);
}

TEST(Check, SkipsAPassThatTheCaseLeavesOut) {
  const CheckResult result =
      check_case(row("reference_bwd", Pass::backward), parse_case("s16 d8 pass=fwd"));
  EXPECT_EQ(result.status, CheckStatus::skipped);
  EXPECT_EQ(result.reason, "the case has no backward");
}

TEST(Check, ExpectsInvalidArguments) {
  const KernelRow& forward = row("reference_fwd", Pass::forward);
  EXPECT_EQ(check_case(forward, parse_case("h3/2 s4 d8 expect=invalid")).status,
            CheckStatus::passed);
  const CheckResult wrong = check_case(forward, parse_case("h4/2 s4 d8 expect=invalid"));
  EXPECT_EQ(wrong.status, CheckStatus::failed);
  EXPECT_NE(wrong.reason.find("expected InvalidArgument"), std::string::npos) << wrong.reason;
  EXPECT_EQ(check_case(forward, parse_case("h3/2 s4 d8")).status, CheckStatus::failed);
}

TEST(Check, NoticesWrongResults) {
  // Gradients of these inputs cancel to 0 in exact arithmetic, which float32 cannot follow; the
  // whole file passes only because the case is marked.
  const KernelRow& backward = row("flash_bwd_scalar", Pass::backward);
  const Case marked = parse_case("b1 h1 s128 d64 bf16 fill=133120 expect=finite");
  EXPECT_EQ(check_case(backward, marked).status, CheckStatus::passed);
  Case strict = marked;
  strict.finite_only = false;
  const CheckResult result = check_case(backward, strict);
  EXPECT_EQ(result.status, CheckStatus::failed);
  EXPECT_NE(result.reason.find("error exceeds the bound"), std::string::npos) << result.reason;
  EXPECT_EQ(result.repeat,
            "tilewise check --kernel flash_bwd_scalar --case \"b1 h1 s128 d64 bf16 fill=133120\"");
}

TEST(Check, SharpProblemsTakeTheYardstickOfMoreDraws) {
  // Seeds at which plain float32 arithmetic is over twice the yardstick of its own draw.
  const Case sharp = parse_case("b1 h1 s64 d32 f32 scale=-3 fill=randn*3");
  CheckOptions options;
  for (const std::uint64_t seed : {18, 20, 29}) {
    options.seed = seed;
    const CheckResult result = check_case(row("eager_bwd", Pass::backward), sharp, options);
    EXPECT_EQ(result.status, CheckStatus::passed) << seed << ": " << result.reason;
  }
}

TEST(Check, FewValuesAndSoftcapsTakeTheYardstickOfMoreDraws) {
  // dV of one key is a sum of 255 equal terms. A softcap far below the scores leaves gradients to
  // few pairs.
  const auto expect_passed = [](const char* kernel, const char* line, std::uint64_t seed) {
    CheckOptions options;
    options.seed = seed;
    const CheckResult result = check_case(row(kernel, Pass::backward), parse_case(line), options);
    EXPECT_EQ(result.status, CheckStatus::passed) << line << ": " << result.reason;
  };
  expect_passed("flash_bwd_scalar", "b1 h1 q255 k2 d64 f32 lengths=1 do=expanded", 77);
  expect_passed("eager_bwd", "b1 h8/2 s35 d128 f32 scale=1 softcap=0.001", 3);
}

TEST(Check, LargeProblemsAreSampled) {
  CheckOptions options;
  options.max_work = 2e4;
  for (const char* line :
       {"b2 h4/2 q50 k70 d16 causal", "b3 h2 q70 k50 d16 bf16 causal lengths=50,0,9",
        "b2 h2 s64 d16 window=9,0 layout=bshd", "b2 h2 s64 d16 nolse dlse"}) {
    for (const KernelRow& candidate : kernel_table()) {
      if (candidate.device != DeviceType::cpu) continue;
      const CheckResult result = check_case(candidate, parse_case(line), options);
      EXPECT_NE(result.status, CheckStatus::failed) << result.repeat << "\n" << result.reason;
    }
  }
}

TEST(Check, SamplesTakeTheYardstickOfOtherHeads) {
  // Seeds at which a sample is over twice the yardstick of its own rows.
  const Case sharp = parse_case("b2 h8 s64 d32 f32 scale=-3 fill=randn*3");
  CheckOptions options;
  options.max_work = 2e6;
  for (std::uint64_t seed = 1; seed < 13; ++seed) {
    options.seed = seed;
    const CheckResult result = check_case(row("eager_bwd", Pass::backward), sharp, options);
    EXPECT_EQ(result.status, CheckStatus::passed) << seed << ": " << result.reason;
  }
}

}  // namespace
}  // namespace tilewise
