/// tilewise info: the machine, and what of it Tilewise can use.
#include <fmt/format.h>

#include <map>
#include <memory>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/environment_report.h"
#include "cli/failure.h"
#include "cli/output.h"
#include "cli/probe.h"
#include "cpu/blas.h"
#include "tilewise/attention.h"

namespace tilewise::cli {
namespace {

struct InfoFlags {
  std::string format, output;
  bool measure = false;
};

/// "flash_fwd_avx512, flash_bwd_avx512": a device's rows for each implementation.
std::map<std::string, std::string> kernels_by_implementation(DeviceType type) {
  std::map<std::string, std::string> out;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device != type) continue;
    std::string& names = out[kernel.implementation];
    names += (names.empty() ? "" : ", ") + kernel.name;
  }
  return out;
}

Table cpu_facts(const Environment& e, const InfoFlags& flags) {
  Table table({{"what"}, {"value", 2}});
  table.add({"tilewise", fmt::format("{} (commit {})", e.library_version, e.commit)});
  table.add({"built with", fmt::format("{}, {}", e.compiler, e.build_type)});
  table.add({"system", e.host_os});
  table.add({"cpu", e.cpu});
  table.add({"cpus", fmt::format("{} of {} usable", e.cpu_usable, e.cpu_count)});
  table.add({"threads", std::to_string(default_executor().concurrency())});
  table.add({"instruction set", fmt::format("{} ({})", e.isa, e.isa_flags)});
  table.add({"last-level cache", bytes_text(e.llc_bytes)});
  table.add({"memory", bytes_text(e.memory_bytes)});
  const cpu::Blas* blas = cpu::Blas::get();
  table.add({"BLAS", blas != nullptr ? blas->name() : cpu::Blas::missing_reason()});
  table.add({"NVIDIA driver", e.driver.empty() ? "none" : e.driver});
  table.add({"NVRTC", e.nvrtc.empty() ? "none" : e.nvrtc});
  for (const Environment::Gpu& gpu : e.gpus) {
    table.add({"gpu", fmt::format("{}, {}, {}", gpu.name, gpu.arch, bytes_text(gpu.memory_bytes))});
  }
  for (const auto& [implementation, names] : kernels_by_implementation(DeviceType::cpu)) {
    table.add({implementation + " on cpu", names});
  }
  for (const auto& [implementation, names] : kernels_by_implementation(DeviceType::cuda)) {
    table.add({implementation + " on cuda", names});
  }
  if (flags.measure) {
    table.add({"float32 multiply-add",
               fmt::format("{:.3f} TFLOP/s, {} threads", measure_fma_tflops(default_executor()),
                           default_executor().concurrency())});
    table.add({"memory copy", fmt::format("{:.1f} GB/s, both directions counted",
                                          measure_copy_gbps(default_executor()))});
  }
  return table;
}

int info(const InfoFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  const Environment environment = read_environment();
  const Table facts = cpu_facts(environment, flags);
  std::string text;
  if (format == Format::json) {
    const Value document = {{"schema_version", 1},
                            {"environment", environment_json(environment)},
                            {"facts", facts.json()}};
    text = document.dump(2) + "\n";
  } else {
    text = facts.text(format);
  }
  write_output(flags.output, text);
  return kDone;
}

}  // namespace

void add_info(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<InfoFlags>();
  CLI::App* app = program.add_subcommand(
      "info", "Devices, instruction sets, drivers, compilers, kernels, measured ceilings");
  app->add_flag("--measure", flags->measure,
                "also measure multiply-add rate and memory bandwidth, some seconds");
  add_output_flags(*app, flags->format, flags->output);
  app->callback([flags, &exit_code] { exit_code = info(*flags); });
}

}  // namespace tilewise::cli
