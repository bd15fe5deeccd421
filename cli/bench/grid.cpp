#include "cli/bench/grid.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <utility>

#include "cli/shell/args.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "plan/kernel_row.h"

namespace tilewise::cli {
namespace {

struct Arm {
  std::string implementation, kernel;
};

std::vector<std::string> implementations() {
  return {"baseline", "eager", "fused", "flash", "reference"};
}

/// What runs each problem: implementations, or kernels by name.
std::vector<Arm> arms(const GridFlags& flags) {
  std::vector<Arm> out;
  if (flags.impl.empty() && flags.kernel.empty()) return {Arm{}};
  if (flags.kernel.empty()) {
    const bool all = flags.impl == "all";
    for (const std::string& name : all ? implementations() : split_list("--impl", flags.impl)) {
      check_one_of("--impl", name, implementations());
      out.push_back({name, ""});
    }
    return out;
  }
  std::vector<std::string> known;
  for (const KernelRow& row : kernel_table()) known.emplace_back(row.name);
  for (const std::string& name : split_list("--kernel", flags.kernel)) {
    const std::size_t plus = name.find('+');
    check_one_of("--kernel", name.substr(0, plus), known);
    if (plus != std::string::npos) check_one_of("--kernel", name.substr(plus + 1), known);
    out.push_back({"", name});
  }
  return out;
}

std::vector<Timed> timed_passes(const GridFlags& flags) {
  std::vector<Timed> out;
  for (const std::string& name : split_list("--pass", flags.pass)) {
    check_one_of("--pass", name, {"fwd", "bwd", "fwd+bwd"});
    out.push_back(name == "fwd" ? Timed::forward : name == "bwd" ? Timed::backward : Timed::both);
  }
  return out;
}

/// Everything of a problem but its sizes.
Case prototype(const GridFlags& flags) {
  Case c;
  SpecFlags plain = flags.spec;  // its formulas are read where their tensors are
  plain.score.clear();
  plain.mask.clear();
  const AttentionSpec spec = spec_of(plain);
  c.score_expression = flags.spec.score;
  c.mask_expression = flags.spec.mask;
  if (!flags.captures.empty()) {
    c.captures = parse_case("s1 captures='" + flags.captures + "'").captures;
  }
  c.causal = spec.causal;
  c.window = spec.window;
  c.scale = spec.scale;
  c.softcap = spec.softcap;
  c.dropout = spec.dropout;
  c.deterministic = spec.deterministic;
  c.precision = spec.precision;
  if (flags.alibi) c.alibi = Case::Alibi::per_head;
  check_one_of("--layout", flags.layout, {"bhsd", "bshd", "latent"});
  c.layout = flags.layout == "bshd"     ? Layout::bshd
             : flags.layout == "latent" ? Layout::latent
                                        : Layout::bhsd;
  return c;
}

using Lengths = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// (Sq, Sk): equal along --seq; every combination when one of them has a flag of its own.
Lengths lengths(const GridFlags& flags) {
  Lengths out;
  if (flags.seq_q.empty() && flags.seq_k.empty()) {
    for (const std::int64_t s : parse_axis("--seq", flags.seq, 0)) out.emplace_back(s, s);
    return out;
  }
  const auto axis = [&](const char* option, const std::string& text) {
    return text.empty() ? parse_axis("--seq", flags.seq, 0) : parse_axis(option, text, 0);
  };
  for (const std::int64_t q : axis("--seq-q", flags.seq_q)) {
    for (const std::int64_t k : axis("--seq-k", flags.seq_k)) out.emplace_back(q, k);
  }
  return out;
}

/// (Hq, Hk): equal, or every pair that divides.
Lengths head_counts(const GridFlags& flags, std::int64_t dim) {
  Lengths out;
  std::vector<std::int64_t> query_heads = parse_axis("--heads", flags.heads, 1);
  if (!flags.hidden.empty()) {
    const std::int64_t hidden = parse_integer("--hidden", flags.hidden, 1);
    if (hidden % dim != 0) {
      throw BadInput(fmt::format("--hidden '{}': expected a multiple of --dim {}", hidden, dim));
    }
    query_heads = {hidden / dim};
  }
  for (const std::int64_t q : query_heads) {
    if (flags.kv_heads.empty()) {
      out.emplace_back(q, q);
      continue;
    }
    for (const std::int64_t k : parse_axis("--kv-heads", flags.kv_heads, 1)) {
      if (q % k == 0) out.emplace_back(q, k);
    }
  }
  if (out.empty()) {
    const std::string heads = flags.hidden.empty()
                                  ? "--heads " + flags.heads
                                  : fmt::format("--hidden / --dim = {}", query_heads.front());
    throw BadInput(fmt::format("--kv-heads '{}': expected divisors of {}", flags.kv_heads, heads));
  }
  return out;
}

std::vector<std::int64_t> head_dims_v(const GridFlags& flags, std::int64_t dim) {
  return flags.dim_v.empty() ? std::vector{dim} : parse_axis("--dim-v", flags.dim_v, 1);
}

/// One problem: as many sequences as the list has lengths, one behind the other.
void pack(const GridFlags& flags, Case& c) {
  PackedCase packed;
  packed.q_lengths = packed.k_lengths = parse_axis("--packed", flags.packed, 0);
  c.batch = static_cast<std::int64_t>(packed.q_lengths.size());
  c.seq_q = 0;
  for (const std::int64_t length : packed.q_lengths) {
    if (length > Tensor::kMaxElems - c.seq_q)
      throw BadInput(fmt::format("--packed '{}': expected at most 2^56 rows", flags.packed));
    c.seq_q += length;
  }
  c.seq_k = c.seq_q;
  c.packed = std::move(packed);
}

/// Keys of the entries, and the pages that hold them: what is served has no backward.
void give_keys(const GridFlags& flags, Case& c) {
  if (!flags.lengths.empty()) {
    c.key_lengths = parse_axis("--lengths", flags.lengths, 0);
    c.batch = static_cast<std::int64_t>(c.key_lengths.size());
    c.seq_k = *std::max_element(c.key_lengths.begin(), c.key_lengths.end());
    c.backward = false;
  }
  if (flags.paged.empty()) return;
  c.page_size = parse_integer("--paged", flags.paged, 1);
  if (flags.lengths.empty()) c.key_lengths.assign(static_cast<std::size_t>(c.batch), c.seq_k);
  c.backward = false;
}

/// Appends `c` at every batch, head count and length; lengths run fastest, as in the seeds' tables.
void append_sizes(const GridFlags& flags, Case c, std::vector<Case>& out) {
  const std::string batches = flags.packed.empty() ? flags.batch : "1";
  for (const std::int64_t batch : parse_axis("--batch", batches, 0)) {
    for (const auto& [heads_q, heads_k] : head_counts(flags, c.head_dim)) {
      c.heads_q = heads_q;
      c.heads_k = heads_k;
      if (!flags.packed.empty()) {
        pack(flags, c);
        out.push_back(c);
        continue;
      }
      for (const auto& [seq_q, seq_k] : lengths(flags)) {
        c.seq_q = seq_q;
        c.seq_k = seq_k;
        c.batch = batch;
        if (!flags.tokens.empty()) {
          const std::int64_t tokens = parse_integer("--tokens", flags.tokens, 1);
          c.batch = std::max<std::int64_t>(1, tokens / std::max<std::int64_t>(1, seq_q));
        }
        give_keys(flags, c);
        out.push_back(c);
      }
    }
  }
}

std::vector<Case> problems(const GridFlags& flags) {
  std::vector<Case> out;
  if (!flags.cases.empty()) {
    for (const std::string& line : flags.cases) out.push_back(parse_case(line));
    return out;
  }
  Case c = prototype(flags);
  for (const std::string& type : split_list("--dtype", flags.dtype)) {
    c.dtype = parse_float_type("--dtype", type);
    for (const std::int64_t dim : parse_axis("--dim", flags.dim, 1)) {
      c.head_dim = dim;
      for (const std::int64_t dim_v : head_dims_v(flags, dim)) {
        c.head_dim_v = dim_v;
        append_sizes(flags, c, out);
      }
    }
  }
  return out;
}

TimerOptions timer_options(const GridFlags& flags) {
  check_one_of("--protocol", flags.protocol, {"burst", "sustained"});
  TimerOptions timer;
  timer.protocol = flags.protocol == "burst" ? Protocol::burst : Protocol::sustained;
  timer.warmup = flags.warmup;
  timer.repeat = flags.repeat;
  return timer;
}

/// The passes to time of one problem by one arm: those of the case, and of a named kernel its own.
std::vector<Timed> passes_of(const std::vector<Timed>& wanted, const Case& problem,
                             const std::string& kernel) {
  std::vector<Timed> out;
  for (const Timed timed : wanted) {
    bool fits = timed == Timed::forward || problem.backward;
    for (const KernelRow& row : kernel_table()) {
      if (kernel != row.name || timed == Timed::both) continue;
      fits = fits && (row.pass == Pass::forward) == (timed == Timed::forward);
    }
    if (fits) out.push_back(timed);
  }
  return out;
}

}  // namespace

std::string_view timed_name(Timed timed) {
  constexpr std::string_view kNames[] = {"fwd", "bwd", "fwd+bwd"};
  return kNames[static_cast<int>(timed)];
}

bool Cell::has(Timed which) const {
  return std::find(timed.begin(), timed.end(), which) != timed.end();
}

Choice Cell::choice(Pass pass) const {
  if (kernel.empty()) return {.implementation = implementation, .kernel = ""};
  for (const KernelRow& row : kernel_table()) {
    if (kernel != row.name) continue;
    if (row.pass == pass) return {.implementation = "", .kernel = kernel};
    return {.implementation = row.implementation, .kernel = ""};
  }
  return {.implementation = "", .kernel = kernel};
}

void add_grid_flags(CLI::App& app, GridFlags& flags, bool timing) {
  const auto text = [&](const char* name, std::string& value, const char* type, const char* help,
                        const char* group) {
    app.add_option(name, value, help)->group(group)->option_text(type)->take_last();
  };
  const char* axes = "Axes (lists or ranges: 64,128 or 256:16384:x4 or 1:8:+1)";
  text("--batch", flags.batch, "LIST [1]", "batch sizes", axes);
  text("--tokens", flags.tokens, "N", "tokens per batch: batch = N / length; replaces --batch",
       axes);
  text("--heads", flags.heads, "LIST [1]", "query heads", axes);
  text("--hidden", flags.hidden, "N", "hidden size: heads = N / dim; replaces --heads", axes);
  text("--kv-heads", flags.kv_heads, "LIST", "heads of K and V; each must divide --heads [--heads]",
       axes);
  text("--seq", flags.seq, "LIST [1024]", "number of queries and of keys", axes);
  text("--seq-q", flags.seq_q, "LIST", "number of queries [--seq]", axes);
  text("--seq-k", flags.seq_k, "LIST", "number of keys [--seq]", axes);
  text("--packed", flags.packed, "LIST",
       "lengths of the packed sequences of one problem; replaces --batch and --seq", axes);
  text("--lengths", flags.lengths, "LIST",
       "number of keys of each batch entry; replaces --batch and --seq-k", axes);
  text("--paged", flags.paged, "N", "page size in rows, for K and V in a paged cache", axes);
  text("--dim", flags.dim, "LIST [64]", "head dims", axes);
  text("--dim-v", flags.dim_v, "LIST", "head dims of V [--dim]", axes);
  text("--dtype", flags.dtype, "LIST [f32]", "f32, bf16, f16, f64", axes);
  text("--impl", flags.impl, "LIST", "baseline, eager, fused, flash, reference or all [flash]",
       axes);
  text("--kernel", flags.kernel, "LIST",
       "kernel names, or FORWARD+BACKWARD (one name per pass); replaces --impl", axes);
  text("--pass", flags.pass, "LIST [fwd,bwd]", "fwd, bwd, fwd+bwd", axes);
  const char* problem = "Problem";
  add_spec_flags(app, flags.spec, problem);
  text("--captures", flags.captures, "\"NAME:TYPE[SIZE,...]=CONTENT; ...\"",
       "tensors that --score and --mask read (see cases/README.md)", problem);
  app.add_flag("--alibi", flags.alibi, "ALiBi with one slope per head")->group(problem);
  text("--layout", flags.layout, "bhsd|bshd|latent", "memory layout; latent: bshd with V inside K",
       problem);
  app.add_option("--case", flags.cases,
                 "one problem as a case line (see cases/README.md); replaces the axes; repeatable")
      ->group(problem)
      ->option_text("\"LINE\"");
  if (!timing) return;
  const char* timer = "Timing";
  add_integer(app, "--warmup", flags.warmup, "untimed runs before the timed ones", 0, kMostRuns)
      ->group(timer)
      ->option_text("N [5]")
      ->take_last();
  add_integer(app, "--repeat", flags.repeat, "timed runs", 1, kMostRuns)
      ->group(timer)
      ->option_text("N [100]")
      ->take_last();
  text("--protocol", flags.protocol, "NAME",
       "sustained: back to back; burst: idle gaps, fresh inputs, three runs per round [sustained]",
       timer);
  text("--view", flags.view, "NAME", "table layout: cells, seed, compare or scaling [cells]",
       timer);
}

Grid expand_grid(const GridFlags& flags) {
  const std::vector<std::string> views = {"cells", "seed", "compare", "scaling"};
  check_one_of("--view", flags.view, views);
  Grid grid;
  grid.view = static_cast<View>(std::find(views.begin(), views.end(), flags.view) - views.begin());
  const std::vector<Timed> wanted = timed_passes(flags);
  const TimerOptions timer = timer_options(flags);
  const std::vector<Arm> runners = arms(flags);
  for (const Case& problem : problems(flags)) {
    for (const Arm& arm : runners) {
      Cell cell{problem, arm.implementation, arm.kernel, passes_of(wanted, problem, arm.kernel),
                timer};
      if (!cell.timed.empty()) grid.cells.push_back(std::move(cell));
    }
  }
  if (grid.cells.empty()) {
    throw BadInput(fmt::format("--pass '{}': the requested kernels have no such pass", flags.pass));
  }
  return grid;
}

}  // namespace tilewise::cli
