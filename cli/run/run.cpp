/// tilewise run: attention on files.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "cli/plan/pass_plans.h"
#include "cli/run/attended.h"
#include "cli/run/device_tensors.h"
#include "cli/run/memory_block.h"
#include "cli/run/run_tensors.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/interrupt.h"
#include "cli/shell/output.h"
#include "cli/shell/spec_flags.h"
#include "harness/expected.h"
#include "harness/memory_meter.h"
#include "harness/timer.h"

namespace tilewise::cli {
namespace {

struct RunFlags {
  std::vector<std::string> files;
  std::string dtype, layout, implementation, kernel, output, compare, attended, tokens, format;
  int top = 3, repeat = 1;
  SpecFlags spec;
  CommonFlags common;
};

/// What the library is called with, and what each call is judged by.
struct Setting {
  RunTensors& tensors;
  WatchedExecutor& executor;
  MemoryMeter& meter;
  Hardware machine;
  int repeat = 1;
  std::vector<Expected> truth;  ///< empty without --compare
};

/// One implementation's line of the table.
struct Outcome {
  std::string implementation, kernels, refusal;
  double forward_ms = 0.0, backward_ms = 0.0;
  std::vector<Deviation> deviations;
  bool passed = true;
};

FileLayout file_layout(const std::string& flag, const RunInput& input) {
  std::string name = flag;
  const auto stated = input.metadata.find("layout");
  if (name.empty() && stated != input.metadata.end()) name = stated->second;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (name.empty()) name = "bshd";
  check_one_of("--layout", name, {"bshd", "bhsd"});
  return name == "bshd" ? FileLayout::bshd : FileLayout::bhsd;
}

std::vector<Choice> choices(const RunFlags& flags, DType dtype) {
  if (!flags.kernel.empty()) return {{.implementation = "", .kernel = flags.kernel}};
  if (flags.implementation.empty()) {
    return {{.implementation = dtype == DType::float64 ? "reference" : "", .kernel = ""}};
  }
  std::vector<Choice> out;
  const std::string all = "baseline,eager,fused,flash,reference";
  for (const std::string& name :
       split_list("--impl", flags.implementation == "all" ? all : flags.implementation)) {
    out.push_back({.implementation = name, .kernel = ""});
  }
  return out;
}

/// The backward by the kernel's own implementation: it may use what the forward saved.
Choice backward_choice(const Choice& choice) {
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.name == choice.kernel)
      return {.implementation = kernel.implementation, .kernel = ""};
  }
  return choice;
}

double median_ms(const Setting& s, DeviceMemory& memory, const std::function<void()>& work) {
  const std::unique_ptr<Clock> clock = cpu_clock();
  TimedWork timed;
  timed.run = [&] {
    work();
    memory.synchronize();
  };
  timed.interrupted = [] { return interrupted(); };
  TimerOptions options;
  options.warmup = s.repeat > 1 ? 1 : 0;
  options.repeat = s.repeat;
  const Timing timing = measure(timed, options, *clock);
  throw_if_interrupted();
  return timing.ms.median;
}

/// Every result of the run that the reference has, too.
void compare_results(const Setting& s, Outcome& outcome) {
  const BackwardTensors& b = s.tensors.backward();
  const ForwardTensors& f = s.tensors.forward();
  const std::map<std::string, const Tensor*> results = {
      {"O", &f.o},   {"LSE", &f.lse},     {"dQ", &b.dq},        {"dK", &b.dk},
      {"dV", &b.dv}, {"dbias", &b.dbias}, {"dsinks", &b.dsinks}};
  CheckResult judged;
  for (const Expected& expected : s.truth) {
    compare(expected, *results.at(expected.name), false, judged);
  }
  outcome.passed = judged.status != CheckStatus::failed;
  outcome.deviations = std::move(judged.deviations);
}

