// On a GPU: memory, contexts, launches, threads, graphs. Skipped where there is none.
#include "cuda/driver/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "cuda/driver/driver.h"
#include "cuda/driver/memory.h"
#include "cuda/driver/stream.h"
#include "cuda/jit/kernel.h"
#include "cuda/kernels/rows/copy_args.h"
#include "harness/materialize.h"
#include "plan/choose.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {
namespace {

constexpr Device kDevice{DeviceType::cuda, 0};

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << missing_driver_reason();
  }
};

CUcontext current_context() {
  CUcontext current = nullptr;
  check(driver().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  return current;
}

/// Bytes of a device tensor's whole memory, contiguous tensors only.
std::vector<unsigned char> bytes_of(const Tensor& t) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(t.numel() * dtype_bytes(t.dtype)));
  copy_to_host(bytes.data(), t.data, static_cast<std::int64_t>(bytes.size()), 0, nullptr);
  synchronize(0, nullptr);
  return bytes;
}

TEST_F(OnDevice, HardwareIsPlausible) {
  const Hardware& hw = hardware(0);
  EXPECT_FALSE(hw.name.empty());
  EXPECT_TRUE(hw.at_hand);  // else a plan for it does without `tilewise tune`'s results
  EXPECT_GE(hw.arch, 70);
  EXPECT_GT(hw.multiprocessors, 0);
  EXPECT_GT(hw.bandwidth_gbps, 100.0);
  EXPECT_GT(hw.matrix_tflops, hw.float32_tflops);
  EXPECT_GE(hw.shared_kib, 48);
  EXPECT_GT(hw.l2_bytes, 1 << 20);
}

TEST_F(OnDevice, MemoryRoundTrip) {
  const std::vector<int> out = {1, 2, 3, 4};
  std::vector<int> back(4);
  void* data = allocate(16, 0, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0U);
  copy_to_device(data, out.data(), 16, 0, nullptr);
  fill_bytes(data, 0, 4, 0, nullptr);
  copy_to_host(back.data(), data, 16, 0, nullptr);
  synchronize(0, nullptr);
  release(data, 0, nullptr);
  EXPECT_EQ(back, (std::vector<int>{0, 2, 3, 4}));
}

TEST_F(OnDevice, OutOfMemoryLeavesItUsable) {
  const std::int64_t all = memory_info(0).total_bytes;
  try {
    allocate(2 * all, 0, nullptr);
    FAIL() << "got twice the device's memory";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
        << error.what();
  }
  void* data = allocate(1 << 20, 0, nullptr);
  release(data, 0, nullptr);
  synchronize(0, nullptr);
}

TEST_F(OnDevice, CallersContextIsRestored) {
  std::thread([] {
    EXPECT_EQ(current_context(), nullptr);
    release(allocate(256, 0, nullptr), 0, nullptr);
    EXPECT_EQ(current_context(), nullptr);
    const ContextScope scope(0);
    const CUcontext ours = current_context();
    EXPECT_NE(ours, nullptr);
    { const ContextScope inner(0); }
    EXPECT_EQ(current_context(), ours);
  }).join();
}

TEST_F(OnDevice, TwoDevicesDoNotMix) {
  if (device_count() < 2) GTEST_SKIP() << "one GPU";
  const ContextScope first(0);
  const CUcontext ours = current_context();
  release(allocate(256, 1, nullptr), 1, nullptr);
  EXPECT_EQ(current_context(), ours);
  EXPECT_NE(load({.stem = "copy_rows",
                  .file = "rows/copy",
                  .config = ".element_bytes = 4",
                  .threads = 256},
                 0)
                .function,
            load({.stem = "copy_rows",
                  .file = "rows/copy",
                  .config = ".element_bytes = 4",
                  .threads = 256},
                 1)
                .function);
}

TEST_F(OnDevice, DriverErrorsCarryTheDriversName) {
  Kernel kernel = load(
      {.stem = "copy_rows", .file = "rows/copy", .config = ".element_bytes = 4", .threads = 256},
      0);
  kernel.threads = 100000;
  try {
    launch(kernel, {.x = 1}, nullptr, copy_rows::Args{});
    FAIL() << "launched a block of 100000 threads";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_INVALID_VALUE"), std::string::npos)
        << error.what();
  }
}

