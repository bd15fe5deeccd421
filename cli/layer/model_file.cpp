#include "cli/layer/model_file.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <functional>
#include <set>

#include "cli/shell/args.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

using asam::Config;
using asam::LayerKind;
using files::Array;
using files::Safetensors;

constexpr std::string_view kLayers = "layers.";
constexpr std::string_view kFirstLayer = "layers.0.";

/// One word of the metadata: how it is read from a file, and the flag that goes before it.
struct Word {
  const char* name;
  const char* flag;
  std::function<void(Config&, const std::string&)> read;
  std::function<std::string(const Config&)> write;
};

template <class Member>
Word number(const char* name, const char* flag, Member member) {
  return {name, flag,
          [=](Config& c, const std::string& text) {
            using Value = std::remove_reference_t<decltype(c.*member)>;
            if constexpr (std::is_same_v<Value, double>) {
              c.*member = parse_real(name, text);
            } else if constexpr (std::is_same_v<Value, bool>) {
              c.*member = parse_integer(name, text, 0, 1) == 1;
            } else {
              c.*member = parse_integer(name, text, 0);
            }
          },
          [=](const Config& c) {
            using Value = std::remove_cvref_t<decltype(c.*member)>;
            if constexpr (std::is_same_v<Value, bool>)
              return std::string(c.*member ? "1" : "0");
            else
              return fmt::format("{}", c.*member);
          }};
}

const std::vector<Word>& words() {
  static const std::vector<Word> all = {
      number("heads", "--heads", &Config::heads),
      {"pattern", "--pattern",
       [](Config& c, const std::string& text) { c.pattern = asam::parse_pattern(text); },
       [](const Config& c) { return std::string(asam::pattern_name(c.pattern)); }},
      number("window_size", "--window", &Config::window_size),
      number("stride", "--stride", &Config::stride),
      number("block_size", "--block", &Config::block_size),
      number("causal", "--causal", &Config::causal),
      number("density", "--density", &Config::density),
      number("route_above", "--route-above", &Config::route_above),
      number("dropout", "--dropout", &Config::dropout),
      number("adaptive_gate", "--no-gate", &Config::adaptive_gate),
      {"kind", nullptr, [](Config& c, const std::string& text) { c.kind = asam::parse_kind(text); },
       [](const Config& c) { return std::string(asam::kind_name(c.kind)); }},
      {"readout", nullptr,
       [](Config& c, const std::string& text) {
         if (text != "last" && text != "mean")
           throw BadInput(fmt::format("readout '{}': expected mean or last", text));
         c.readout = text == "last" ? asam::Readout::last : asam::Readout::mean;
       },
       [](const Config& c) {
         return std::string(c.readout == asam::Readout::last ? "last" : "mean");
       }},
  };
  return all;
}

/// The file of one layer has no "layers.0." before its names.
bool is_one_layer(const Safetensors& content) { return content.find("ffn.0.weight") != nullptr; }

std::string name_in_model(const Safetensors& content, const std::string& name) {
  return is_one_layer(content) ? std::string(kFirstLayer) + name : name;
}

/// A tensor of the first layer by its name there; null where there is none.
const Array* of_layer(const Safetensors& content, const std::string& name) {
  return content.find(is_one_layer(content) ? name : std::string(kFirstLayer) + name);
}

std::int64_t size_of(const std::string& path, const Array* array, const std::string& name,
                     std::size_t axis) {
  if (array == nullptr || array->shape.size() <= axis) {
    throw BadInput(fmt::format(
        "{}: expected the weights of a layer: {} is missing or has too few axes", path, name));
  }
  return array->shape[axis];
}

std::int64_t size(const std::string& path, const Safetensors& content, const std::string& name,
                  std::size_t axis) {
  return size_of(path, of_layer(content, name), name, axis);
}

/// A tensor beside the layers; 0 where there is none.
std::int64_t rows(const std::string& path, const Safetensors& content, const std::string& name) {
  const Array* array = content.find(name);
  return array != nullptr ? size_of(path, array, name, 0) : 0;
}

/// Layers without a gap in their numbers: what follows a gap is no parameter of the model.
int layer_count(const Safetensors& content) {
  const auto has = [&](int layer) {
    const std::string prefix = fmt::format("{}{}.", kLayers, layer);
    return std::ranges::any_of(content.tensors, [&](const files::NamedArray& tensor) {
      return tensor.name.starts_with(prefix);
    });
  };
  int count = 1;
  while (has(count)) ++count;
  return count;
}

