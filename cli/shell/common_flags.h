/// Flags that several commands share: where it runs, and with how much.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "tilewise/plan.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tilewise::cli {

/// Maximum of --repeat and --warmup.
constexpr int kMostRuns = 1'000'000'000;

struct CommonFlags {
  std::string device = "cpu";
  std::string memory_limit;
  int threads = 0;  ///< 0 = the default pool's
};

/// --device and --threads.
void add_device_flags(CLI::App& app, CommonFlags& flags);
/// Those and --mem-limit.
void add_common_flags(CLI::App& app, CommonFlags& flags);

/// An option of one whole number, read as every other one is (parse_integer): in decimal digits,
/// from `least` to `most`.
template <class Integer>
CLI::Option* add_integer(CLI::App& app, const std::string& name, Integer& value,
                         const std::string& help, std::type_identity_t<Integer> least,
                         std::type_identity_t<Integer> most = std::numeric_limits<Integer>::max());

/// The same of one real number.
CLI::Option* add_real(CLI::App& app, const std::string& name, double& value,
                      const std::string& help,
                      double least = -std::numeric_limits<double>::infinity(),
                      double most = std::numeric_limits<double>::infinity());

int thread_count(const CommonFlags& flags);

/// --mem-limit, else 75 % of the machine's memory.
std::int64_t memory_limit(const CommonFlags& flags, const Hardware& machine);

}  // namespace tilewise::cli
