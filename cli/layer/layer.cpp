/// tilewise layer: ASAM's layers.
#include <CLI/App.hpp>

#include "cli/layer/commands.h"
#include "cli/shell/commands.h"

namespace tilewise::cli {

void add_layer(CLI::App& program, int& exit_code) {
  CLI::App* app = program.add_subcommand("layer", "Run, measure and train ASAM layers");
  app->require_subcommand(1);
  add_layer_run(*app, exit_code);
  add_layer_bench(*app, exit_code);
  add_layer_train(*app, exit_code);
}

}  // namespace tilewise::cli
