// The kernels of `info --measure`: compiled without a GPU; run where there is one.
#include "cuda/kernels/ceilings/ceilings.h"

#include <gtest/gtest.h>

#include "cuda/driver/device.h"
#include "cuda/jit/census.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "harness/cuda_measure.h"

namespace tilewise::cuda {
namespace {

using ceilings::What;

TEST(Ceilings, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  for (const int arch : {80, 90}) {
    for (const auto& [what, instruction] : {std::pair{What::read, ""},
                                            {What::copy, ""},
                                            {What::shared, ""},
                                            {What::float32, ""},
                                            {What::bf16, "mma.sync"},
                                            {What::tf32, "mma.sync"},
                                            {What::wgmma, "wgmma.mma_async"}}) {
      if (!has_ceiling(what, arch)) continue;
      const PackUnit held{
          .unit = ceiling_unit(what), .row = "info --measure", .instruction = instruction};
      const KernelEntry entry = make_entry(held.unit, arch, compile(held.unit, arch));
      for (const std::string& fault : census_faults(held, entry, arch)) {
        ADD_FAILURE() << held.unit.config << " for " << arch << ": " << fault;
      }
    }
  }
}

TEST(Ceilings, WorkIsCountedByBlocksAndRounds) {
  Hardware machine;
  machine.multiprocessors = 3;
  const CeilingLaunch launch{.bytes = 4096, .rounds = 5};
  EXPECT_DOUBLE_EQ(ceiling_work(What::read, launch, machine), 4096.0);
  EXPECT_DOUBLE_EQ(ceiling_work(What::copy, launch, machine), 8192.0);
  // Two blocks of 32 KiB; four of 256 threads with 16 sums; four of 8 warps with 8 tiles.
  EXPECT_DOUBLE_EQ(ceiling_work(What::shared, launch, machine), 3.0 * 5 * 2 * 32768);
  EXPECT_DOUBLE_EQ(ceiling_work(What::float32, launch, machine), 3.0 * 5 * 4 * 256 * 16 * 2);
  EXPECT_DOUBLE_EQ(ceiling_work(What::bf16, launch, machine), 3.0 * 5 * 4 * 8 * 8 * 4096);
  EXPECT_DOUBLE_EQ(ceiling_work(What::tf32, launch, machine), 3.0 * 5 * 4 * 8 * 8 * 2048);
  EXPECT_DOUBLE_EQ(ceiling_work(What::wgmma, launch, machine), 3.0 * 5 * 2 * 16 * 64 * 256 * 32);
  EXPECT_EQ(ceiling_step_bytes(machine), 3 * 8 * 256 * 4 * 16);
}

/// On a device: twice the rounds take twice the time, so that the loop is there; a copy copies.
TEST(Ceilings, RunOnADevice) {
  if (device_count() == 0) GTEST_SKIP() << missing_driver_reason();
  const Hardware& machine = hardware(0);
  const std::unique_ptr<DeviceMemory> memory = cuda_memory(0);
  const std::unique_ptr<Clock> clock = cuda_clock(0);
  const std::int64_t bytes = 4 * ceiling_step_bytes(machine);
  void* from = memory->allocate(bytes);
  void* to = memory->allocate(bytes);
  memory->fill(from, 0x3C, bytes);
  memory->fill(to, 0, bytes);
  for (const What what : {What::shared, What::float32, What::bf16, What::tf32, What::wgmma}) {
    if (!has_ceiling(what, machine.arch)) continue;
    const auto ms = [&](int rounds) {
      const TimedWork work{
          .run = [&] { launch_ceiling(what, {.to = to, .rounds = rounds}, machine); }};
      return measure(work, {.warmup = 3, .repeat = 9}, *clock).ms.median;
    };
    const int rounds = what == What::wgmma ? 1000 : 20000;
    EXPECT_NEAR(ms(2 * rounds) / ms(rounds), 2.0, 0.4) << static_cast<int>(what);
  }
  launch_ceiling(What::copy, {.from = from, .to = to, .bytes = bytes}, machine);
  std::vector<unsigned char> copied(static_cast<std::size_t>(bytes));
  memory->copy_out(copied.data(), to, bytes);
  EXPECT_EQ(copied, std::vector<unsigned char>(copied.size(), 0x3C));
  memory->release(from, bytes);
  memory->release(to, bytes);
}

}  // namespace
}  // namespace tilewise::cuda
