/// tilewise layer bench: time and memory of seed 003's models, by layer and length.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <memory>
#include <optional>
#include <random>

#include "cli/bench/bench_report.h"
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
#include "cuda/driver/stream.h"
#include "harness/memory_meter.h"

namespace tilewise::cli {
namespace {

/// Seed 003's model around the layers.
constexpr std::int64_t kVocabulary = 1000, kClasses = 10;
/// The longest sequence is looked for in steps of so many tokens.
constexpr std::int64_t kLengthStep = 256;

struct BenchFlags {
  std::string preset, kinds, seq, pass, format, output;
  std::int64_t batch = 0, longest = 262144;
  int warmup = -1, repeat = -1;
  bool graph = false;
  ModelFlags options;
  CommonFlags common;
};

/// What a preset says where no flag does.
struct Preset {
  const char* name;
  const char* kinds;
  const char* seq;
  const char* pass;
  const char* compute;  ///< on a CUDA device
  std::int64_t batch;
  int warmup, repeat;
  bool longest;  ///< and the longest sequence under the memory limit
};
constexpr Preset kPresets[] = {
    {"asam-forward", "original,flash,adaptive", "128:2048:x2", "infer", "f32", 2, 5, 20, false},
    {"asam-training", "original,flash,adaptive", "128:1024:x2", "train", "f32,f16,bf16", 4, 3, 10,
     false},
    {"asam-memory", "original,flash,adaptive", "2048", "train", "f32,f16", 4, 0, 1, true},
};

const Preset& find_preset(const std::string& name) {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return preset;
    names.emplace_back(preset.name);
  }
  if (!name.empty()) check_one_of("--preset", name, names);
  return kPresets[0];
}

struct Cell {
  asam::LayerKind kind;
  std::int64_t batch, tokens;
  bool training;
  std::string compute;
};

/// Multiply-adds of a step, counted twice: the products, and the attention that ran. Backward has
/// two products for each of the forward's, and five of attention's for two.
double step_flops(const asam::Model& model, const Cell& cell) {
  const asam::Config& c = model.config();
  const auto rows = static_cast<double>(cell.batch * cell.tokens);
  const auto dim = static_cast<double>(c.dim);
  const auto inner = static_cast<double>(c.heads * c.head_dim);
  double products = 0.0, attention = 0.0;
  for (int n = 0; n < c.layers; ++n) {
    products += 2.0 * rows * (4.0 * dim * inner + 8.0 * dim * dim);
    const double dense = 4.0 * rows * static_cast<double>(cell.tokens) * inner;
    // The published layer runs every pair twice, masked and not.
    attention +=
        dense *
        (c.kind == asam::LayerKind::original && c.adaptive_gate ? 2.0 : model.info(n).density_run);
  }
  return cell.training ? 3.0 * products + 3.5 * attention : products + attention;
}

/// Measures cells on one device under one limit.
class Bench {
 public:
  Bench(const BenchFlags& flags, const Preset& preset)
      : flags_(flags),
        device_(parse_device("--device", flags.common.device)),
        limit_(memory_limit(flags.common, hardware(device_))),
        executor_(thread_count(flags.common)),
        clock_(cpu_clock()) {
    timer_.warmup = flags.warmup >= 0 ? flags.warmup : preset.warmup;
    timer_.repeat = flags.repeat >= 1 ? flags.repeat : preset.repeat;
    timer_.budget_s = 0.0;
  }

  Measurement measure(const Cell& cell) {
    const asam::Config c = config(cell);
    Measurement row = blank(cell, c);
    try {
      time(cell, c, row);
    } catch (const OutOfMemory& error) {
      row.status = Status::oom;
      row.reason = error.what();
      row.ms = {};
    } catch (const Unsupported& error) {
      row.status = Status::unsupported;
      row.reason = error.what();
    }
    return row;
  }

