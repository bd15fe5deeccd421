#include "plan/tuning.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "comma_locale.h"
#include "plan/choose.h"

namespace tilewise {
namespace {

/// A row of three forms: 64, 32 and 16 queries a tile, of which the model likes the first best.
Preparation three_forms(const KernelRow&, const Problem& p, const Hardware&) {
  Cost cost;
  cost.block_m = form_of(p, {64, 8}, {{32, 8}, {16, 8}}).block_m;
  cost.block_n = 8;
  cost.ms = 1.0 / cost.block_m;
  return Prepared{std::move(cost), remember(cost.block_m)};
}
Preparation one_form(const KernelRow&, const Problem&, const Hardware&) {
  Cost cost;
  cost.ms = 1.0;
  return Prepared{std::move(cost), nullptr};
}
void no_run(const KernelRow&, const Problem&, const Context&) {}

constexpr KernelRow kRows[] = {
    {"many", "flash", DeviceType::cpu, Pass::forward, "", three_forms, no_run},
    {"slow", "flash", DeviceType::cpu, Pass::forward, "", one_form, no_run},
    {"plain", "eager", DeviceType::cpu, Pass::forward, "", one_form, no_run},
};

Problem problem(bool deterministic = false) {
  const auto tensor = [](std::int64_t s) {
    return Tensor::bhsd(nullptr, DType::float32, 2, 3, s, 16);
  };
  AttentionSpec spec;
  spec.deterministic = deterministic;
  return make_problem(ForwardTensors{tensor(50), tensor(60), tensor(60), tensor(50), {}, {}}, spec,
                      Purpose::plan);
}

const Hardware kMachine{.name = "a CPU", .threads = 2, .isa = "avx2"};

Tuning tuned(const Winner& winner) {
  Tuning tuning("here");
  tuning.set(tuning_key(problem(), kMachine), winner);
  return tuning;
}

Plan planned(const Tuning& tuning, const Choice& choice = {}, const Problem& p = problem()) {
  return choose(p, kMachine, choice, kRows, &tuning);
}

TEST(Tuning, IsAskedBeforeTheModel) {
  const Tuning tuning = tuned({"many", {16, 8, 1, 1}, 0.25, 0.5});
  EXPECT_EQ(choose(problem(), kMachine, {}, kRows).block_m, 64);
  const Plan plan = planned(tuning);
  EXPECT_EQ(plan.block_m, 16);
  EXPECT_EQ(plan.predicted_ms, 0.25);
  EXPECT_EQ(plan.reason,
            "tuned: measured on this device, 0.25 ms; the model's choice takes 0.5 ms");
  ASSERT_EQ(plan.refusals.size(), 2U);
  EXPECT_EQ(plan.refusals[0].reason, "tuned: many is faster, as measured");
}

TEST(Tuning, FilesAndKeysAreTheSameInEveryLocale) {
  const Tuning tuning = tuned({"many", {16, 8, 1, 1}, 0.25, 1234.5});
  const Hardware large{.name = "a CPU", .threads = 1024, .isa = "avx2"};
  const std::string text = tuning.text(), key = tuning_key(problem(), large);
  const CommaLocale comma;
  EXPECT_EQ(tuned({"many", {16, 8, 1, 1}, 0.25, 1234.5}).text(), text);
  EXPECT_EQ(tuning_key(problem(), large), key);
  EXPECT_EQ(Tuning::parse(text, "file", "here").text(), text);
}

TEST(Tuning, LeavesWhatIsNamedAndWhatIsDeterministic) {
  const Tuning tuning = tuned({"many", {16, 8, 1, 1}, 0.25, 0.5});
  EXPECT_EQ(planned(tuning, {.implementation = "eager", .kernel = {}}).kernel, "plain");
  EXPECT_EQ(planned(tuning, {.implementation = {}, .kernel = "slow"}).kernel, "slow");
  EXPECT_EQ(planned(tuning, {.implementation = {}, .kernel = "many"}).block_m, 16);
  EXPECT_EQ(tuning_key(problem(true), kMachine), "");
  EXPECT_EQ(planned(tuning, {}, problem(true)).block_m, 64);
}

TEST(Tuning, AWinnerThatThereIsNoMoreIsNotTaken) {
  EXPECT_EQ(planned(tuned({"many", {24, 8, 1, 1}, 0.25, 0.5})).block_m, 64);
  EXPECT_EQ(planned(tuned({"gone", {16, 8, 1, 1}, 0.25, 0.5})).kernel, "many");
}

TEST(Tuning, ThreadsAndStridesAreOtherProblems) {
  Hardware more = kMachine;
  more.threads = 4;
  Problem strided = problem();
  strided.q.strides[2] += 1;
  const std::string key = tuning_key(problem(), kMachine);
  EXPECT_NE(key, tuning_key(problem(), more));
  EXPECT_NE(key, tuning_key(strided, kMachine));
}

TEST(Tuning, AllFormsArePlannedOnce) {
  const std::vector<Plan> plans = all_forms(problem(), kMachine, {}, kRows);
  ASSERT_EQ(plans.size(), 4U);
  for (int n = 0; n < 3; ++n) EXPECT_EQ(plans[static_cast<std::size_t>(n)].block_m, 64 >> n);
  EXPECT_EQ(plans[3].kernel, "slow");
}

class TuningFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "tuning-test-" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/tuning.txt";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Tuning read(const std::string& text, const char* identity = "here") {
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), 0644);
    return Tuning::read(path_, identity);
  }

  std::string folder_, path_;
};

TEST_F(TuningFile, ReadsWhatItWrote) {
  const Tuning written = tuned({"many", {16, 8, 3, 2}, 0.25, 0.5});
  const Tuning tuning = read(written.text());
  EXPECT_EQ(tuning.ignored(), "");
  const Winner* winner = tuning.find(tuning_key(problem(), kMachine));
  ASSERT_NE(winner, nullptr);
  EXPECT_EQ(winner->kernel, "many");
  EXPECT_EQ(winner->form, (Form{16, 8, 3, 2}));
  EXPECT_EQ(tuning.text(), written.text());
  EXPECT_EQ(Tuning::read(folder_ + "/none", "here").ignored(), "");
}

TEST_F(TuningFile, WhatIsDamagedOrForeignIsIgnoredAndNamed) {
  const std::string text = tuned({"many", {16, 8, 1, 1}, 0.25, 0.5}).text();
  std::string damaged = text;
  damaged[text.find("many")] = 'M';
  for (const std::string& bad : {damaged, text.substr(0, text.size() / 2), std::string("\0", 1)}) {
    const Tuning tuning = read(bad);
    EXPECT_EQ(tuning.size(), 0U);
    EXPECT_EQ(tuning.ignored(), path_ + " is ignored: it is damaged; `tilewise tune` replaces it");
    EXPECT_NE(planned(tuning).reason.find(tuning.ignored()), std::string::npos);
  }
  EXPECT_EQ(read(text, "there").ignored(),
            path_ + " is ignored: it was measured on here, this is there");
  read(text);
  ::chmod(path_.c_str(), 0666);
  EXPECT_EQ(Tuning::read(path_, "here").ignored(),
            path_ + " is ignored: other users can write to it");
}

}  // namespace
}  // namespace tilewise
