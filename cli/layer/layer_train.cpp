/// tilewise layer train: layers learn a toy task, on the same batches each.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <memory>

#include "cli/layer/commands.h"
#include "cli/layer/model_file.h"
#include "cli/layer/tasks.h"
#include "cli/run/memory_block.h"
#include "cli/shell/args.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/interrupt.h"
#include "cli/shell/output.h"
#include "cli/shell/progress.h"
#include "harness/memory_meter.h"

namespace tilewise::cli {
namespace {

constexpr std::int64_t kExamined = 512;  ///< sequences that accuracy is taken on
constexpr std::uint64_t kFirstDraw = 7;  ///< of the batches

struct TrainFlags {
  std::string task = "needle", kinds = "flash,adaptive,original", format, output, weights;
  std::int64_t tokens = 512, batch = 16, steps = 400;
  double learning_rate = 1e-3;
  bool scale_loss = false;
  ModelFlags options;
  CommonFlags common;
};

struct Outcome {
  std::string kind;
  std::int64_t steps = 0;
  asam::TrainStatus status;
  double accuracy = 0.0, density = 1.0;
};

/// One layer's training and examination.
class School {
 public:
  School(const TrainFlags& flags, asam::LayerKind kind, const Launch& launch, DeviceMemory& memory)
      : flags_(flags),
        task_(find_task(flags.task)),
        memory_(memory),
        model_(config(flags, kind, task_, memory.device()), launch),
        trainer_(model_,
                 {.learning_rate = flags.learning_rate,
                  .scale_loss = flags.scale_loss || model_.config().compute == DType::float16}),
        ids_(memory, 4 * flags.batch * flags.tokens),
        labels_(memory, 4 * flags.batch),
        logits_(memory, 4 * flags.batch * task_.classes),
        random_(kFirstDraw) {}

  void step() {
    place(draw());
    trainer_.step(ids(), labels());
  }
  asam::TrainStatus status() const { return trainer_.status(); }

  Outcome examine(std::int64_t steps) {
    Outcome out{.kind = std::string(asam::kind_name(model_.config().kind)),
                .steps = steps,
                .status = trainer_.status()};
    std::vector<float> logits(static_cast<std::size_t>(flags_.batch * task_.classes));
    std::int64_t right = 0, seen = 0;
    double density = 0.0;
    int batches = 0;
    for (; seen < kExamined; seen += flags_.batch, ++batches) {
      const Examples batch = draw();
      place(batch);
      model_.infer(ids(), Tensor::contiguous(logits_.data(), DType::float32,
                                             {flags_.batch, task_.classes}, memory_.device()));
      memory_.synchronize();
      memory_.copy_out(logits.data(), logits_.data(), logits_.bytes());
      for (std::int64_t b = 0; b < flags_.batch; ++b) {
        const auto row = logits.begin() + b * task_.classes;
        const auto answer = std::max_element(row, row + task_.classes) - row;
        right += answer == batch.labels[static_cast<std::size_t>(b)] ? 1 : 0;
      }
      for (int n = 0; n < model_.config().layers; ++n) density += model_.info(n).density_run;
    }
    out.accuracy = 100.0 * static_cast<double>(right) / static_cast<double>(seen);
    out.density = density / (batches * model_.config().layers);
    return out;
  }

  const asam::Model& model() const { return model_; }

 private:
  static asam::Config config(const TrainFlags& flags, asam::LayerKind kind, const Task& task,
                             Device device) {
    asam::Config c;
    set_options(c, flags.options);
    c.kind = kind;
    c.dim = flags.options.dim;
    c.heads = flags.options.heads > 0 ? flags.options.heads : 4;
    if (c.dim % c.heads != 0) {
      throw BadInput(fmt::format("--heads {}: they must divide --dim {}", c.heads, c.dim));
    }
    c.head_dim = c.dim / c.heads;
    c.layers = static_cast<int>(flags.options.layers);
    c.vocabulary = task.vocabulary;
    c.classes = task.classes;
    c.readout = asam::Readout::last;
    c.pattern_tokens = flags.tokens;
    c.device = device;
    const bool adaptive = kind == asam::LayerKind::adaptive;
    if (flags.options.pattern.empty() && adaptive) c.pattern = asam::Pattern::automatic;
    if (!adaptive) c.causal = false;
    return c;
  }

  Examples draw() { return task_.draw(flags_.batch, flags_.tokens, random_); }
  void place(const Examples& batch) {
    memory_.copy_in(ids_.data(), batch.ids.data(), ids_.bytes());
    memory_.copy_in(labels_.data(), batch.labels.data(), labels_.bytes());
  }
  Tensor ids() const {
    return Tensor::contiguous(ids_.data(), DType::int32, {flags_.batch, flags_.tokens},
                              memory_.device());
  }
  Tensor labels() const {
    return Tensor::contiguous(labels_.data(), DType::int32, {flags_.batch}, memory_.device());
  }

