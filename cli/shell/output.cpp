#include "cli/shell/output.h"

#include <CLI/App.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>

#include "cli/files/error.h"
#include "cli/files/output.h"

namespace tilewise::cli {

void add_output_flags(CLI::App& app, std::string& format, std::string& output) {
  app.add_option("--format", format, "table format [from the name of FILE, else md]")
      ->group("Output")
      ->option_text("md|csv|json");
  app.add_option("-o,--output", output, "output file [standard output]")
      ->group("Output")
      ->option_text("FILE");
}

void check_output(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!parent.empty() && !std::filesystem::is_directory(parent, error)) {
    throw files::FileError(path, "cannot be written: there is no folder " + parent.string());
  }
  if (std::filesystem::is_directory(path, error)) {
    throw files::FileError(path, "cannot be written: it is a folder");
  }
}

Format output_format(const std::string& format, const std::string& output) {
  if (!format.empty()) return parse_format("--format", format);
  const std::string extension = std::filesystem::path(output).extension().string();
  if (extension == ".json") return Format::json;
  return extension == ".csv" ? Format::csv : Format::markdown;
}

void write_output(const std::string& path, std::string_view text) {
  const std::span<const char> letters(text);
  if (!path.empty()) {
    const std::array pieces = {std::as_bytes(letters)};
    files::write_file(path, pieces);
    return;
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    throw files::FileError("standard output", std::strerror(errno));
  }
}

}  // namespace tilewise::cli
