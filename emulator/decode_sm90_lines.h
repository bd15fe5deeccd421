/// Lines of emulator/cases/decode_sm90.txt and mla_sm90.txt as cases.
#pragma once

#include "decode_sm90_check.h"
// Behind the kernels, whose namespaces see its names.
#include "case_lines.h"

namespace {

Case case_of(CaseLine& line) {
  Case c;
  take_forward(line, c);
  c.queries = static_cast<int>(line.take(&Words::seq_q));
  const auto batch = static_cast<std::size_t>(line.take(&Words::batch));
  const auto seq_k = static_cast<int>(line.take(&Words::seq_k));
  c.page = static_cast<int>(line.take(&Words::page_size));
  c.keys = ints(line.take(&Words::key_lengths));
  c.lengths = !c.keys.empty();
  if (!c.lengths) c.keys.assign(batch, seq_k);
  line.expect(c.page > 0 || longest(c.keys) == seq_k, "kN of the longest entry");
  c.part = line.own("part", c.part);
  c.shared = line.own("shared") != 0;
  c.expanded = line.own("expanded") != 0;
  c.shares = line.own("shares") != 0;
  line.expect_taken();
  return c;
}

/// Calls `check` with the case of each line of a file.
template <class Check>
void for_each_case(const char* path, const Check& check) {
  tilewise::for_each_line(path, {"part", "shared", "expanded", "shares", "tree"},
                          [&](CaseLine& line) { check(case_of(line)); });
}

}  // namespace
