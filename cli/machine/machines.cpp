#include "cli/machine/machines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>

#include "cli/bench/grid.h"
#include "cli/files/output.h"
#include "cli/shell/args.h"
#include "cli/shell/failure.h"
#include "plan/gpu_facts.h"
#include "plan/time_model.h"
#include "plan/tuning.h"

namespace tilewise::cli {
namespace {

Value read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw BadInput(fmt::format("{}: cannot be read", path));
  }
  Value parsed = Value::parse(file, nullptr, false);
  if (parsed.is_discarded()) throw BadInput(fmt::format("{}: is not valid JSON", path));
  return parsed;
}

const Value& machine_table() {
  static const Value table = read_json(cases_folder() + "/hardware.json");
  return table;
}

/// A misspelt key would leave the figure that it was to replace.
void check_keys(const std::string& text, const Value& entry) {
  static constexpr std::array kKnown = {
      "like",          "name",       "device",         "matches",
      "arch",          "isa",        "threads",        "multiprocessors",
      "clock_mhz",     "launch_us",  "memory_bytes",   "matrix_fma_per_clock",
      "l2_bytes",      "shared_kib", "bandwidth_gbps", "float32_fma_per_clock",
      "float32_tflops"};
  for (const auto& [key, value] : entry.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      throw BadInput(fmt::format("{}: unknown key \"{}\": expected one of {}", text, key,
                                 fmt::join(kKnown, ", ")));
    }
  }
}

/// The entry's own fields over those of the entry that it is like.
Value entry_of(const std::string& text) {
  const Value& machines = machine_table().at("machines");
  if (machines.contains(text)) return machines.at(text);
  if (text.find('.') == std::string::npos && text.find('/') == std::string::npos) {
    throw BadInput(fmt::format("--hardware '{}': expected one of {}, or a JSON file", text,
                               fmt::join(machine_names(), ", ")));
  }
  Value entry = read_json(text);
  if (!entry.is_object()) throw BadInput(fmt::format("{}: expected an object", text));
  check_keys(text, entry);
  if (!entry.contains("like")) return entry;
  const std::string like = entry.at("like").get<std::string>();
  if (!machines.contains(like)) {
    throw BadInput(fmt::format("{}: \"like\" is '{}': expected one of {}", text, like,
                               fmt::join(machine_names(), ", ")));
  }
  Value merged = machines.at(like);
  for (const auto& [key, value] : entry.items()) {
    if (key != "like") merged[key] = value;
  }
  return merged;
}

Value figure(const Value& entry, const char* key) {
  const Value& field = entry.at(key);
  return field.is_object() ? field.at("value") : field;
}

template <class T>
T number(const std::string& text, const Value& entry, const char* key) {
  if (!entry.contains(key)) throw BadInput(fmt::format("{}: has no \"{}\"", text, key));
  const Value value = figure(entry, key);
  if (!value.is_number() || value.get<double>() <= 0.0) {
    throw BadInput(
        fmt::format("{}: \"{}\" is {}: expected a number above 0", text, key, value.dump()));
  }
  return value.get<T>();
}

GpuFacts facts_of(const std::string& text, const Value& entry) {
  GpuFacts facts;
  facts.name = entry.value("name", text);
  facts.arch = number<int>(text, entry, "arch");
  facts.multiprocessors = number<int>(text, entry, "multiprocessors");
  facts.clock_mhz = number<double>(text, entry, "clock_mhz");
  facts.matrix_fma_per_clock = number<double>(text, entry, "matrix_fma_per_clock");
  facts.float32_fma_per_clock = number<double>(text, entry, "float32_fma_per_clock");
  facts.bandwidth_gbps = number<double>(text, entry, "bandwidth_gbps");
  facts.memory_bytes = number<std::int64_t>(text, entry, "memory_bytes");
  facts.l2_bytes = number<std::int64_t>(text, entry, "l2_bytes");
  facts.shared_kib = number<int>(text, entry, "shared_kib");
  return facts;
}

Hardware gpu_of(const std::string& text, const Value& entry) {
  Hardware hw = sustained(facts_of(text, entry));
  if (entry.contains("launch_us")) hw.launch_us = number<double>(text, entry, "launch_us");
  return hw;
}

Hardware cpu_of(const std::string& text, const Value& entry) {
  Hardware hw;
  hw.name = entry.value("name", text);
  hw.threads = number<int>(text, entry, "threads");
  hw.isa = figure(entry, "isa").get<std::string>();
  check_one_of("isa", hw.isa, {"scalar", "avx2", "avx512", "avx512bf16", "amx"});
  hw.float32_tflops = number<double>(text, entry, "float32_tflops");
  hw.matrix_tflops = hw.float32_tflops;
  hw.bandwidth_gbps = number<double>(text, entry, "bandwidth_gbps");
  hw.launch_us = number<double>(text, entry, "launch_us");
  hw.memory_bytes = number<std::int64_t>(text, entry, "memory_bytes");
  if (entry.contains("l2_bytes")) hw.l2_bytes = number<std::int64_t>(text, entry, "l2_bytes");
  return hw;
}

/// The machine of the table whose name is part of this one; none when there is none.
std::optional<std::string> key_of_name(const std::string& name) {
  for (const auto& [key, entry] : machine_table().at("machines").items()) {
    const std::string matches = entry.value("matches", "");
    if (!matches.empty() && name.find(matches) != std::string::npos) return key;
  }
  return std::nullopt;
}

std::string ceilings_key(const Hardware& machine) {
  if (machine.device.type == DeviceType::cuda) return machine.name;
  return fmt::format("{}, {} threads, {}", machine.name, machine.threads, machine.isa);
}

std::string ceilings_path() {
  const std::string folder = state_folder();
  return folder.empty() ? "" : folder + "/machine.json";
}

/// The kept file, or an empty object: a damaged one only costs the measuring.
Value kept() {
  const std::string path = ceilings_path();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return Value::object();
  std::ifstream file(path);
  Value parsed = file ? Value::parse(file, nullptr, false) : Value::object();
  return parsed.is_object() ? parsed : Value::object();
}

}  // namespace

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : machine_table().at("machines").items()) names.push_back(name);
  return names;
}

Machine named_machine(const std::string& text) {
  const Value entry = entry_of(text);
  try {
    const std::string device = entry.value("device", "cuda");
    check_one_of("device", device, {"cpu", "cuda"});
    return {device == "cpu" ? cpu_of(text, entry) : gpu_of(text, entry), "named " + text};
  } catch (const nlohmann::json::exception& error) {
    throw BadInput(fmt::format("{}: {}", text, error.what()));
  }
}

Machine machine_of_results(const Value& environment) {
  std::string name = environment.value("cpu", "");
  if (environment.contains("gpu")) name = environment.at("gpu").get<std::string>();
  const Value gpus = environment.value("gpus", Value::array());
  if (!gpus.empty()) {
    name = gpus[0].is_object() ? gpus[0].value("name", "") : gpus[0].get<std::string>();
  }
  if (const std::optional<std::string> key = key_of_name(name)) return named_machine(*key);
  throw NothingToCompare(
      fmt::format("'{}' is not a machine of cases/hardware.json: expected --hardware", name));
}

std::optional<GpuFacts> vendor_facts(const std::string& driver_name) {
  const std::optional<std::string> key = key_of_name(driver_name);
  if (!key || entry_of(*key).value("device", "cuda") != "cuda") return std::nullopt;
  return facts_of(*key, entry_of(*key));
}

void set_threads(Hardware& machine, int threads) {
  if (machine.device.type != DeviceType::cpu || threads <= 0 || threads == machine.threads) return;
  const double share = static_cast<double>(threads) / machine.threads;
  machine.float32_tflops *= share;
  machine.matrix_tflops *= share;
  machine.threads = threads;
}

