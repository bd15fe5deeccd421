#include "harness/timer.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "cpu/micro/isa.h"

namespace tilewise {
namespace {

/// Every run takes what it is told.
class FakeClock final : public Clock {
 public:
  void start() override { ++starts; }
  double stop_ms() override { return static_cast<double>(starts); }
  int starts = 0;
};

TEST(Statistics, OfKnownNumbers) {
  const std::vector<double> values{4.0, 1.0, 3.0, 2.0};
  const Statistics s = summarize(values);
  EXPECT_EQ(s.count, 4);
  EXPECT_DOUBLE_EQ(s.mean, 2.5);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.stddev, 1.2909944487358056);  // sqrt(5 / 3): of a sample
  EXPECT_DOUBLE_EQ(s.min, 1.0);
  EXPECT_DOUBLE_EQ(s.max, 4.0);
  EXPECT_DOUBLE_EQ(s.p10, 1.3);
  EXPECT_DOUBLE_EQ(s.p90, 3.7);
}

TEST(Statistics, OfFewNumbers) {
  EXPECT_EQ(summarize({}).count, 0);
  const std::vector<double> one{7.0};
  EXPECT_DOUBLE_EQ(summarize(one).median, 7.0);
  EXPECT_DOUBLE_EQ(summarize(one).p90, 7.0);
  EXPECT_DOUBLE_EQ(summarize(one).stddev, 0.0);
}

TEST(Timer, SustainedWarmsUpThenRepeats) {
  FakeClock clock;
  int runs = 0;
  int inputs = 0;
  int flushes = 0;
  const TimedWork work{.run = [&] { ++runs; },
                       .fresh_inputs = [&](std::uint64_t) { ++inputs; },
                       .flush = [&] { ++flushes; },
                       .interrupted = {}};
  const Timing timing = measure(work, {.warmup = 5, .repeat = 10}, clock);
  EXPECT_EQ(runs, 15);
  EXPECT_EQ(inputs, 1);
  EXPECT_EQ(flushes, 10);
  ASSERT_EQ(timing.samples_ms.size(), 10U);
  EXPECT_EQ(timing.samples_ms.front(), 6.0);  // the sixth run: warm-up is not among the samples
  EXPECT_FALSE(timing.out_of_budget);
}

TEST(Timer, BurstTakesFreshInputsEachRound) {
  FakeClock clock;
  std::string order;
  const TimedWork work{
      .run = [&] { order += 'r'; },
      .fresh_inputs = [&](std::uint64_t round) { order += static_cast<char>('0' + round); },
      .flush = [&] { order += 'f'; },
      .interrupted = {}};
  const Timing timing =
      measure(work, {.protocol = Protocol::burst, .repeat = 5, .idle_ms = 0.0, .round = 3}, clock);
  EXPECT_EQ(order, "0rfrfrfr1rfrfr");
  EXPECT_EQ(timing.ms.count, 5);
}

TEST(Timer, BudgetEndsARunButLeavesOneSample) {
  const std::unique_ptr<Clock> clock = cpu_clock();
  const TimedWork slow{.run =
                           [] {
                             const std::unique_ptr<Clock> inner = cpu_clock();
                             inner->start();
                             while (inner->stop_ms() < 5.0) {
                             }
                           },
                       .fresh_inputs = {},
                       .flush = {},
                       .interrupted = {}};
  const Timing timing = measure(slow, {.warmup = 50, .repeat = 1000, .budget_s = 0.001}, *clock);
  EXPECT_TRUE(timing.out_of_budget);
  EXPECT_EQ(timing.ms.count, 1);
  EXPECT_GE(timing.ms.min, 5.0);
}

TEST(Timer, InterruptionKeepsWhatThereIs) {
  FakeClock clock;
  int runs = 0;
  const TimedWork work{.run = [&] { ++runs; },
                       .fresh_inputs = {},
                       .flush = {},
                       .interrupted = [&] { return runs >= 8; }};
  const Timing timing = measure(work, {.warmup = 5, .repeat = 100}, clock);
  EXPECT_TRUE(timing.interrupted);
  EXPECT_EQ(timing.ms.count, 3);
}

TEST(Timer, ExceptionsPassThrough) {
  FakeClock clock;
  const TimedWork work{.run = [] { throw std::runtime_error("no"); },
                       .fresh_inputs = {},
                       .flush = {},
                       .interrupted = {}};
  EXPECT_THROW(measure(work, {}, clock), std::runtime_error);
}

TEST(Timer, NamesAndCache) {
  EXPECT_EQ(protocol_name(Protocol::burst), "burst");
  EXPECT_EQ(protocol_name(Protocol::sustained), "sustained");
  EXPECT_GT(cpu::last_level_cache_bytes(), 0);
}

}  // namespace
}  // namespace tilewise
