/// The machines that a plan can be made for: the one at hand, those of cases/hardware.json, and
/// those that a user's file describes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/shell/common_flags.h"
#include "cli/shell/table.h"
#include "plan/gpu_facts.h"
#include "tilewise/plan.h"

namespace tilewise::cli {

/// A machine and where its numbers come from.
struct Machine {
  Hardware hardware;
  std::string origin;     ///< "named h100", "at hand, measured 2026-11-28", ...
  bool measured = false;  ///< its rates are what `info --measure` found
};

/// Where predicted times come from, in a sentence: whether kernels were measured on a machine of
/// this architecture, and whether its rates were.
std::string origin_of_times(const Machine& machine);

/// The names in cases/hardware.json, in its order.
std::vector<std::string> machine_names();

/// `text` is one of the names, or a JSON file: an object with the fields of an entry of
/// cases/hardware.json, each a number or {"value": ..., "source": ...}; "like": NAME takes what is
/// not given from that entry. Throws BadInput.
Machine named_machine(const std::string& text);

/// The named machine that the environment of a result file tells of: by its GPU, else its CPU.
/// Throws NothingToCompare when none matches.
Machine machine_of_results(const Value& environment);

/// The vendor's figures of a GPU by the name that its driver gives; none when it is none of the
/// machines of cases/hardware.json.
std::optional<GpuFacts> vendor_facts(const std::string& driver_name);

/// A CPU with another number of threads, each as fast as before.
void set_threads(Hardware& machine, int threads);

/// The figures of a named machine or file, each with its source: a row a figure.
Table machine_figures(const std::string& text);

/// --hardware, else the machine at hand with what `info --measure` kept of it.
Machine machine_of(const std::string& hardware_flag, const CommonFlags& common);

/// What `info --measure` found out about a machine: a CPU with so many threads, or a GPU.
struct Ceilings {
  double float32_tflops = 0.0;
  double matrix_tflops = 0.0;   ///< bf16 on tensor cores; a CPU's is float32_tflops
  double bandwidth_gbps = 0.0;  ///< memory: a CPU's copy, both directions; a GPU's reading
  double cache_gbps = 0.0;      ///< within the cache nearest to a core, a GPU's shared memory
  double launch_us = 0.0;       ///< of one parallel region, one kernel after another
  std::string date;
};

/// Keeps them in machine.json of state_folder(). Returns the path; empty when there is no folder.
/// Throws FileError.
std::string keep_ceilings(const Hardware& machine, const Ceilings& ceilings);

/// Sets the rates of `machine` to the kept ones, if there are any for it; returns their date or "".
std::string apply_kept_ceilings(Hardware& machine);

}  // namespace tilewise::cli
