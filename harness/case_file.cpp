#include <cstdlib>
#include <fstream>

#include "harness/case.h"

namespace tilewise {

std::vector<Case> read_case_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw InvalidArgument("case file '" + path + "' cannot be opened");
  std::vector<Case> cases;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string_view text = std::string_view(line).substr(0, line.find('#'));
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      cases.push_back(parse_case(text));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(path + ":" + std::to_string(number) + ": " + error.what());
    }
    cases.back().line = number;
  }
  if (file.bad()) throw InvalidArgument("case file '" + path + "' cannot be read");
  return cases;
}

std::string cases_dir(std::string_view fallback) {
  const char* given = std::getenv("TILEWISE_CASES_DIR");
  return given != nullptr && *given != '\0' ? given : std::string(fallback);
}

}  // namespace tilewise
