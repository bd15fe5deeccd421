/// The commands of `tilewise layer`.
#pragma once

namespace CLI {
class App;
}

namespace tilewise::cli {

void add_layer_run(CLI::App& layer, int& exit_code);
void add_layer_bench(CLI::App& layer, int& exit_code);
void add_layer_train(CLI::App& layer, int& exit_code);

}  // namespace tilewise::cli
