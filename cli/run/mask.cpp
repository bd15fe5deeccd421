/// tilewise mask: which blocks of pairs a mask leaves, as numbers and as a picture. Nothing is
/// attended to.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "cli/run/mask_picture.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/output.h"
#include "expression/block_map.h"
#include "expression/lower.h"
#include "harness/case.h"
#include "harness/materialize.h"
#include "problem/blocks.h"
#include "problem/listed_blocks.h"

namespace tilewise::cli {
namespace {

struct MaskFlags {
  std::string formula, captures, line, output, block = "128,128", head = "0,0";
  std::int64_t queries = 1024, keys = 0, batch = 1, heads = 1;
  std::uint64_t seed = 1;
  bool causal = false;
  std::string window;
};

Case case_of(const MaskFlags& flags) {
  if (!flags.line.empty()) {
    if (!flags.formula.empty()) throw BadInput("--case and a formula exclude each other");
    return parse_case(flags.line);
  }
  if (flags.formula.empty()) throw BadInput("mask: expected a formula or --case");
  std::string text = fmt::format("b{} h{} q{} k{} d1 f32 pass=fwd", flags.batch, flags.heads,
                                 flags.queries, flags.keys > 0 ? flags.keys : flags.queries);
  if (flags.formula.find('\'') != std::string::npos) throw BadInput("mask: a formula has no '");
  text += " mask_expr='" + flags.formula + "'";
  if (!flags.captures.empty()) text += " captures='" + flags.captures + "'";
  Case c = parse_case(text);
  if (flags.causal) c.causal = Causal::bottom_right;
  if (!flags.window.empty()) c.window = parse_window("--window", flags.window);
  return c;
}

/// Two whole numbers.
std::array<std::int64_t, 2> pair_of(const char* option, const std::string& text,
                                    std::int64_t least) {
  const std::vector<std::string> parts = split_list(option, text);
  if (parts.size() != 2) {
    throw BadInput(fmt::format("{} '{}': expected two numbers", option, text));
  }
  return {parse_integer(option, parts[0], least), parse_integer(option, parts[1], least)};
}

/// The map of a problem whose mask is a formula, or which has none.
expression::BlockMap map_of(const Problem& p, std::array<std::int64_t, 2> block) {
  if (p.block_list.defined()) block = {p.block_list.block_q, p.block_list.block_k};
  const expression::Function mask = p.mask_function.defined()
                                        ? p.mask_function
                                        : expression::function_of(Expression::parse("true"));
  return expression::make_block_map(p, mask, block[0], block[1]);
}

std::string summary(const Problem& p, const expression::BlockMap& map, const BlockPicture& picture,
                    double ms) {
  Problem mapped = p;
  mapped.block_list = map.list();
  mapped.causal = Causal::none;  // a block that position cuts is worked out whole
  mapped.left = mapped.right = Problem::kUnbounded;
  double pairs = 0.0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = p.sequence(b);
    pairs += static_cast<double>(p.heads_q) * static_cast<double>(s.q_length) *
             static_cast<double>(s.k_length);
  }
  const double listed = count_listed_pairs(mapped);
  const auto bytes = static_cast<std::int64_t>(map.row_offsets.size() * sizeof(std::int32_t) +
                                               map.block_index.size() * sizeof(std::int32_t) +
                                               map.block_full.size());
  return fmt::format(
      "blocks of {} x {}: {} of {} x {} are visible, {} of them full; they hold {:.2f} % of the "
      "pairs\nlist: {} x {} (batch x heads), {} entries, {}; built in {:.2f} ms\n",
      map.block_q, map.block_k, picture.partial_blocks() + picture.full_blocks(), picture.rows(),
      picture.columns(), picture.full_blocks(), pairs > 0.0 ? 100.0 * listed / pairs : 0.0,
      map.batch, map.heads, map.block_index.size(), bytes_text(bytes), ms);
}

int mask(const MaskFlags& flags) {
  check_output(flags.output);
  const bool svg = flags.output.ends_with(".svg");
  const std::array<std::int64_t, 2> block = pair_of("--block", flags.block, 1);
  const std::array<std::int64_t, 2> head = pair_of("--head", flags.head, 0);
  const Case c = case_of(flags);
  const MaterializedCase material = materialize(c, flags.seed, {}, {.guards = false});
  const Problem p = make_problem(material.forward(), material.spec(), Purpose::run);
  if (p.batch == 0 || p.heads_q == 0) throw BadInput("--case: expected a batch entry and a head");
  if (head[0] >= p.batch || head[1] >= p.heads_q) {
    throw BadInput(
        fmt::format("--head '{}': expected at most {},{}", flags.head, p.batch - 1, p.heads_q - 1));
  }
  const auto begin = std::chrono::steady_clock::now();
  const expression::BlockMap map = map_of(p, block);
  const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
  const Sequence s = p.sequence(head[0]);
  const BlockPicture picture(map.list(), head[0], head[1], ceil_div(s.q_length, map.block_q),
                             ceil_div(s.k_length, map.block_k));
  const std::string text = summary(p, map, picture, ms.count());
  if (svg) {
    write_output(flags.output, picture.svg());
    write_output({}, text);
  } else {
    write_output(flags.output, picture.text() + text);
  }
  return kDone;
}

}  // namespace

void add_mask(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<MaskFlags>();
  CLI::App* app =
      program.add_subcommand("mask", "Draw the blocks that a mask keeps; run no attention");
  app->footer(
      "Examples:\n"
      "  tilewise mask \"i >= j & i - j < 512\" --seq 2048\n"
      "  tilewise mask \"i // 256 == j // 256\" --seq 2048 -o blocks.svg");
  app->add_option("formula", flags->formula,
                  "mask from b, h, i, j: true if query i sees key j (see docs/expressions.md)")
      ->option_text("FORMULA");
  const auto integer = [&](const char* name, std::int64_t& to, std::int64_t least,
                           const char* help) {
    add_integer(*app, name, to, help, least)->option_text("N");
  };
  integer("--seq,--sq", flags->queries, 0, "number of queries [1024]");
  integer("--seq-k,--sk", flags->keys, 0, "number of keys [--seq]");
  integer("--batch", flags->batch, 1, "batch entries [1]");
  integer("--heads", flags->heads, 1, "query heads [1]");
  app->add_flag("--causal", flags->causal, "key j is visible to query i if j <= i + Sk - Sq");
  app->add_option(
         "--window", flags->window,
         "sliding window: keys from i + Sk - Sq - LEFT to i + Sk - Sq + RIGHT; - is unbounded")
      ->option_text("LEFT,RIGHT");
  app->add_option("--captures", flags->captures,
                  "tensors that the formula reads (see cases/README.md)")
      ->option_text("\"NAME:TYPE[SIZE,...]=CONTENT; ...\"");
  app->add_option("--case", flags->line,
                  "one problem as a case line (see cases/README.md); replaces formula and sizes")
      ->option_text("\"LINE\"");
  app->add_option("--block", flags->block, "block size in queries and keys [128,128]")
      ->option_text("Q,K");
  app->add_option("--head", flags->head, "batch entry and query head to draw [0,0]")
      ->option_text("B,H");
  app->add_option("-o,--output", flags->output,
                  "output file; .svg makes a drawing [standard output]")
      ->option_text("FILE");
  app->callback([flags, &exit_code] { exit_code = mask(*flags); });
}

}  // namespace tilewise::cli
