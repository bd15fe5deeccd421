#include "cli/shell/spec_flags.h"

#include <CLI/App.hpp>

#include "cli/shell/args.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"

namespace tilewise::cli {

void add_spec_flags(CLI::App& app, SpecFlags& flags, const char* group) {
  const auto flag = [&](const char* name, bool& value, const char* help) {
    app.add_flag(name, value, help)->group(group)->take_last();
  };
  const auto option = [&](const char* name, std::string& value, const char* type,
                          const char* help) {
    app.add_option(name, value, help)->group(group)->option_text(type)->take_last();
  };
  const auto integer = [&](const char* name, std::uint64_t& value, const char* type,
                           const char* help) {
    add_integer(app, name, value, help, 0)->group(group)->option_text(type)->take_last();
  };
  const auto real = [&](const char* name, double& value, const char* type, const char* help) {
    add_real(app, name, value, help)->group(group)->option_text(type)->take_last();
  };
  flag("--causal", flags.causal, "key j is visible to query i if j <= i + Sk - Sq");
  flag("--causal-top-left", flags.causal_top_left, "key j is visible to query i if j <= i");
  option("--window", flags.window, "LEFT,RIGHT",
         "sliding window: keys from i + Sk - Sq - LEFT to i + Sk - Sq + RIGHT; - is unbounded");
  option("--scale", flags.scale, "X", "factor of q.k [1 / sqrt(dim)]");
  real("--softcap", flags.softcap, "C", "replace each score x by C tanh(x / C)");
  option("--score", flags.score, "FORMULA",
         "new score from score, b, h, i, j (see docs/expressions.md)");
  option("--mask", flags.mask, "FORMULA", "mask from b, h, i, j: true if query i sees key j");
  real("--dropout", flags.dropout, "P", "probability of dropping an element of P");
  integer("--dropout-seed", flags.dropout_seed, "N [0]", "seed of the dropout bits");
  integer("--dropout-offset", flags.dropout_offset, "N [0]", "offset of the dropout bits");
  flag("--deterministic", flags.deterministic, "bitwise repeatable backward");
  option("--precision", flags.precision, "exact|tf32|refined [exact]",
         "float32 products; refined: exact, with delta computed from P");
}

AttentionSpec spec_of(const SpecFlags& flags, std::span<const Captured> captures) {
  AttentionSpec spec;
  if (!flags.score.empty()) spec.score_expression = Expression::parse(flags.score, captures);
  if (!flags.mask.empty()) spec.mask_expression = Expression::parse(flags.mask, captures);
  if (flags.causal && flags.causal_top_left) {
    throw BadInput("--causal and --causal-top-left exclude each other");
  }
  if (flags.causal) spec.causal = Causal::bottom_right;
  if (flags.causal_top_left) spec.causal = Causal::top_left;
  if (!flags.window.empty()) spec.window = parse_window("--window", flags.window);
  if (!flags.scale.empty()) spec.scale = parse_real("--scale", flags.scale);
  spec.softcap = flags.softcap;
  spec.dropout = {flags.dropout, flags.dropout_seed, flags.dropout_offset};
  spec.deterministic = flags.deterministic;
  check_one_of("--precision", flags.precision, {"exact", "tf32", "refined"});
  if (flags.precision == "tf32") spec.precision = Precision::tf32;
  if (flags.precision == "refined") spec.precision = Precision::refined;
  return spec;
}

}  // namespace tilewise::cli
