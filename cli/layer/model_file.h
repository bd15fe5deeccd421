/// Layers on files: which model a state_dict's names and shapes describe, and its weights.
#pragma once

#include <optional>
#include <string>

#include "cli/files/safetensors.h"
#include "harness/device_memory.h"
#include "tilewise/asam.h"

namespace CLI {
class App;
}

namespace tilewise::cli {

/// Options that a file does not contain, or the options of a new model.
struct ModelFlags {
  std::string pattern, compute = "f32";
  std::int64_t dim = 256, heads = 0, layers = 2;
  std::int64_t window = 128, stride = 32, clusters = 32, block = 64, gate_hidden = 128;
  double density = 0.25, route_above = 0.9, dropout = 0.0;
  bool causal = false, ungated = false, recompute = false;
  bool efficient = false;  ///< the flash layer of a file over a window
  std::uint64_t seed = 0;
};
/// Flags of the layers' options that no weight shows: of every command.
void add_layer_flags(CLI::App& app, ModelFlags& flags);
/// The layers' options from the flags; sizes stay as they were in `config`.
void set_options(asam::Config& config, const ModelFlags& flags);

/// The model that a file holds: its kind and sizes from the tensors' names and shapes, the rest
/// from the file's own words (metadata that model_content() writes) and, before them, from the
/// flags. Throws BadInput.
asam::Config model_config(const std::string& path, const files::Safetensors& content,
                          const ModelFlags& flags, const CLI::App& app);

/// Copies a file's weights into a model. Throws BadInput where one is missing, has another shape,
/// or is no parameter.
void load_weights(const std::string& path, const files::Safetensors& content, asam::Model& model,
                  DeviceMemory& memory);

/// The weights, or the gradients, under their names, with the words that model_config() reads.
files::Safetensors model_content(const asam::Model& model, DeviceMemory& memory,
                                 bool gradients = false);

/// A tensor's values on the host as a file's array.
files::Array array_of(const Tensor& tensor, DeviceMemory& memory);

}  // namespace tilewise::cli
