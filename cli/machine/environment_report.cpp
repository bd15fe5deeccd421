#include "cli/machine/environment_report.h"

#include <fmt/format.h>

namespace tilewise::cli {

Value environment_json(const Environment& e) {
  Value gpus = Value::array();
  for (const Environment::Gpu& gpu : e.gpus) {
    gpus.push_back({{"name", gpu.name}, {"arch", gpu.arch}, {"memory_bytes", gpu.memory_bytes}});
  }
  return {{"library_version", e.library_version},
          {"commit", e.commit},
          {"compiler", e.compiler},
          {"build_type", e.build_type},
          {"date", e.date},
          {"host_os", e.host_os},
          {"cpu", e.cpu},
          {"cpu_count", e.cpu_count},
          {"cpu_usable", e.cpu_usable},
          {"isa", e.isa},
          {"isa_flags", e.isa_flags},
          {"llc_bytes", e.llc_bytes},
          {"memory_bytes", e.memory_bytes},
          {"gpus", gpus},
          {"driver", e.driver},
          {"nvrtc", e.nvrtc}};
}

std::string environment_line(const Environment& e) {
  std::string gpus;
  for (const Environment::Gpu& gpu : e.gpus) gpus += fmt::format("; {} ({})", gpu.name, gpu.arch);
  return fmt::format("{}, {} CPUs, {}{}; tilewise {} ({}), {} {}; {}; {}", e.cpu, e.cpu_usable,
                     e.isa, gpus, e.library_version, e.commit, e.compiler, e.build_type, e.host_os,
                     e.date);
}

}  // namespace tilewise::cli