/// Forward rows of the device that run a small problem.
std::vector<const KernelRow*> rows_of(Pass pass) {
  std::vector<const KernelRow*> rows;
  for (const KernelRow& row : kernel_table()) {
    if (row.device == DeviceType::cuda && row.pass == pass) rows.push_back(&row);
  }
  return rows;
}

/// True when the row runs the case; its plan through the public verb.
bool runs(const KernelRow& row, MaterializedCase& made) {
  try {
    if (row.pass == Pass::forward) {
      plan(made.forward(), made.spec(), {.implementation = {}, .kernel = row.name});
    } else {
      plan(made.backward(), made.spec(), {.implementation = {}, .kernel = row.name});
    }
    return true;
  } catch (const Unsupported&) {
    return false;
  }
}

void run_on(const KernelRow& row, MaterializedCase& made, const Stream& stream) {
  const Choice choice{.implementation = {}, .kernel = row.name};
  const Launch launch{.stream = stream.get()};
  if (row.pass == Pass::forward) {
    forward(made.forward(), made.spec(), launch, choice);
  } else {
    backward(made.backward(), made.spec(), launch, choice);
  }
}

Tensor result_of(const KernelRow& row, MaterializedCase& made) {
  return row.pass == Pass::forward ? made.forward().o : made.backward().dq;
}

std::vector<const KernelRow*> all_rows() {
  std::vector<const KernelRow*> rows = rows_of(Pass::forward);
  for (const KernelRow* row : rows_of(Pass::backward)) rows.push_back(row);
  return rows;
}

/// O and LSE for the backward rows, from a row that every problem has.
void prepare(MaterializedCase& made, const Stream& stream) {
  forward(made.forward(), made.spec(), {.stream = stream.get()},
          {.implementation = "fused", .kernel = {}});
  made.backward();
  stream.synchronize();
}

/// 200 calls of a row on a stream of the thread's own, on shapes of its own. Backward is
/// deterministic.
bool agrees_with_itself(const KernelRow& row, int thread) {
  constexpr int kCalls = 200;
  const Case problem =
      parse_case("b2 h" + std::to_string(1 + thread % 3) + " q" + std::to_string(40 + 17 * thread) +
                 " k" + std::to_string(40 + 17 * thread) + " d64 bf16 deterministic");
  MaterializedCase made = materialize(problem, 7, kDevice, {.guards = false});
  if (!runs(row, made)) return true;
  const Stream stream(0);
  prepare(made, stream);
  run_on(row, made, stream);
  stream.synchronize();
  const auto first = bytes_of(result_of(row, made));
  for (int i = 0; i < kCalls; ++i) run_on(row, made, stream);
  stream.synchronize();
  return bytes_of(result_of(row, made)) == first;
}

TEST_F(OnDevice, ThreadsWithTheirOwnStreamsAgreeWithOne) {
  constexpr int kThreads = 8;
  for (const KernelRow* row : all_rows()) {
    std::vector<std::string> failures(kThreads);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        try {
          if (!agrees_with_itself(*row, t)) failures[static_cast<std::size_t>(t)] = "other bits";
        } catch (const Error& error) {
          failures[static_cast<std::size_t>(t)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) EXPECT_EQ(failure, "") << row->name;
  }
}

TEST_F(OnDevice, GraphsReplay) {
  for (const KernelRow* row : all_rows()) {
    const Case problem = parse_case("b2 h2 q100 k130 d64 bf16 causal deterministic");
    MaterializedCase made = materialize(problem, 3, kDevice, {.guards = false});
    if (!runs(*row, made)) continue;
    const Stream stream(0);
    prepare(made, stream);
    run_on(*row, made, stream);  // loads what it needs
    stream.synchronize();
    const Tensor result = result_of(*row, made);
    const auto expected = bytes_of(result);
    Graph graph(stream);
    run_on(*row, made, stream);
    graph.end_capture();
    for (int replay = 0; replay < 3; ++replay) {
      fill_bytes(result.data, 0xFF, result.numel() * dtype_bytes(result.dtype), 0, nullptr);
      synchronize(0, nullptr);
      graph.launch();
      stream.synchronize();
      EXPECT_EQ(bytes_of(result), expected) << row->name << ", replay " << replay;
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda
