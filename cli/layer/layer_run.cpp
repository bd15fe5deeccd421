/// tilewise layer run: layers on files.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cli/files/npy.h"
#include "cli/layer/commands.h"
#include "cli/layer/model_file.h"
#include "cli/run/memory_block.h"
#include "cli/shell/args.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/interrupt.h"
#include "cli/shell/output.h"
#include "cli/shell/table.h"
#include "harness/memory_meter.h"

namespace tilewise::cli {
namespace {

struct RunFlags {
  std::string model, input, output, d_output, d_input, gradients, format, lengths, mask;
  bool training = false;
  int draw = 0;
  ModelFlags options;
  CommonFlags common;
};

/// An array of a file where the model's device can reach it.
class DeviceArray {
 public:
  DeviceArray(DeviceMemory& memory, const files::Array& array)
      : block_(memory, static_cast<std::int64_t>(array.bytes.size())),
        view_(make_view(array, memory.device())) {
    memory.copy_in(block_.data(), array.bytes.data(), block_.bytes());
    view_.data = block_.data();
  }
  const Tensor& view() const { return view_; }

 private:
  static Tensor make_view(const files::Array& array, Device device) {
    if (array.shape.size() > Tensor::kMaxRank) {
      throw BadInput(fmt::format("an input of {} axes: expected 3, or 2 for token numbers",
                                 array.shape.size()));
    }
    Tensor t;
    t.dtype = array.dtype;
    t.device = device;
    t.rank = static_cast<int>(array.shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = array.shape.size(); axis-- > 0;) {
      t.sizes[axis] = array.shape[axis];
      t.strides[axis] = stride;
      stride *= array.shape[axis];
    }
    return t;
  }