  const TrainFlags& flags_;
  const Task& task_;
  DeviceMemory& memory_;
  asam::Model model_;
  asam::Trainer trainer_;
  Block ids_, labels_, logits_;
  std::mt19937_64 random_;
};

Table outcome_table(const TrainFlags& flags, const std::vector<Outcome>& outcomes) {
  Table table({{"task"},
               {"seq"},
               {"layer"},
               {"steps"},
               {"loss", 4},
               {"accuracy_percent", 1},
               {"density_run"},
               {"scale", 0},
               {"skipped"}});
  for (const Outcome& o : outcomes) {
    table.add({flags.task, flags.tokens, o.kind, o.steps, o.status.loss, o.accuracy, o.density,
               o.status.scale, o.status.skipped});
  }
  return table;
}

int train(const TrainFlags& flags) {
  const Device device = parse_device("--device", flags.common.device);
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  check_output(flags.weights);
  check_tokens(flags.batch, flags.tokens);
  std::vector<asam::LayerKind> kinds;
  for (const std::string& name : split_list("--layer", flags.kinds)) {
    kinds.push_back(asam::parse_kind(name));
  }
  WatchedExecutor executor(thread_count(flags.common));
  MemoryMeter meter(memory_limit(flags.common, hardware(device)));
  const std::unique_ptr<DeviceMemory> memory = device_memory(device, &meter);
  const Launch launch{.allocator = &meter, .executor = &executor};

  catch_interrupts();
  std::vector<Outcome> outcomes;
  bool stopped = false;
  {
    Progress progress(kinds.size() * static_cast<std::size_t>(flags.steps));
    for (const asam::LayerKind kind : kinds) {
      try {
        School school(flags, kind, launch, *memory);
        for (std::int64_t n = 0; n < flags.steps; ++n) {
          throw_if_interrupted();
          school.step();
          progress.advance();
          if (n % 10 == 0) {
            progress.show(fmt::format("{}: step {}, loss {:.4f}", asam::kind_name(kind), n,
                                      school.status().loss));
          }
        }
        outcomes.push_back(school.examine(flags.steps));
        if (!flags.weights.empty() && kind == kinds.front()) {
          files::save_safetensors(flags.weights, model_content(school.model(), *memory));
        }
      } catch (const Interrupted&) {
        stopped = true;
        break;
      }
    }
  }
  write_output(flags.output, outcome_table(flags, outcomes).text(format));
  return stopped ? kInterrupted : kDone;
}

}  // namespace

void add_layer_train(CLI::App& layer, int& exit_code) {
  const auto flags = std::make_shared<TrainFlags>();
  flags->options.dim = 64;
  flags->options.density = 0.125;
  CLI::App* app =
      layer.add_subcommand("train", "Train layers on a toy task, all on the same batches");
  app->add_option("--task", flags->task, "needle (copy one token) or listops (nested expressions)")
      ->option_text("NAME [needle]");
  app->add_option("--layer", flags->kinds, "list of flash, adaptive, original")
      ->option_text("LIST [all]");
  add_integer(*app, "--seq", flags->tokens, "tokens per sequence", 2)->option_text("N [512]");
  add_integer(*app, "--batch", flags->batch, "sequences per step", 1)->option_text("N [16]");
  add_integer(*app, "--steps", flags->steps, "training steps", 1)->option_text("N [400]");
  add_integer(*app, "--dim", flags->options.dim, "features per token", 1)->option_text("N [64]");
  add_integer(*app, "--layers", flags->options.layers, "layers", 1, 1000)->option_text("N [2]");
  add_integer(*app, "--seed", flags->options.seed, "seed of the initial weights", std::uint64_t{0})
      ->option_text("N [0]");
  add_real(*app, "--rate", flags->learning_rate, "Adam's learning rate", 0.0, 10.0)
      ->option_text("X [0.001]");
  app->add_flag("--scale-loss", flags->scale_loss, "scale the loss, as --compute f16 does");
  app->add_option("--weights", flags->weights, "output for the trained model of the first layer")
      ->option_text("PATH.safetensors");
  add_layer_flags(*app, flags->options);
  add_common_flags(*app, flags->common);
  add_output_flags(*app, flags->format, flags->output);
  app->callback([flags, &exit_code] { exit_code = train(*flags); });
}

}  // namespace tilewise::cli