  /// The longest sequence that a step of `kind` fits the limit with; by doubling and bisection.
  Measurement longest(asam::LayerKind kind, const std::string& compute, std::int64_t batch,
                      Progress& progress) {
    std::int64_t low = 0, high = 1;  // in steps: low fits, high does not
    std::optional<Measurement> best;
    const auto fits = [&](std::int64_t steps) {
      throw_if_interrupted();
      progress.show(fmt::format("{}: {} tokens", asam::kind_name(kind), steps * kLengthStep));
      Measurement row = measure({kind, batch, steps * kLengthStep, true, compute});
      if (row.status != Status::ok) return false;
      best = std::move(row);
      return true;
    };
    while (high * kLengthStep <= flags_.longest && fits(high)) {
      low = high;
      high *= 2;
    }
    if (high * kLengthStep > flags_.longest) high = low + 1;
    while (high - low > std::max<std::int64_t>(1, low / 16)) {
      const std::int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    if (!best) return measure({kind, batch, kLengthStep, true, compute});
    best->reason =
        fmt::format("the longest sequence of a training step under {}", format_bytes(limit_));
    return *best;
  }

 private:
  asam::Config config(const Cell& cell) const {
    asam::Config c;
    ModelFlags options = flags_.options;
    options.compute = cell.compute;
    set_options(c, options);
    c.kind = cell.kind;
    c.dim = flags_.options.dim;
    c.heads = flags_.options.heads > 0 ? flags_.options.heads : 4;
    if (c.dim % c.heads != 0) {
      throw BadInput(fmt::format("--heads {}: they must divide --dim {}", c.heads, c.dim));
    }
    c.head_dim = c.dim / c.heads;
    c.layers = static_cast<int>(flags_.options.layers);
    c.vocabulary = kVocabulary;
    c.classes = kClasses;
    c.pattern_tokens = cell.tokens;
    c.device = device_;
    c.graph = flags_.graph;
    const bool adaptive = cell.kind == asam::LayerKind::adaptive;
    if (flags_.options.pattern.empty() && adaptive) c.pattern = asam::Pattern::automatic;
    if (!adaptive) c.causal = false;
    return c;
  }

  Measurement blank(const Cell& cell, const asam::Config& c) const {
    Measurement row;
    row.problem.batch = cell.batch;
    row.problem.heads_q = row.problem.heads_k = c.heads;
    row.problem.seq_q = row.problem.seq_k = cell.tokens;
    row.problem.head_dim = row.problem.head_dim_v = c.head_dim;
    row.problem.causal = c.causal ? Causal::top_left : Causal::none;
    row.problem.layout = Layout::qkv;
    row.problem.dtype = c.compute;
    row.implementation = fmt::format("layer-{}", asam::kind_name(cell.kind));
    row.kernel = fmt::format("{} layers, dim {}{}", c.layers, c.dim, flags_.graph ? ", graph" : "");
    row.device = device_;
    row.timed = cell.training ? Timed::both : Timed::forward;
    row.threads = executor_.concurrency();
    row.reason = cell.training ? "fwd+bwd is a training step: forward, loss, backward, Adam" : "";
    return row;
  }

  void time(const Cell& cell, const asam::Config& c, Measurement& row) {
    MemoryMeter meter(limit_);
    const std::unique_ptr<DeviceMemory> memory = device_memory(device_, &meter);
    std::optional<cuda::Stream> stream;
    if (device_.type == DeviceType::cuda) stream.emplace(device_.index);
    const Launch launch{
        .stream = stream ? stream->get() : nullptr, .allocator = &meter, .executor = &executor_};
    asam::Model model(c, launch);
    std::mt19937 random(1);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(cell.batch * cell.tokens));
    std::vector<std::int32_t> labels(static_cast<std::size_t>(cell.batch));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % kVocabulary);
    for (std::int32_t& label : labels) label = static_cast<std::int32_t>(random() % kClasses);
    const Block x(*memory, static_cast<std::int64_t>(ids.size()) * 4);
    const Block answers(*memory, cell.batch * 4), logits(*memory, cell.batch * kClasses * 4);
    memory->copy_in(x.data(), ids.data(), x.bytes());
    memory->copy_in(answers.data(), labels.data(), answers.bytes());
    const Tensor in =
        Tensor::contiguous(x.data(), DType::int32, {cell.batch, cell.tokens}, device_);
    const Tensor out = Tensor::contiguous(logits.data(), c.dtype, {cell.batch, kClasses}, device_);
    const Tensor truth = Tensor::contiguous(answers.data(), DType::int32, {cell.batch}, device_);
    std::optional<asam::Trainer> trainer;
    if (cell.training) {
      trainer.emplace(model, asam::TrainOptions{.scale_loss = c.compute == DType::float16});
    }

    TimedWork work;
    work.run = [&] {
      if (trainer) {
        trainer->step(in, truth);
      } else {
        model.infer(in, out);
      }
      model.synchronize();
    };
    work.interrupted = [] { return interrupted(); };
    const Timing timing = tilewise::measure(work, timer_, *clock_);
    throw_if_interrupted();
    row.ms = timing.ms;
    row.flops = step_flops(model, cell);
    row.live_bytes = model.bytes();
    row.peak_bytes = meter.peak_bytes();
  }

