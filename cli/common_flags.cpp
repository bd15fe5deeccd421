#include "cli/common_flags.h"

#include "cli/args.h"
#include "tilewise/runtime.h"

namespace tilewise::cli {

void add_common_flags(CLI::App& app, CommonFlags& flags) {
  const char* group = "Machine";
  app.add_option("--device", flags.device, "where it runs")
      ->group(group)
      ->option_text("cpu|cuda:N [cpu]");
  app.add_option("--threads", flags.threads, "threads of the CPU to use")
      ->group(group)
      ->option_text("N [all]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--mem-limit", flags.memory_limit, "memory that a problem may take")
      ->group(group)
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
