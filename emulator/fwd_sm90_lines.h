/// Lines of emulator/cases/fwd_sm90*.txt as cases of fwd_sm90.
#pragma once

#include "fwd_sm90_check.h"
//
#include "option_lines.h"

namespace {

/// The words of fwd_sm90's own, for fields of Case.
const std::vector<std::string_view> kOwnWords =
    with_option_words({"block_m", "block_n", "splits", "documents", "sample", "shows_cut", "tree",
                       "mapped", "rising"});

/// Queries and keys of each entry or sequence.
void take_lengths(CaseLine& line, Case& c) {
  const auto batch = static_cast<std::size_t>(line.take(&Words::batch));
  const auto seq_q = static_cast<int>(line.take(&Words::seq_q));
  const auto seq_k = static_cast<int>(line.take(&Words::seq_k));
  c.page_size = static_cast<int>(line.take(&Words::page_size));
  c.keys = ints(line.take(&Words::key_lengths));
  const auto packed = line.take(&Words::packed);
  if (packed) {
    line.expect(!packed->wide_offsets && !packed->give_max, "packed= without int64 and max");
    line.expect(packed->tail_k == (c.page_size > 0 ? 0 : packed->tail_q), "equal tails");
    c.packed = true;
    c.queries = ints(packed->q_lengths);
    c.keys = ints(packed->k_lengths);
    c.tail = static_cast<int>(packed->tail_q);
    return;
  }
  c.queries.assign(batch, seq_q);
  c.lengths = !c.keys.empty() && c.page_size == 0;
  if (c.keys.empty()) c.keys.assign(batch, seq_k);
  line.expect(c.page_size > 0 || longest(c.keys) == seq_k, "kN of the longest entry");
}

/// `added` holds the bias that the case points to.
Case case_of(CaseLine& line, Added& added) {
  Case c;
  take_forward(line, c);
  take_lengths(line, c);
  c.amplitude = take_amplitude(line);
  c.dropout = take_dropout(line);
  if (const auto mask = line.take(&Words::mask)) c.shows = shows_of(line, *mask);
  if (const auto blocks = line.take(&Words::blocks)) c.blocks = blocks_of(line, *blocks);
  if (const auto bias = line.take(&Words::bias)) {
    added = added_of(line, *bias);
    c.bias = &added;
  }
  c.documents = line.own("documents");
  c.block_m = line.own("block_m");
  c.block_n = line.own("block_n");
  c.splits = line.own("splits", 1);
  c.sample = line.own("sample", -1);
  c.shows_cut = line.own("shows_cut", -1);
  c.mapped = line.own("mapped") != 0;
  c.rising = line.own("rising") != 0;
  line.expect_taken();
  return c;
}

/// Checks every line of a file. `map_sample` makes the maps of samples that have one.
template <const auto& kConfigs>
void check_lines(const char* path, const MapSample& map_sample = {}) {
  tilewise::for_each_line(path, kOwnWords, [&](CaseLine& line) {
    Added bias;
    check<kConfigs>(case_of(line, bias), false, map_sample);
  });
}

}  // namespace
