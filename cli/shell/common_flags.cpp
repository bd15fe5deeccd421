#include "cli/shell/common_flags.h"

#include <fmt/format.h>

#include <CLI/App.hpp>

#include "cli/shell/args.h"
#include "tilewise/runtime.h"

namespace tilewise::cli {

namespace {

constexpr const char* kGroup = "Machine";

}  // namespace

void add_device_flags(CLI::App& app, CommonFlags& flags) {
  app.add_option("--device", flags.device, "device to run on")
      ->group(kGroup)
      ->option_text("cpu|cuda:N [cpu]");
  add_integer(app, "--threads", flags.threads, "number of CPU threads", 1, 1024)
      ->group(kGroup)
      ->option_text("N [all]");
}

void add_common_flags(CLI::App& app, CommonFlags& flags) {
  add_device_flags(app, flags);
  app.add_option("--mem-limit", flags.memory_limit, "memory limit per problem")
      ->group(kGroup)
      ->option_text("SIZE");
}

template <class Integer>
CLI::Option* add_integer(CLI::App& app, const std::string& name, Integer& value,
                         const std::string& help, std::type_identity_t<Integer> least,
                         std::type_identity_t<Integer> most) {
  const auto read = [name, &value, least, most](const std::string& text) {
    value = parse_integer<Integer>(name, text, least, most);
  };
  return app.add_option_function<std::string>(name, read, help)->type_name("INT");
}

template CLI::Option* add_integer(CLI::App&, const std::string&, int&, const std::string&, int,
                                  int);
template CLI::Option* add_integer(CLI::App&, const std::string&, std::int64_t&, const std::string&,
                                  std::int64_t, std::int64_t);
template CLI::Option* add_integer(CLI::App&, const std::string&, std::uint64_t&, const std::string&,
                                  std::uint64_t, std::uint64_t);

CLI::Option* add_real(CLI::App& app, const std::string& name, double& value,
                      const std::string& help, double least, double most) {
  const auto read = [name, &value, least, most](const std::string& text) {
    value = parse_real(name, text, least, most);
  };
  return app.add_option_function<std::string>(name, read, help)->type_name("NUMBER");
}

int thread_count(const CommonFlags& flags) {
  return flags.threads > 0 ? flags.threads : default_executor().concurrency();
}

std::int64_t memory_limit(const CommonFlags& flags, const Hardware& machine) {
  if (!flags.memory_limit.empty()) return parse_bytes("--mem-limit", flags.memory_limit);
  return machine.memory_bytes / 4 * 3;
}

}  // namespace tilewise::cli
