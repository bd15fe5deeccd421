/// The words of `bench` and `plan` for many problems at once: axes, presets, case lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/shell/spec_flags.h"
#include "harness/case.h"
#include "harness/timer.h"
#include "tilewise/plan.h"

namespace CLI {
class App;
}

namespace tilewise::cli {

/// The passes to time: one pass, or both as one.
enum class Timed : std::uint8_t { forward, backward, both };

/// "fwd", "bwd", "fwd+bwd".
std::string_view timed_name(Timed timed);

/// How `bench` lays out its table: cells (every field that varies), seed (the columns of seeds 000
/// and 001), compare (implementations side by side), scaling (seed 002's claims beside what was
/// measured).
enum class View : std::uint8_t { cells, seed, compare, scaling };

/// The flags as text, as a command line or a line of a preset gives them.
struct GridFlags {
  std::string batch = "1", tokens, heads = "1", hidden, kv_heads, seq = "1024", seq_q, seq_k,
              packed, lengths, paged, dim = "64", dim_v;
  std::string dtype = "f32", layout = "bhsd", impl, kernel, pass = "fwd,bwd";
  std::string protocol = "sustained";
  SpecFlags spec;
  std::string captures;  ///< tensors of the formulas, as a case line has them
  bool alibi = false;
  std::vector<std::string> cases;
  std::string view = "cells";
  int warmup = 5, repeat = 100;
};

/// One problem, what runs it, and what is timed of it.
struct Cell {
  Case problem;
  std::string implementation;  ///< empty when a kernel is named, or the choice is free
  std::string kernel;
  std::vector<Timed> timed;
  TimerOptions timer;

  bool has(Timed which) const;
  /// A kernel alone is forced for its own pass only; the other takes the kernel's implementation.
  Choice choice(Pass pass) const;
};

struct Grid {
  std::vector<Cell> cells;
  View view = View::cells;
};

/// Adds the flags to a command. `timing` also adds those that only measuring needs.
void add_grid_flags(CLI::App& app, GridFlags& flags, bool timing);

/// All combinations, dims and types outermost, lengths innermost but for implementations.
Grid expand_grid(const GridFlags& flags);

/// The folder of cases/: TILEWISE_CASES_DIR, else beside the installed program, else the source's.
std::string cases_folder();

/// The presets' names in cases/presets, sorted.
std::vector<std::string> preset_names();
/// --preset. The help ends with `examples`, one a line, and the presets' names.
void add_preset_flag(CLI::App& app, std::string& preset, const char* examples);

/// Reads cases/presets/NAME.txt, a line of flags for each part of it. What `app` was given on the
/// command line has the last word. Throws BadInput for an unknown name or a bad line.
Grid read_preset(const std::string& name, const CLI::App& app, bool timing);

}  // namespace tilewise::cli
