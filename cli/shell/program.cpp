/// The program: its commands, its help, and how it ends.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/shell/commands.h"
#include "cli/shell/failure.h"
#include "tilewise/attention.h"

namespace tilewise::cli {
namespace {

constexpr std::size_t kHelpColumn = 30;
constexpr std::size_t kHelpWidth = 80;

constexpr const char* kFooter =
    R"(Each command has its own help: tilewise COMMAND --help

Exit codes: 0 done, 1 a check failed, 2 bad arguments or files,
3 no such device or driver, 4 out of memory, 5 unsupported or not compilable,
130 interrupted.

Examples:
  tilewise run examples/data/minilm_layer5_qkv.safetensors --compare reference
  tilewise bench --seq 256:4096:x2 --dim 64 --impl eager,fused,flash --causal
  tilewise plan --batch 8 --seq 16384 --dim 16 --impl eager --mem-limit 24GiB
  tilewise check --smoke)";

/// Help whose descriptions and last lines are wrapped to the width of a terminal.
class WrappedHelp final : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kHelpWidth - kHelpColumn);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    const std::string text = wrapped(command->get_description(), kHelpWidth - kHelpColumn);
    CLI::detail::format_help(out, command->get_name(), text, kHelpColumn);
    return out.str();
  }
  /// Lines that fit are left as they are.
  std::string make_footer(const CLI::App* command) const override {
    std::string out;
    std::istringstream lines(command->get_footer());
    for (std::string line; std::getline(lines, line);) {
      out += "\n" + (line.size() <= kHelpWidth ? line : wrapped(line, kHelpWidth));
    }
    return out.empty() ? out : out + "\n";
  }

 private:
  static std::string wrapped(const std::string& text, std::size_t width) {
    std::string out;
    std::size_t used = 0;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      const bool fits = used + word.size() < width;
      if (used > 0) out += fits ? ' ' : '\n';
      used = (fits ? used + 1 : 0) + word.size();
      out += word;
    }
    return out;
  }
};

/// "'fly' is no command: expected one of run, bench, ...", where one is missing; else empty.
std::string missing_command(const CLI::App& program) {
  const CLI::App* app = &program;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  if (app->get_require_subcommand_min() == 0) return "";
  std::vector<std::string> names;
  for (const CLI::App* command : app->get_subcommands({})) names.push_back(command->get_name());
  const std::vector<std::string> rest = program.remaining(true);
  const std::string what =
      rest.empty() ? "missing command" : fmt::format("'{}' is not a command", rest.front());
  return fmt::format("{}: expected one of {}", what, fmt::join(names, ", "));
}

/// Flags have no value, and other options one that is not empty. Each is given once.
void check_options(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& given = option->results();
    const std::string name = option->get_name();
    const bool is_flag = option->get_items_expected_max() == 0;
    for (const std::string& value : given) {
      if (is_flag && value != "true")
        throw BadInput(fmt::format("{}: a flag takes no value", name));
      if (value.empty()) throw BadInput(fmt::format("{} '': expected a value", name));
    }
    if (given.size() > 1 && option->get_items_expected_max() <= 1)
      throw BadInput(fmt::format("{} is given {} times: expected once", name, given.size()));
  }
}

/// Has every command check its options before it does anything else.
void check_options_of_commands(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    // An option that is given twice gets here, instead of an error of CLI11's.
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() <= 1) option->take_last();
    }
    command->parse_complete_callback([command] { check_options(*command); });
    check_options_of_commands(*command);
  }
}

/// True when a command waits for a value that has no name, such as a formula or files.
bool misses_a_value(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() && option->count() == 0) return true;
  }
  return false;
}

/// "'--fly' is not an argument of tilewise plan".
std::string unexpected(const CLI::App& program) {
  std::string name = program.get_name();
  const CLI::App* app = &program;
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    name += " " + app->get_name();
  }
  const std::vector<std::string> rest = program.remaining(true);
  const std::string word = rest.empty() ? "" : rest.front();
  const bool is_long = word.starts_with("--");
  const bool may_be_value = word.starts_with('-') && !is_long && misses_a_value(*app);
  return fmt::format("'{}' is not an argument of {}{}", word, name,
                     may_be_value ? "; a value that begins with - comes last, after --" : "");
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  CLI::App program("Exact attention, forward and backward: run, measure, plan and check it.",
                   "tilewise");
  int exit_code = kDone;
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("tilewise ") + version());
  const auto help = std::make_shared<WrappedHelp>();
  help->column_width(kHelpColumn);
  program.formatter(help);
  add_run(program, exit_code);
  add_bench(program, exit_code);
  add_plan(program, exit_code);
  add_tune(program, exit_code);
  add_check(program, exit_code);
  add_mask(program, exit_code);
  add_info(program, exit_code);
  add_layer(program, exit_code);
  add_kernels(program, exit_code);
  check_options_of_commands(program);
  program.footer(kFooter);  // after the commands, which would inherit it
  try {
    program.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    const std::string missing = missing_command(program);
    complain(missing.empty() ? error.what() : missing);
    return kBadInput;
  } catch (const CLI::ExtrasError&) {
    complain(unexpected(program));
    return kBadInput;
  } catch (const CLI::ArgumentMismatch& error) {  // "--seq: 1 required TEXT missing"
    const std::string_view what = error.what();
    complain(fmt::format("{}: a value is missing", what.substr(0, what.find(':'))));
    return kBadInput;
  } catch (const CLI::ConversionError& error) {  // "Could not convert: --causal = x"
    complain(fmt::format("{}: a flag takes no value", error.what()));
    return kBadInput;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      complain(error.what());
      return kBadInput;
    }
    // Help of a command that does not exist.
    const std::string missing = program.remaining(true).empty() ? "" : missing_command(program);
    if (missing.empty() && program.exit(error) == 0) {
      if (std::cout.flush()) return kDone;
      complain("standard output: cannot be written");
      return kBadInput;
    }
    complain(missing.empty() ? error.what() : missing);
    return kBadInput;
  } catch (...) {
    return report_failure();
  }
  return exit_code;
}

}  // namespace tilewise::cli
