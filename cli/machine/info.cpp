/// tilewise info: the machine, and what of it Tilewise can use.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <map>
#include <memory>
#include <optional>

#include "api/machine.h"
#include "cli/machine/ceilings.h"
#include "cli/machine/environment_report.h"
#include "cli/machine/machines.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/failure.h"
#include "cli/shell/output.h"
#include "cpu/textbook/blas.h"
#include "tilewise/attention.h"

namespace tilewise::cli {
namespace {

struct InfoFlags {
  std::string format, output, hardware, device = "cpu";
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

Table facts_of(const Environment& e) {
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
  const Hardware cpu_machine = hardware();
  if (const Tuning* tuning = tuning_at_hand(cpu_machine)) {
    table.add({"tuned on cpu", tuning->ignored().empty() ? fmt::format("{} passes", tuning->size())
                                                         : tuning->ignored()});
  }
  table.add({"NVIDIA driver", e.driver.empty() ? "none" : e.driver});
  table.add({"NVRTC", e.nvrtc.empty() ? "none" : e.nvrtc});
  for (const Environment::Gpu& gpu : e.gpus) {
    table.add({"gpu", fmt::format("{}, {}, {}", gpu.name, gpu.arch, bytes_text(gpu.memory_bytes))});
  }
  for (std::size_t index = 0; index < e.gpus.size(); ++index) {
    const Hardware gpu = hardware({DeviceType::cuda, static_cast<int>(index)});
    const Tuning* tuning = tuning_at_hand(gpu);
    if (tuning == nullptr) break;
    table.add(
        {fmt::format("tuned on cuda:{}", index),
         tuning->ignored().empty() ? fmt::format("{} passes", tuning->size()) : tuning->ignored()});
  }
  for (const auto& [implementation, names] : kernels_by_implementation(DeviceType::cpu)) {
    table.add({implementation + " on cpu", names});
  }
  for (const auto& [implementation, names] : kernels_by_implementation(DeviceType::cuda)) {
    table.add({implementation + " on cuda", names});
  }
  return table;
}

int info(const InfoFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  if (!flags.hardware.empty()) {
    write_output(flags.output, machine_figures(flags.hardware).text(format));
    return kDone;
  }
  const Device device = parse_device("--device", flags.device);
  const Environment environment = read_environment();
  std::optional<CeilingReport> ceilings;
  if (flags.measure) ceilings = measure_ceilings(tilewise::hardware(device), environment.date);
  const Table facts = facts_of(environment);
  std::string text;
  if (format == Format::json) {
    Value document = {{"schema_version", 1},
                      {"environment", environment_json(environment)},
                      {"facts", facts.json()}};
    if (ceilings) document["ceilings"] = ceilings->table.json();
    text = document.dump(2) + "\n";
  } else if (!ceilings) {
    text = facts.text(format);
  } else if (format == Format::csv) {
    text = ceilings->table.csv();
  } else {
    text = facts.markdown() + "\n" + ceilings->table.markdown() + "\n" + ceilings->words;
  }
  write_output(flags.output, text);
  return kDone;
}

}  // namespace

void add_info(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<InfoFlags>();
  CLI::App* app = program.add_subcommand(
      "info", "Show devices, drivers, compilers, kernels and measured peak rates");
  app->footer(
      "Examples:\n"
      "  tilewise info --measure --device cuda:0\n"
      "  tilewise info --hardware h200");
  app->add_flag("--measure", flags->measure,
                "measure the device's arithmetic rates and memory bandwidths, and show the "
                "vendor's figures. Takes some seconds. `plan` uses the latest measurement");
  app->add_option("--device", flags->device, "device to measure")->option_text("cpu|cuda:N [cpu]");
  app->add_option("--hardware", flags->hardware,
                  "show the figures and sources of a machine in cases/hardware.json")
      ->option_text("NAME|FILE");
  add_output_flags(*app, flags->format, flags->output);
  app->callback([flags, &exit_code] { exit_code = info(*flags); });
}

}  // namespace tilewise::cli
