#include "cli/spec_flags.h"

#include <CLI/App.hpp>

#include "cli/args.h"
#include "cli/failure.h"

namespace tilewise::cli {

void add_spec_flags(CLI::App& app, SpecFlags& flags) {
  const char* group = "Attention";
  app.add_flag("--causal", flags.causal, "key j is visible to query i if j <= i + Sk - Sq")
      ->group(group);
  app.add_flag("--causal-top-left", flags.causal_top_left, "key j is visible to query i if j <= i")
      ->group(group);
  app.add_option("--window", flags.window,
                 "sliding window: keys from i + Sk - Sq - LEFT to i + Sk - Sq + RIGHT; a side "
                 "without bound as -")
      ->group(group)
      ->option_text("LEFT,RIGHT");
  app.add_option("--scale", flags.scale, "of q.k, instead of 1 / sqrt(dim)")
      ->group(group)
      ->option_text("X");
  app.add_option("--softcap", flags.softcap, "C tanh(x / C) of the scores")
      ->group(group)
      ->option_text("C");
  app.add_option("--dropout", flags.dropout, "probability of dropping an element of P")
      ->group(group)
      ->option_text("P");
  app.add_option("--dropout-seed", flags.dropout_seed, "key of the random bits")
      ->group(group)
      ->option_text("N [0]");
  app.add_option("--dropout-offset", flags.dropout_offset, "last word of their counter")
      ->group(group)
      ->option_text("N [0]");
  app.add_flag("--deterministic", flags.deterministic, "backward bitwise repeatable")->group(group);
  app.add_option("--precision", flags.precision, "how float32 is multiplied")
      ->group(group)
      ->option_text("exact|tf32 [exact]");
}

AttentionSpec spec_of(const SpecFlags& flags) {
  AttentionSpec spec;
  if (flags.causal && flags.causal_top_left) {
    throw BadInput("--causal and --causal-top-left: give one of them");
  }
  if (flags.causal) spec.causal = Causal::bottom_right;
  if (flags.causal_top_left) spec.causal = Causal::top_left;
  if (!flags.window.empty()) spec.window = parse_window("--window", flags.window);
  if (!flags.scale.empty()) spec.scale = parse_real("--scale", flags.scale);
  spec.softcap = flags.softcap;
  spec.dropout = {flags.dropout, flags.dropout_seed, flags.dropout_offset};
  spec.deterministic = flags.deterministic;
  check_one_of("--precision", flags.precision, {"exact", "tf32"});
  if (flags.precision == "tf32") spec.precision = Precision::tf32;
  return spec;
}

}  // namespace tilewise::cli
