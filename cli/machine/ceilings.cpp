#include "cli/machine/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/files/error.h"
#include "cli/machine/gpu_probe.h"
#include "cli/machine/machines.h"
#include "cli/machine/probe.h"
#include "cli/shell/failure.h"
#include "tilewise/attention.h"

namespace tilewise::cli {
namespace {

/// All banks of shared memory, four bytes each, in a clock. CUDA C++ Programming Guide.
constexpr double kSharedBytesPerClock = 128.0;

Table ceiling_table() {
  return Table({{"ceiling"}, {"measured", 2}, {"unit"}, {"vendor", 2}, {"of_vendor"}, {"how"}});
}

/// `vendor` 0: not known.
void add(Table& table, const char* name, double measured, const char* unit, double vendor,
         const char* how) {
  const bool known = vendor > 0.0;
  table.add({name, measured, unit, known ? Value(vendor) : Value(),
             known ? Value(measured / vendor) : Value(), how});
}

/// Seed 002 claims 12 times for a GPU's shared memory over its device memory.
std::string ratio_words(const char* near, const char* far, const Ceilings& found) {
  return fmt::format("{} has {:.1f} times the bandwidth of {} (seed 002 claims 12 for a GPU)\n",
                     near, found.cache_gbps / found.bandwidth_gbps, far);
}

Ceilings add_cpu(Table& table) {
  Executor& executor = default_executor();
  Ceilings found;
  found.float32_tflops = found.matrix_tflops = measure_fma_tflops(executor);
  found.bandwidth_gbps = measure_copy_gbps(executor);
  found.cache_gbps = measure_cache_gbps(executor);
  found.launch_us = measure_region_us(executor);
  const std::string threads = fmt::format("{} threads", executor.concurrency());
  add(table, "float32 multiply-add", found.float32_tflops, "TFLOP/s", 0.0, threads.c_str());
  add(table, "memory copy", found.bandwidth_gbps, "GB/s", 0.0, "both directions counted");
  add(table, "cache copy", found.cache_gbps, "GB/s", 0.0,
      "both directions counted, in the cache nearest to a core");
  add(table, "parallel region", found.launch_us, "us", 0.0, "empty");
  return found;
}

Ceilings add_gpu(Table& table, const Hardware& machine) {
  const GpuCeilings gpu = measure_gpu(machine);
  const std::optional<GpuFacts> facts = vendor_facts(machine.name);
  const GpuFacts vendor = facts.value_or(GpuFacts{});
  const double clocks = 1e-3 * vendor.clock_mhz * vendor.multiprocessors;  // 1e9 a second
  const double matrix = 2e-3 * clocks * vendor.matrix_fma_per_clock;
  add(table, "device memory read", gpu.read_gbps, "GB/s", vendor.bandwidth_gbps,
      "16 bytes a thread");
  add(table, "device memory copy", gpu.copy_gbps, "GB/s", vendor.bandwidth_gbps,
      "both directions counted");
  add(table, "shared memory read", gpu.shared_gbps, "GB/s", clocks * kSharedBytesPerClock,
      "all multiprocessors, 16 bytes a thread");
  add(table, "float32 multiply-add", gpu.float32_tflops, "TFLOP/s",
      2e-3 * clocks * vendor.float32_fma_per_clock, "CUDA cores");
  if (gpu.wgmma_bf16_tflops > 0.0) {
    add(table, "bf16 products, wgmma", gpu.wgmma_bf16_tflops, "TFLOP/s", matrix,
        "float32 sums, operands in shared memory");
  }
  add(table, "bf16 products, mma.sync", gpu.mma_bf16_tflops, "TFLOP/s", matrix,
      "float32 sums, operands in registers");
  // Half the rate of 16 bits on all of these architectures.
  add(table, "tf32 products, mma.sync", gpu.mma_tf32_tflops, "TFLOP/s", 0.5 * matrix,
      "float32 sums, operands in registers");
  add(table, "kernel after kernel", gpu.launch_us, "us", 0.0, "kernels that end at once");
  return {.float32_tflops = gpu.float32_tflops,
          .matrix_tflops = std::max(gpu.wgmma_bf16_tflops, gpu.mma_bf16_tflops),
          .bandwidth_gbps = gpu.read_gbps,  // what the plan counts on of a named card, too
          .cache_gbps = gpu.shared_gbps,
          .launch_us = gpu.launch_us,
          .date = {}};
}

}  // namespace

CeilingReport measure_ceilings(const Hardware& machine, const std::string& date) {
  CeilingReport report{ceiling_table(), {}};
  const bool gpu = machine.device.type == DeviceType::cuda;
  Ceilings found = gpu ? add_gpu(report.table, machine) : add_cpu(report.table);
  found.date = date;
  report.words = gpu ? ratio_words("shared memory", "device memory", found)
                     : ratio_words("the nearest cache", "memory", found);
  try {
    const std::string path = keep_ceilings(machine, found);
    report.words += path.empty() ? "not stored for `plan`: there is no home folder\n"
                                 : fmt::format("stored for `plan` in {}\n", path);
  } catch (const files::FileError& error) {
    complain(error.what());
    report.words += "not stored for `plan`\n";
  }
  return report;
}

}  // namespace tilewise::cli
