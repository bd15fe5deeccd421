/// Presets: lists of problems under a name, as lines of the flags of grid.h. Declared there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Error.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/bench/grid.h"
#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

namespace fs = std::filesystem;

/// "--name=value" words of the grid flags that the command line itself gave.
std::vector<std::string> overrides(const CLI::App& app) {
  GridFlags unused;
  CLI::App grid_app;
  add_grid_flags(grid_app, unused, true);
  std::vector<std::string> words;
  for (const CLI::Option* option : grid_app.get_options()) {
    const std::string name = option->get_name();
    const CLI::Option* given = app.get_option_no_throw(name);
    if (given == nullptr || given->count() == 0 || name == "--help") continue;
    for (const std::string& value : given->results())
      words.push_back(std::string(name).append("=").append(value));
  }
  return words;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  bool begun = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
      begun = true;
    } else if (!quoted && (c == ' ' || c == '\t')) {
      if (begun) words.push_back(std::move(word));
      word.clear();
      begun = false;
    } else {
      word += c;
      begun = true;
    }
  }
  if (begun) words.push_back(std::move(word));
  return words;
}

Grid read_line(const std::string& line, const std::vector<std::string>& last_words, bool timing) {
  GridFlags flags;
  CLI::App app;
  add_grid_flags(app, flags, true);
  std::vector<std::string> words = words_of(line);
  words.insert(words.end(), last_words.begin(), last_words.end());
  std::reverse(words.begin(), words.end());  // as CLI11 takes a vector: the last word first
  app.parse(std::move(words));
  Grid grid = expand_grid(flags);
  if (!timing) grid.view = View::cells;
  return grid;
}

}  // namespace

std::string cases_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / TILEWISE_INSTALLED_CASES;
  const bool is_installed = !error && fs::is_directory(installed, error);
  return cases_dir(is_installed ? installed.string() : TILEWISE_CASES_DIR);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(cases_folder()) / "presets", error)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void add_preset_flag(CLI::App& app, std::string& preset, const char* examples) {
  app.add_option("--preset", preset, "list of problems from cases/presets; other flags override it")
      ->option_text("NAME");
  app.footer([examples] {
    return fmt::format("Examples:\n{}\n\nPresets: {}", examples, fmt::join(preset_names(), ", "));
  });
}

Grid read_preset(const std::string& name, const CLI::App& app, bool timing) {
  const std::vector<std::string> names = preset_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw BadInput(fmt::format("--preset '{}': expected one of {}", name, fmt::join(names, ", ")));
  }
  const fs::path path = fs::path(cases_folder()) / "presets" / (name + ".txt");
  std::ifstream file(path);
  const std::vector<std::string> last_words = overrides(app);
  Grid grid;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line.resize(std::min(line.size(), line.find('#')));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      Grid part = read_line(line, last_words, timing);
      grid.view = part.view;
      std::move(part.cells.begin(), part.cells.end(), std::back_inserter(grid.cells));
    } catch (const CLI::Error& bad) {
      throw BadInput(fmt::format("{}:{}: {}", path.string(), number, bad.what()));
    } catch (const std::runtime_error& bad) {
      throw BadInput(fmt::format("preset {}, line {}: {}", name, number, bad.what()));
    }
  }
  if (grid.cells.empty()) throw BadInput(fmt::format("{}: the preset is empty", path.string()));
  return grid;
}

}  // namespace tilewise::cli
