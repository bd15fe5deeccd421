#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "harness/guarded_allocator.h"
#include "harness/materialize.h"
#include "harness/memory_meter.h"

namespace tilewise {
namespace {

TEST(MemoryMeter, CountsLiveAndPeak) {
  MemoryMeter meter;
  void* a = meter.allocate(1000, {}, nullptr);
  void* b = meter.allocate(500, {}, nullptr);
  EXPECT_EQ(meter.live_bytes(), 1500);
  meter.release(a, 1000, {}, nullptr);
  EXPECT_EQ(meter.live_bytes(), 500);
  EXPECT_EQ(meter.peak_bytes(), 1500);
  meter.reset_peak();
  EXPECT_EQ(meter.peak_bytes(), 500);
  EXPECT_EQ(meter.allocations(), 2);
  meter.release(b, 500, {}, nullptr);
  EXPECT_EQ(meter.live_bytes(), 0);
}

TEST(MemoryMeter, BudgetThrowsAndChangesNothing) {
  MemoryMeter meter(2048);
  void* a = meter.allocate(1024, {}, nullptr);
  try {
    meter.allocate(1536, {}, nullptr);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(
        error.what(),
        "out of memory on cpu: asked for 1.5 KiB with 1.0 KiB in use and a budget of 2.0 KiB");
  }
  EXPECT_EQ(meter.live_bytes(), 1024);
  meter.set_budget(0);
  void* b = meter.allocate(1536, {}, nullptr);
  meter.release(a, 1024, {}, nullptr);
  meter.release(b, 1536, {}, nullptr);
  EXPECT_EQ(meter.peak_bytes(), 2560);
}

TEST(MemoryMeter, HugeRequestsDoNotWrap) {
  MemoryMeter meter(1024);
  void* a = meter.allocate(1000, {}, nullptr);
  EXPECT_THROW(meter.allocate(INT64_MAX - 10, {}, nullptr), OutOfMemory);
  meter.release(a, 1000, {}, nullptr);
}

TEST(MemoryMeter, ThreadsShareTheBudget) {
  MemoryMeter meter(8 * 1024);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&meter] {
      for (int n = 0; n < 500; ++n) {
        try {
          void* data = meter.allocate(3 * 1024, {}, nullptr);
          EXPECT_LE(meter.live_bytes(), 8 * 1024);
          meter.release(data, 3 * 1024, {}, nullptr);
        } catch (const OutOfMemory&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(meter.live_bytes(), 0);
  EXPECT_LE(meter.peak_bytes(), 6 * 1024);
}

TEST(MemoryMeter, LibraryWorksAfterOutOfMemory) {
  const MaterializedCase c = materialize(parse_case("b1 h1 s64 d16 f32"), 1);
  MemoryMeter meter(1);
  Launch launch;
  launch.allocator = &meter;
  const Choice eager{.implementation = "eager", .kernel = {}};
  ASSERT_GT(plan(c.forward(), c.spec(), eager).workspace_bytes, 0);
  EXPECT_THROW(forward(c.forward(), c.spec(), launch, eager), OutOfMemory);
  meter.set_budget(0);
  EXPECT_EQ(forward(c.forward(), c.spec(), launch, eager).implementation, "eager");
  EXPECT_EQ(meter.live_bytes(), 0);
  EXPECT_EQ(meter.peak_bytes(), plan(c.forward(), c.spec(), eager).workspace_bytes);
}

TEST(FormatBytes, PicksAUnit) {
  EXPECT_EQ(format_bytes(512), "512 bytes");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{24} << 30), "24.0 GiB");
  EXPECT_EQ(format_bytes(std::int64_t{5} << 50), "5120.0 TiB");
}

TEST(GuardedAllocator, FillsWithNanAndSeesOverruns) {
  const std::unique_ptr<DeviceMemory> memory = host_memory();
  GuardedAllocator guarded(*memory);
  auto* a = static_cast<float*>(guarded.allocate(400, {}, nullptr));
  for (int n = 0; n < 100; ++n) EXPECT_NE(a[n], a[n]);
  EXPECT_EQ(guarded.outstanding(), 1);
  std::memset(a, 0, 400);
  guarded.release(a, 400, {}, nullptr);
  EXPECT_EQ(guarded.damaged(), 0);
  auto* after = static_cast<float*>(guarded.allocate(400, {}, nullptr));
  after[100] = 0.0F;
  guarded.release(after, 400, {}, nullptr);
  EXPECT_EQ(guarded.damaged(), 1);
  auto* before = static_cast<float*>(guarded.allocate(400, {}, nullptr));
  before[-1] = 0.0F;
  guarded.release(before, 400, {}, nullptr);
  EXPECT_EQ(guarded.damaged(), 2);
  EXPECT_EQ(guarded.outstanding(), 0);
  EXPECT_EQ(guarded.peak_bytes(), 400);
}

/// A device that has failed: nothing can be read from it any more.
class FailedMemory final : public DeviceMemory {
 public:
  Device device() const override { return {}; }
  void* allocate(std::int64_t bytes) override { return host_->allocate(bytes); }
  void release(void* data, std::int64_t bytes) noexcept override {
    ++releases_;
    host_->release(data, bytes);
  }
  void copy_in(void*, const void*, std::int64_t) override {}
  void copy_out(void*, const void*, std::int64_t) override { throw DeviceError("gone"); }
  void fill(void*, int, std::int64_t) override {}
  void synchronize() override { throw DeviceError("gone"); }
  bool is_host() const override { return false; }
  int releases() const { return releases_; }

 private:
  std::unique_ptr<DeviceMemory> host_ = host_memory();
  int releases_ = 0;
};

TEST(GuardedAllocator, GivesABlockOfAFailedDeviceBackOnce) {
  FailedMemory memory;
  {
    GuardedAllocator guarded(memory);
    void* data = guarded.allocate(64, {}, nullptr);
    guarded.release(data, 64, {}, nullptr);
    EXPECT_EQ(guarded.damaged(), 1);
    EXPECT_EQ(guarded.outstanding(), 0);
  }
  EXPECT_EQ(memory.releases(), 1);
}

}  // namespace
}  // namespace tilewise
