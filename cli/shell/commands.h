/// The commands: each adds itself to the program, and its callback returns the exit code through
/// `exit_code`.
#pragma once

namespace CLI {
class App;
}

namespace tilewise::cli {

void add_run(CLI::App& program, int& exit_code);
void add_bench(CLI::App& program, int& exit_code);
void add_plan(CLI::App& program, int& exit_code);
void add_tune(CLI::App& program, int& exit_code);
void add_check(CLI::App& program, int& exit_code);
void add_mask(CLI::App& program, int& exit_code);
void add_info(CLI::App& program, int& exit_code);
void add_layer(CLI::App& program, int& exit_code);
void add_kernels(CLI::App& program, int& exit_code);

/// The whole program: parses, runs, reports failures. Returns the exit code.
int run_program(int argc, const char* const* argv);

}  // namespace tilewise::cli