/// The heads that the weights or the metadata state, or --heads.
void read_heads(const std::string& path, const Safetensors& content, const CLI::App& app,
                Config& c) {
  const bool by_flag = app.count("--heads") > 0;
  if (of_layer(content, "adaptive_attn.gate.sparse_threshold") != nullptr) {
    const std::int64_t heads = size(path, content, "adaptive_attn.gate.sparse_threshold", 0);
    if (by_flag && c.heads != heads)
      throw BadInput(fmt::format("--heads {}: {} has {} heads", c.heads, path, heads));
    c.heads = heads;
  } else if (!by_flag && !content.metadata.contains("heads")) {
    throw BadInput(
        fmt::format("{}: the file does not state the number of heads: expected --heads N", path));
  }
  const bool joint = of_layer(content, "qkv.weight") != nullptr;
  const std::int64_t inner = size(path, content, joint ? "qkv.weight" : "to_qkv.weight", 0) / 3;
  if (c.heads < 1 || inner % c.heads != 0) {
    throw BadInput(fmt::format("{} {}: it must divide the {} features of q in {}",
                               by_flag ? "--heads" : "heads", c.heads, inner, path));
  }
  c.head_dim = inner / c.heads;
}

/// The published pattern's parameters name the pattern and the tokens: "hierarchical_128".
void read_pattern(const Safetensors& content, Config& c) {
  constexpr std::string_view kModules = "_pattern_modules.";
  for (const files::NamedArray& tensor : content.tensors) {
    const std::size_t at = tensor.name.find(kModules);
    if (at == std::string::npos) continue;
    const std::string rest = tensor.name.substr(at + kModules.size());
    const std::string module = rest.substr(0, rest.find('.'));
    const std::size_t bar = module.rfind('_');
    if (bar == std::string::npos) continue;
    c.pattern = asam::parse_pattern(module.substr(0, bar));
    if (module.starts_with("clustered") && tensor.array.shape.size() == 3) {
      c.clusters = tensor.array.shape[1];
    }
    c.pattern_tokens = parse_integer("tokens of " + module, module.substr(bar + 1), 1);
  }
}

}  // namespace

void add_layer_flags(CLI::App& app, ModelFlags& flags) {
  add_integer(app, "--heads", flags.heads, "attention heads [from the file, else 4]", 1)
      ->option_text("N");
  app.add_option("--pattern", flags.pattern,
                 "local, strided, random, clustered, hierarchical, selected or auto [from the "
                 "file, else local]")
      ->option_text("NAME");
  add_integer(app, "--window", flags.window, "number of keys of the local pattern", 1)
      ->option_text("N [128]");
  add_integer(app, "--stride", flags.stride, "stride of the strided pattern, in tokens", 1)
      ->option_text("N [32]");
  add_integer(app, "--block", flags.block, "tokens of a block", 16, 256)->option_text("N [64]");
  add_real(app, "--density", flags.density, "fraction of the key blocks that `selected` keeps", 0.0,
           1.0)
      ->option_text("X [0.25]");
  add_real(app, "--route-above", flags.route_above,
           "in inference, gates of X and more run only the sparse branch, gates of 1 - X and "
           "less only the dense branch",
           0.5, 1.0)
      ->option_text("X [0.9]");
  add_real(app, "--dropout", flags.dropout, "dropout probability in training", 0.0, 0.99)
      ->option_text("X [0]");
  app.add_option(
         "--compute", flags.compute,
         "type of attention and kept activations, on CUDA of products; `bench` takes a list")
      ->option_text("f32|bf16|f16 [f32]");
  app.add_flag("--causal", flags.causal, "causal mask, for the adaptive layer");
  app.add_flag("--no-gate", flags.ungated, "only the sparse branch");
  app.add_flag("--recompute", flags.recompute,
               "recompute each layer's forward in backward, to save memory");
}

void set_options(Config& c, const ModelFlags& flags) {
  c.heads = flags.heads > 0 ? flags.heads : c.heads;
  if (!flags.pattern.empty()) c.pattern = asam::parse_pattern(flags.pattern);
  c.window_size = flags.window;
  c.stride = flags.stride;
  c.block_size = flags.block;
  c.density = flags.density;
  c.route_above = flags.route_above;
  c.dropout = c.gate_dropout = flags.dropout;
  c.compute = parse_float_type("--compute", flags.compute);
  c.causal = flags.causal;
  c.adaptive_gate = !flags.ungated;
  c.recompute = flags.recompute;
  c.seed = flags.seed;
}

