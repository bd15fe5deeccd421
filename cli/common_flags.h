/// Flags that several commands share: where it runs, and with how much.
#pragma once

#include <cstdint>
#include <string>

#include "tilewise/plan.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace tilewise::cli {

struct CommonFlags {
  std::string device = "cpu";
  std::string memory_limit;
  int threads = 0;  ///< 0 = the default pool's
};

/// --device and --threads.
void add_device_flags(CLI::App& app, CommonFlags& flags);
/// Those and --mem-limit.
void add_common_flags(CLI::App& app, CommonFlags& flags);

/// For an option of one number: refuses text that is none, NaN too, and what is not in [least,
/// most].
CLI::Validator number_within(double least, double most);

int thread_count(const CommonFlags& flags);

/// --mem-limit, else 75 % of the machine's memory.
std::int64_t memory_limit(const CommonFlags& flags, const Hardware& machine);

}  // namespace tilewise::cli