Outcome run_one(const Setting& s, const Choice& choice) {
  const std::unique_ptr<DeviceMemory> memory = device_memory(s.machine.device, &s.meter);
  DeviceTensors on_device(s.tensors, *memory);
  const AttentionSpec& spec = on_device.spec();
  ForwardTensors& forward = on_device.forward();
  Outcome outcome;
  BackwardTensors& backward = on_device.backward();
  const bool has_backward = s.tensors.has_backward();
  const PassPlans plans = plan_passes(forward, has_backward ? &backward : nullptr, spec, choice,
                                      backward_choice(choice), s.machine);
  plans.require_forward();
  plans.require_backward();
  outcome.implementation = plans.forward.implementation;
  outcome.kernels = plans.forward.kernel;
  const Block saved(*memory, has_backward ? plans.forward.saved_bytes : 0);
  forward.saved = backward.saved = {saved.data(), saved.bytes()};
  const Launch launch{.allocator = &s.meter, .executor = &s.executor};
  outcome.forward_ms = median_ms(s, *memory, [&] { run(plans.forward, forward, spec, launch); });
  if (has_backward) {
    outcome.kernels += ", " + plans.backward.kernel;
    outcome.backward_ms =
        median_ms(s, *memory, [&] { run(plans.backward, backward, spec, launch); });
  }
  on_device.download();
  compare_results(s, outcome);
  return outcome;
}

Table outcome_table(const std::vector<Outcome>& outcomes, const Setting& s) {
  std::vector<Column> columns = {{"implementation"}, {"kernel"}, {"forward_ms"}};
  if (s.tensors.has_backward()) columns.push_back({"backward_ms"});
  for (const Expected& expected : s.truth) {
    columns.push_back({"max_error_" + expected.name, Column::kScientific});
  }
  if (!s.truth.empty()) columns.push_back({"agrees"});
  Table table(columns);
  for (const Outcome& outcome : outcomes) {
    const bool refused = !outcome.refusal.empty();
    std::vector<Value> line = {outcome.implementation, refused ? outcome.refusal : outcome.kernels,
                               refused ? Value() : Value(outcome.forward_ms)};
    if (s.tensors.has_backward()) line.push_back(refused ? Value() : Value(outcome.backward_ms));
    for (const Expected& expected : s.truth) {
      Value error;
      for (const Deviation& deviation : outcome.deviations) {
        if (deviation.quantity == expected.name) error = deviation.error;
      }
      line.push_back(error);
    }
    if (!s.truth.empty()) line.push_back(refused ? Value() : Value(outcome.passed));
    table.add(std::move(line));
  }
  return table;
}

Tokens run_tokens(const RunFlags& flags, const RunInput& input) {
  if (!flags.tokens.empty()) {
    std::ifstream file(flags.tokens);
    if (!file) throw BadInput(fmt::format("--tokens '{}': cannot be read", flags.tokens));
    Tokens tokens;
    for (std::string line; std::getline(file, line);) tokens.push_back(line);
    return tokens;
  }
  const auto at = input.metadata.find("tokens");
  if (at == input.metadata.end()) {
    throw BadInput(
        "--attended: the input has no tokens: expected --tokens FILE with one token per line");
  }
  return tokens_from_json(flags.files.front(), at->second);
}

std::vector<Expected> truths(const RunTensors& t, Executor& executor) {
  std::vector<Expected> out =
      expected_results(make_problem(t.forward(), t.spec(), Purpose::run), executor);
  if (!t.has_backward()) return out;
  for (Expected& expected :
       expected_results(make_problem(t.backward(), t.spec(), Purpose::run), executor)) {
    out.push_back(std::move(expected));
  }
  return out;
}

