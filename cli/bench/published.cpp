#include "cli/bench/published.h"

#include <fmt/format.h>

#include <fstream>

#include "cli/bench/grid.h"
#include "cli/shell/failure.h"

namespace tilewise::cli {

const Value& published() {
  static const Value value = [] {
    const std::string path = cases_folder() + "/seeds_published.json";
    std::ifstream file(path);
    if (!file) throw BadInput(fmt::format("{}: cannot be read", path));
    Value parsed = Value::parse(file, nullptr, false);
    if (parsed.is_discarded()) throw BadInput(fmt::format("{}: is not valid JSON", path));
    return parsed;
  }();
  return value;
}

}  // namespace tilewise::cli
