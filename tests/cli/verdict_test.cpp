// What a comparison says in words, of measurements made up here.
#include "cli/bench/verdict.h"

#include <gtest/gtest.h>

namespace tilewise::cli {
namespace {

Measurement measured(const char* implementation, std::int64_t seq, double ms, std::int64_t live) {
  Measurement row;
  row.problem = parse_case("b8 s" + std::to_string(seq) + " d16 f32");
  row.implementation = implementation;
  row.ms = summarize(std::vector<double>{ms});
  row.live_bytes = live;
  row.peak_bytes = 2 * live;
  return row;
}
Measurement too_large(const char* implementation, std::int64_t seq) {
  Measurement row = measured(implementation, seq, 0.0, 0);
  row.status = Status::oom;
  row.ms = {};
  return row;
}

void expect_in(const std::string& text, const char* wanted) {
  EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " is not in:\n" << text;
}

TEST(Verdict, FusedPassesAreFasterAndKeepAsMuch) {
  const std::string text =
      verdicts({measured("eager", 128, 1.0, 100), measured("fused", 128, 1.25, 100),
                measured("eager", 1024, 4.0, 800), measured("fused", 1024, 3.2, 800),
                measured("eager", 4096, 40.0, 9000), measured("fused", 4096, 20.0, 9000),
                too_large("eager", 16384), too_large("fused", 16384)});
  expect_in(text, "**fused against eager**: both ran in 3 of 4 passes");
  expect_in(text, "Speed: fwd 0.80 to 2.00 (median 1.25) times as fast.");
  expect_in(text, "Slower at 128 x 16 fwd (0.80) (length x dim).");
  expect_in(text, "live 1.00 to 1.00 (median 1.00), peak 1.00 to 1.00");
  expect_in(text, "Out of memory: eager in 1 passes, fused in 1; first at 16384 x 16 fwd.");
  expect_in(text, "fused is faster and stores as much or more, so stored data limits the length");
  expect_in(text, "Next: store no S x S matrix");
}

TEST(Verdict, FlashKeepsLess) {
  const std::string text =
      verdicts({measured("eager", 1024, 4.0, 800), measured("flash", 1024, 2.0, 8),
                too_large("eager", 16384), measured("flash", 16384, 99.0, 100)});
  expect_in(text, "Out of memory: eager in 1 passes, flash in 0; first at 16384 x 16 fwd.");
  expect_in(text, "flash is faster and keeps less memory, so longer sequences fit");
  expect_in(text, "Next: halve memory with 16-bit types: --dtype bf16.");
}

TEST(Verdict, NothingIsSaidOfWhatWasNotMeasured) {
  EXPECT_EQ(verdicts({measured("eager", 128, 1.0, 100)}), "");
  const std::string text = verdicts({too_large("eager", 128), too_large("fused", 128)});
  expect_in(text, "both measured no common problem");
  expect_in(text, "No conclusion");
}

}  // namespace
}  // namespace tilewise::cli