Table machine_figures(const std::string& text) {
  const Value entry = entry_of(text);
  const Value& sources = machine_table().at("sources");
  Table table({{"figure"}, {"value"}, {"source"}, {"note"}});
  for (const auto& [key, field] : entry.items()) {
    if (key == "name" || key == "device" || key == "matches") continue;
    std::string source = field.is_object() ? field.value("source", "") : "";
    if (sources.contains(source)) source = sources.at(source).get<std::string>();
    table.add({key, figure(entry, key.c_str()), source,
               field.is_object() ? Value(field.value("note", "")) : Value("")});
  }
  return table;
}

std::string origin_of_times(const Machine& machine) {
  const Hardware& hw = machine.hardware;
  std::string rates = machine.measured ? "its measured rates" : "its data sheet's rates";
  if (hw.device.type == DeviceType::cpu) {
    if (!machine.measured) rates = "rough rates (`tilewise info --measure` measures them)";
    return "Times are predicted from " + rates +
           " and kernel constants of an AMD EPYC (docs/planner.md).";
  }
  const auto terms = cuda_terms();
  if (std::any_of(terms.begin(), terms.end(),
                  [&](const CudaTerms& t) { return t.arch == hw.arch; })) {
    return fmt::format(
        "Times are predicted from {} and kernel constants of sm_{} GPUs (docs/planner.md).", rates,
        hw.arch);
  }
  return fmt::format(
      "Times are predicted from {}. No sm_{} GPU has been measured: kernel constants come from "
      "sm_{} GPUs, so expect a factor of up to 1.3. Plain attention may be further off: a "
      "framework took 2.09 times (forward) and 2.44 times (both passes) the prediction for eager "
      "on an RTX 4090.",
      rates, hw.arch, terms.front().arch);
}

Machine machine_of(const std::string& hardware_flag, const CommonFlags& common) {
  Machine machine;
  if (!hardware_flag.empty()) {
    machine = named_machine(hardware_flag);
  } else {
    machine.hardware = hardware(parse_device("--device", common.device));
    machine.origin = "this machine";
  }
  set_threads(machine.hardware, common.threads);
  if (hardware_flag.empty()) {
    const std::string date = apply_kept_ceilings(machine.hardware);
    machine.measured = !date.empty();
    if (machine.measured) machine.origin = "this machine, rates measured " + date;
  }
  return machine;
}

std::string keep_ceilings(const Hardware& machine, const Ceilings& ceilings) {
  std::string path = ceilings_path();
  if (path.empty()) return path;
  Value all = kept();
  all[ceilings_key(machine)] = {
      {"float32_tflops", ceilings.float32_tflops}, {"matrix_tflops", ceilings.matrix_tflops},
      {"bandwidth_gbps", ceilings.bandwidth_gbps}, {"cache_gbps", ceilings.cache_gbps},
      {"launch_us", ceilings.launch_us},           {"date", ceilings.date}};
  const std::string text = all.dump(2) + "\n";
  const std::span<const char> letters(text);
  const std::array pieces = {std::as_bytes(letters)};
  files::prepare_own_file(path);
  files::write_file(path, pieces);
  return path;
}

std::string apply_kept_ceilings(Hardware& machine) {
  const Value all = kept();
  const std::string key = ceilings_key(machine);
  if (!all.contains(key)) return "";
  const Value& entry = all.at(key);
  bool whole = true;
  const auto rate = [&](const char* name) {
    const bool told = entry.is_object() && entry.contains(name) && entry.at(name).is_number() &&
                      entry.at(name).get<double>() > 0.0;
    whole = whole && told;
    return told ? entry.at(name).get<double>() : 0.0;
  };
  Hardware measured = machine;
  measured.float32_tflops = rate("float32_tflops");
  measured.matrix_tflops = rate("matrix_tflops");
  measured.bandwidth_gbps = rate("bandwidth_gbps");
  measured.launch_us = rate("launch_us");
  if (!whole) return "";
  machine = measured;
  const Value date = entry.value("date", Value(""));
  return date.is_string() && !date.empty() ? date.get<std::string>() : "before";
}

}  // namespace tilewise::cli