int run_files(const RunFlags& flags) {
  if (!flags.compare.empty()) check_one_of("--compare", flags.compare, {"reference"});
  const Device device = parse_device("--device", flags.common.device);
  Hardware machine = hardware(device);
  const Format format = parse_format("--format", flags.format.empty() ? "md" : flags.format);
  if (!flags.dtype.empty()) check_one_of("--dtype", flags.dtype, {"bf16"});
  const auto two_bytes = flags.dtype.empty() ? files::TwoBytes::unknown : files::TwoBytes::bfloat16;
  RunInput input = read_run_input(flags.files, two_bytes);
  const bool npy = !input.safetensors && !flags.output.ends_with(".safetensors");
  if (!npy) check_output(flags.output);
  for (const std::string& file : flags.files) {
    std::error_code error;
    if (!flags.output.empty() && std::filesystem::equivalent(file, flags.output, error)) {
      throw BadInput(
          fmt::format("-o '{}': this is an input file: expected another name", flags.output));
    }
  }
  if (flags.output.ends_with(".npy")) {
    throw BadInput(
        fmt::format("-o '{}': .npy results need a folder: expected a folder or a .safetensors file",
                    flags.output));
  }
  RunTensors tensors(input, file_layout(flags.layout, input), spec_of(flags.spec));
  WatchedExecutor executor(thread_count(flags.common));
  MemoryMeter meter(memory_limit(flags.common, machine));
  machine.threads = executor.concurrency();
  Setting setting{tensors, executor, meter, machine, flags.repeat, {}};

  catch_interrupts();
  if (!flags.compare.empty()) setting.truth = truths(tensors, executor);
  const std::vector<Choice> wanted = choices(flags, tensors.forward().q.dtype);
  std::vector<Outcome> outcomes;
  for (const Choice& choice : wanted) {
    try {
      outcomes.push_back(run_one(setting, choice));
      if (outcomes.size() == 1 && !flags.output.empty()) {
        write_results(flags.output, tensors, npy);
      }
    } catch (const Unsupported& error) {
      if (wanted.size() == 1) throw;
      outcomes.push_back({choice.implementation, "", error.what(), 0.0, 0.0, {}, true});
    }
  }
  const Table runs = outcome_table(outcomes, setting);
  std::string text = runs.text(format);
  if (!flags.attended.empty()) {
    const Launch launch{.allocator = &meter, .executor = &executor};
    const Table attended =
        attended_table(parse_queries(flags.attended), flags.top, run_tokens(flags, input),
                       tensors.forward(), tensors.spec(), wanted.front(), launch);
    if (format == Format::json) {  // one document
      text = Value({{"runs", runs.json()}, {"attended", attended.json()}}).dump(2) + "\n";
    } else {
      text += "\n" + attended.text(format);
    }
  }
  write_output("", text);
  const bool passed = std::all_of(outcomes.begin(), outcomes.end(),
                                  [](const Outcome& outcome) { return outcome.passed; });
  return passed ? kDone : kCheckFailed;
}

}  // namespace

void add_run(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<RunFlags>();
  CLI::App* app = program.add_subcommand("run", "Compute attention on .npy or .safetensors files");
  app->footer(
      "Examples:\n"
      "  tilewise run q.npy k.npy v.npy --causal -o results\n"
      "  tilewise run qkv.safetensors --impl all --compare reference --repeat 5");
  app->add_option("files", flags->files,
                  "one .safetensors file with tensors q, k, v and optionally dO, dLSE, bias, mask, "
                  "sinks, alibi_slopes, key_lengths, cu_seqlens_q, cu_seqlens_k; or .npy files "
                  "with these names (q.npy ...)")
      ->required()
      ->option_text("FILE...");
  app->add_option("-o,--output", flags->output,
                  "output for O, LSE and, with dO, dQ, dK, dV, dbias, dsinks: a .safetensors file, "
                  "or a folder for .npy input")
      ->option_text("PATH");
  app->add_option("--layout", flags->layout,
                  "layout of the tensors; 3 axes are (batch, seq, dim) of one head [as the file "
                  "says, else bshd]")
      ->option_text("bshd|bhsd");
  app->add_option("--dtype", flags->dtype,
                  "type of two-byte .npy files without a type, as ml_dtypes writes bfloat16")
      ->option_text("bf16");
  app->add_option("--impl", flags->implementation,
                  "list of baseline, eager, fused, flash, reference, or all; the first one's "
                  "results are written [flash; reference for float64]")
      ->option_text("LIST");
  app->add_option("--kernel", flags->kernel, "kernel name, or FORWARD+BACKWARD (one name per pass)")
      ->option_text("NAME");
  app->add_option("--compare", flags->compare,
                  "print the largest error against the float64 reference; exit code 1 if it "
                  "exceeds the bound of docs/numerics.md")
      ->option_text("reference");
  add_integer(*app, "--repeat", flags->repeat, "number of timed runs; prints the median", 1,
              kMostRuns)
      ->option_text("N [1]");
  app->add_option("--attended", flags->attended,
                  "print which words these words attend to, in one head (birds@11) or on average")
      ->option_text("WORD[@HEAD],...");
  add_integer(*app, "--top", flags->top, "number of attended words to print for each", 1, 100)
      ->option_text("N [3]");
  app->add_option("--tokens", flags->tokens,
                  "file with one token per line, if the input has no tokens")
      ->option_text("FILE");
  app->add_option("--format", flags->format, "format of the printed output")
      ->option_text("md|csv|json [md]");
  add_spec_flags(*app, flags->spec, "Attention");
  add_common_flags(*app, flags->common);
  app->callback([flags, &exit_code] { exit_code = run_files(*flags); });
}

}  // namespace tilewise::cli
