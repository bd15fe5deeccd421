/// The output of a report: the terminal, or a file that is written as a whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "cli/shell/table.h"

namespace CLI {
class App;
}

namespace tilewise::cli {

/// --format and -o.
void add_output_flags(CLI::App& app, std::string& format, std::string& output);

/// Throws FileError when no file of that name can be made, before any work is done for it.
void check_output(const std::string& path);

/// The format from --format, else from the file's name, else Markdown.
Format output_format(const std::string& format, const std::string& output);

/// To `path`, or to standard output when it is empty. Throws FileError.
void write_output(const std::string& path, std::string_view text);

}  // namespace tilewise::cli