Config model_config(const std::string& path, const Safetensors& content, const ModelFlags& flags,
                    const CLI::App& app) {
  Config c;
  set_options(c, flags);
  for (const Word& word : words()) {
    const auto said = content.metadata.find(word.name);
    const bool by_flag = word.flag != nullptr && app.count(word.flag) > 0;
    if (said != content.metadata.end() && !by_flag) word.read(c, said->second);
  }
  c.dim = size(path, content, "norm.weight", 0);
  c.layers = layer_count(content);
  c.final_norm = !is_one_layer(content) && content.find("norm.weight") != nullptr;
  c.vocabulary = rows(path, content, "embedding.weight");
  c.classes = rows(path, content, "head.weight");
  c.dtype = of_layer(content, "norm.weight")->dtype;
  if (of_layer(content, "qkv.weight") != nullptr) {
    const bool windowed = c.kind == LayerKind::efficient || flags.efficient;
    c.kind = windowed ? LayerKind::efficient : LayerKind::flash;
  } else if (of_layer(content, "adaptive_attn.centroids") != nullptr) {
    c.kind = LayerKind::adaptive;
    c.clusters = size(path, content, "adaptive_attn.centroids", 1);
    c.gate_hidden = size(path, content, "adaptive_attn.gate.feature_proj.0.weight", 0);
  } else {
    c.kind = LayerKind::original;
    c.adaptive_gate = of_layer(content, "adaptive_attn.to_qkv.weight") != nullptr;
    read_pattern(content, c);
  }
  if (flags.efficient && c.kind != LayerKind::efficient)
    throw BadInput(fmt::format("--efficient: {} has no flash layers", path));
  read_heads(path, content, app, c);
  return c;
}

void load_weights(const std::string& path, const Safetensors& content, asam::Model& model,
                  DeviceMemory& memory) {
  std::set<std::string> there;
  for (const files::NamedArray& tensor : content.tensors) {
    there.insert(name_in_model(content, tensor.name));
  }
  for (const asam::Parameter& p : model.parameters()) {
    const auto at = std::ranges::find_if(content.tensors, [&](const files::NamedArray& tensor) {
      return name_in_model(content, tensor.name) == p.name;
    });
    if (at == content.tensors.end()) {
      throw BadInput(fmt::format("{}: the parameter {} is missing", path, p.name));
    }
    const std::vector<std::int64_t> shape(p.value.sizes.begin(),
                                          p.value.sizes.begin() + p.value.rank);
    if (at->array.shape != shape || at->array.dtype != p.value.dtype) {
      throw BadInput(fmt::format("{}: {} is {} {}: expected {} {}", path, p.name,
                                 dtype_name(at->array.dtype), files::shape_text(at->array.shape),
                                 dtype_name(p.value.dtype), files::shape_text(shape)));
    }
    memory.copy_in(p.value.data, at->array.bytes.data(),
                   static_cast<std::int64_t>(at->array.bytes.size()));
    there.erase(p.name);
  }
  if (!there.empty()) {
    throw BadInput(fmt::format("{}: {} is not a parameter of this model", path, *there.begin()));
  }
}

Safetensors model_content(const asam::Model& model, DeviceMemory& memory, bool gradients) {
  Safetensors content;
  const bool one_layer = !model.config().final_norm && model.config().layers == 1;
  for (const asam::Parameter& p : model.parameters()) {
    std::string name = p.name;
    if (one_layer && name.starts_with(kFirstLayer)) name = name.substr(kFirstLayer.size());
    content.tensors.push_back({name, array_of(gradients ? p.gradient : p.value, memory)});
  }
  for (const Word& word : words()) content.metadata[word.name] = word.write(model.config());
  return content;
}

Array array_of(const Tensor& tensor, DeviceMemory& memory) {
  Array array = files::make_array("a tensor", tensor.dtype,
                                  {tensor.sizes.begin(), tensor.sizes.begin() + tensor.rank});
  memory.copy_out(array.bytes.data(), tensor.data, static_cast<std::int64_t>(array.bytes.size()));
  return array;
}

}  // namespace tilewise::cli