  const BenchFlags& flags_;
  Device device_;
  std::int64_t limit_;
  WatchedExecutor executor_;
  std::unique_ptr<Clock> clock_;
  TimerOptions timer_;
};

int bench_layers(const BenchFlags& flags, const CLI::App& app) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  const Preset& preset = find_preset(flags.preset);
  const std::string pass = flags.pass.empty() ? preset.pass : flags.pass;
  check_one_of("--pass", pass, {"infer", "train"});
  const std::int64_t batch = flags.batch > 0 ? flags.batch : preset.batch;
  std::vector<asam::LayerKind> kinds;
  for (const std::string& name :
       split_list("--layer", flags.kinds.empty() ? preset.kinds : flags.kinds)) {
    kinds.push_back(asam::parse_kind(name));
  }
  const bool on_cpu = parse_device("--device", flags.common.device).type == DeviceType::cpu;
  const bool given = app.count("--compute") > 0;
  const std::vector<std::string> computes = split_list("--compute", given    ? flags.options.compute
                                                                    : on_cpu ? "f32"
                                                                             : preset.compute);
  std::vector<Cell> cells;
  for (const std::int64_t tokens :
       parse_axis("--seq", flags.seq.empty() ? preset.seq : flags.seq, 1)) {
    check_tokens(batch, tokens);
    for (const asam::LayerKind kind : kinds) {
      for (const std::string& compute : computes) {
        cells.push_back({kind, batch, tokens, pass == "train", compute});
      }
    }
  }
  Bench bench(flags, preset);
  std::vector<Measurement> rows;
  bool stopped = false;
  const std::size_t all = cells.size() + (preset.longest ? kinds.size() * computes.size() : 0);
  const auto write = [&] {
    write_output(flags.output, bench_report(rows, View::cells, format, read_environment()));
  };
  const LongWork work(write, [&] { return fmt::format("{} of {} cells", rows.size(), all); });
  try {
    Progress progress(all);
    for (const Cell& cell : cells) {
      progress.show(fmt::format("{}: {} tokens", asam::kind_name(cell.kind), cell.tokens));
      rows.push_back(bench.measure(cell));
      progress.advance();
    }
    for (std::size_t n = 0; preset.longest && n < kinds.size(); ++n) {
      for (const std::string& compute : computes) {
        rows.push_back(bench.longest(kinds[n], compute, batch, progress));
        progress.advance();
      }
    }
  } catch (const Interrupted&) {
    stopped = true;
  }
  return work.end(stopped);
}

}  // namespace

void add_layer_bench(CLI::App& layer, int& exit_code) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* app = layer.add_subcommand(
      "bench", "Measure time and memory of seed 003's models, from embedding to classifier");
  app->add_option("--preset", flags->preset,
                  "asam-forward, asam-training or asam-memory; other flags override it")
      ->option_text("NAME [asam-forward]");
  app->add_option("--layer", flags->kinds, "list of original, flash, adaptive, efficient")
      ->option_text("LIST");
  app->add_option("--seq", flags->seq, "tokens: lists or ranges, for example 128:2048:x2")
      ->option_text("LIST");
  app->add_option("--pass", flags->pass, "infer, or train: forward, loss, backward, Adam")
      ->option_text("NAME");
  add_integer(*app, "--batch", flags->batch, "sequences", 1)->option_text("N");
  add_integer(*app, "--dim", flags->options.dim, "features per token", 1)->option_text("N [256]");
  add_integer(*app, "--layers", flags->options.layers, "layers", 1, 1000)->option_text("N [2]");
  add_integer(*app, "--warmup", flags->warmup, "untimed runs before the timed ones", 0, kMostRuns)
      ->option_text("N");
  add_integer(*app, "--repeat", flags->repeat, "timed runs", 1, kMostRuns)->option_text("N");
  app->add_flag("--graph", flags->graph, "on CUDA: capture each pass as one CUDA graph");
  add_integer(*app, "--longest", flags->longest, "with asam-memory: longest sequence to try",
              kLengthStep)
      ->option_text("N [262144]");
  add_layer_flags(*app, flags->options);
  add_common_flags(*app, flags->common);
  add_output_flags(*app, flags->format, flags->output);
  app->callback([flags, app, &exit_code] { exit_code = bench_layers(*flags, *app); });
}

}  // namespace tilewise::cli