  Block block_;
  Tensor view_;
};

/// Token numbers as the library takes them, each of them below the vocabulary.
files::Array token_numbers(const std::string& path, const files::Array& array,
                           std::int64_t vocabulary) {
  if (array.dtype != DType::int32 && array.dtype != DType::int64) {
    throw BadInput(fmt::format("{}: {}: expected token numbers, int32 or int64", path,
                               dtype_name(array.dtype)));
  }
  files::Array out = files::make_array(path, DType::int32, array.shape);
  for (std::int64_t i = 0; i < array.numel(); ++i) {
    const std::int64_t id = array.dtype == DType::int64
                                ? reinterpret_cast<const std::int64_t*>(array.bytes.data())[i]
                                : reinterpret_cast<const std::int32_t*>(array.bytes.data())[i];
    if (id < 0 || id >= vocabulary) {
      throw BadInput(
          fmt::format("{}: token number {}: expected 0 to {}", path, id, vocabulary - 1));
    }
    reinterpret_cast<std::int32_t*>(out.bytes.data())[i] = static_cast<std::int32_t>(id);
  }
  return out;
}

Value mean(const std::vector<float>& values) {
  if (values.empty()) return {};
  double sum = 0.0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// What each layer's gate and patterns did.
Table info_table(const asam::Model& model) {
  Table table({{"layer"}, {"gate"}, {"sparse_ratio"}, {"density"}, {"density_run"}, {"patterns"}});
  for (int n = 0; n < model.config().layers; ++n) {
    const asam::LayerInfo info = model.info(n);
    std::map<std::string, int> counts;
    for (const asam::Pattern p : info.pattern) ++counts[std::string(asam::pattern_name(p))];
    std::string patterns;
    for (const auto& [name, count] : counts) {
      patterns += fmt::format("{}{}:{}", patterns.empty() ? "" : " ", name, count);
    }
    const bool gated = !info.gate.empty();
    table.add({n, mean(info.gate), gated ? Value(info.sparse_ratio) : Value(), mean(info.density),
               info.density_run, patterns});
  }
  return table;
}

/// Files to write have folders, and are neither read nor written twice.
void check_outputs(const RunFlags& flags) {
  const std::array<std::pair<const char*, const std::string*>, 3> outputs = {
      {{"--output", &flags.output}, {"--dx", &flags.d_input}, {"--gradients", &flags.gradients}}};
  std::vector<std::string> taken = {flags.model, flags.input, flags.d_output, flags.lengths,
                                    flags.mask};
  for (const auto& [name, path] : outputs) {
    if (path->empty()) continue;
    check_output(*path);
    for (const std::string& other : taken) {
      std::error_code error;
      if (*path == other || std::filesystem::equivalent(*path, other, error)) {
        throw BadInput(fmt::format(
            "{} '{}': this is an input or another output: expected another name", name, *path));
      }
    }
    taken.push_back(*path);
  }
  if (!flags.d_output.empty()) return;
  if (!flags.d_input.empty()) throw BadInput("--dx: expected --dy beside it");
  if (!flags.gradients.empty()) throw BadInput("--gradients: expected --dy beside it");
}

int run_layer(const RunFlags& flags, const CLI::App& app) {
  const Device device = parse_device("--device", flags.common.device);
  const Format format = parse_format("--format", flags.format.empty() ? "md" : flags.format);
  check_outputs(flags);
  const files::Safetensors weights = files::load_safetensors(flags.model);
  asam::Config config = model_config(flags.model, weights, flags.options, app);
  config.device = device;
  WatchedExecutor executor(thread_count(flags.common));
  MemoryMeter meter(memory_limit(flags.common, hardware(device)));
  const std::unique_ptr<DeviceMemory> memory = device_memory(device, &meter);
  asam::Model model(config, {.allocator = &meter, .executor = &executor});
  load_weights(flags.model, weights, model, *memory);

  files::Array input = files::load_npy(flags.input);
  const bool wants_dx = config.vocabulary == 0;
  if (!wants_dx) {
    if (!flags.d_input.empty()) throw BadInput("--dx: token numbers have no gradient");
    input = token_numbers(flags.input, input, config.vocabulary);
  }
  const DeviceArray x(*memory, input);
  std::vector<std::int64_t> shape = input.shape;
  if (config.classes > 0) {
    shape = {input.shape.empty() ? 0 : input.shape[0], config.classes};
  } else if (config.vocabulary > 0) {
    shape.push_back(config.dim);
  }
  const DeviceArray y(*memory, files::make_array(flags.output, config.dtype, shape));
  std::optional<DeviceArray> lengths, mask;
  asam::Visible visible;
  if (!flags.lengths.empty()) {
    lengths.emplace(*memory, files::load_npy(flags.lengths));
    visible.lengths = lengths->view();
  }
  if (!flags.mask.empty()) {
    mask.emplace(*memory, files::load_npy(flags.mask));
    visible.mask = mask->view();
  }
  catch_interrupts();
  const bool backward = !flags.d_output.empty();
  if (backward || flags.training) {
    model.forward(x.view(), y.view(), static_cast<std::uint32_t>(flags.draw), visible);
  } else {
    model.infer(x.view(), y.view(), visible);
  }
  memory->synchronize();
  if (!flags.output.empty()) files::save_npy(flags.output, array_of(y.view(), *memory));
  if (backward) {
    const DeviceArray dy(*memory, files::load_npy(flags.d_output));
    std::optional<DeviceArray> dx;
    if (wants_dx) dx.emplace(*memory, input);
    model.backward(x.view(), dy.view(), wants_dx ? dx->view() : Tensor{});
    memory->synchronize();
    if (!flags.gradients.empty()) {
      files::save_safetensors(flags.gradients, model_content(model, *memory, true));
    }
    if (!flags.d_input.empty()) files::save_npy(flags.d_input, array_of(dx->view(), *memory));
  }
  write_output("", info_table(model).text(format));
  return kDone;
}

}  // namespace

void add_layer_run(CLI::App& layer, int& exit_code) {
  const auto flags = std::make_shared<RunFlags>();
  CLI::App* app = layer.add_subcommand("run", "Run layers on files");
  app->footer(
      "Example:\n"
      "  tilewise layer run model.safetensors x.npy -o y.npy --heads 8");
  app->add_option("model", flags->model,
                  "state_dict of one layer or of a stack; names and shapes determine the model")
      ->required()
      ->option_text("MODEL.safetensors");
  app->add_option("input", flags->input,
                  "(B, n, dim) features, or (B, n) token numbers for a model with an embedding")
      ->required()
      ->option_text("X.npy");
  app->add_option("-o,--output", flags->output, "where y goes")->option_text("Y.npy");
  app->add_flag("--training", flags->training, "run as in training: both branches, dropout");
  app->add_option("--dy", flags->d_output, "gradient of y; also runs the backward")
      ->option_text("DY.npy");
  app->add_option("--dx", flags->d_input, "output for the gradient of x")->option_text("DX.npy");
  app->add_option("--gradients", flags->gradients, "output for the gradients of the weights")
      ->option_text("PATH.safetensors");
  app->add_option("--lengths", flags->lengths,
                  "int32 (B): tokens of each sequence; the others are padding")
      ->option_text("L.npy");
  app->add_option("--mask", flags->mask, "bool, broadcasts to (B, heads, n, n): true attends")
      ->option_text("MASK.npy");
  app->add_flag("--efficient", flags->options.efficient,
                "run a flash layer over --window keys, as EfficientASAMLayer");
  add_integer(*app, "--draw", flags->draw, "seed of the dropout masks", 0)->option_text("N [0]");
  app->add_option("--format", flags->format, "format of the printed output")
      ->option_text("md|csv|json [md]");
  add_layer_flags(*app, flags->options);
  add_common_flags(*app, flags->common);
  app->callback([flags, app, &exit_code] { exit_code = run_layer(*flags, *app); });
}

}  // namespace tilewise::cli
