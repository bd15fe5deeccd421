#include "cli/common_flags.h"

#include <CLI/App.hpp>

#include "cli/args.h"
#include "tilewise/runtime.h"

namespace tilewise::cli {

namespace {

constexpr const char* kGroup = "Machine";

}  // namespace

void add_device_flags(CLI::App& app, CommonFlags& flags) {
  app.add_option("--device", flags.device, "where it runs")
      ->group(kGroup)
      ->option_text("cpu|cuda:N [cpu]");
  app.add_option("--threads", flags.threads, "threads of the CPU to use")
      ->group(kGroup)
      ->option_text("N [all]")
      ->check(CLI::Range(1, 1024));
}

void add_common_flags(CLI::App& app, CommonFlags& flags) {
  add_device_flags(app, flags);
  app.add_option("--mem-limit", flags.memory_limit, "memory that a problem may take")
      ->group(kGroup)
      ->option_text("SIZE");
}

int thread_count(const CommonFlags& flags) {
  return flags.threads > 0 ? flags.threads : default_executor().concurrency();
}

std::int64_t memory_limit(const CommonFlags& flags, const Hardware& machine) {
  if (!flags.memory_limit.empty()) return parse_bytes("--mem-limit", flags.memory_limit);
  return machine.memory_bytes / 4 * 3;
}

}  // namespace tilewise::cli
