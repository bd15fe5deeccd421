/// What the lines of emulator/cases and of the programs (harness/case_line.h) say of fields that
/// the programs' structs have alike.
#pragma once

#include <algorithm>
#include <vector>

#include "harness/case_line.h"

namespace {

/// The fields of a line in the grammar of cases.
using Words = tilewise::Case;
using tilewise::CaseLine;

inline std::vector<int> ints(const std::vector<std::int64_t>& of) { return {of.begin(), of.end()}; }
inline int longest(const std::vector<int>& of) { return *std::max_element(of.begin(), of.end()); }

/// What the structs of all programs call alike. The type is the program's.
template <class Case>
void take_common(CaseLine& line, tilewise::DType type, Case& c) {
  line.expect(line.take(&Words::dtype) == type, "the program's type");
  c.dim = static_cast<int>(line.take(&Words::head_dim));
  c.dim_v = static_cast<int>(line.take(&Words::head_dim_v));
  c.heads_q = static_cast<int>(line.take(&Words::heads_q));
  c.heads_k = static_cast<int>(line.take(&Words::heads_k));
  c.softcap = static_cast<decltype(c.softcap)>(line.take(&Words::softcap));
  const Words::Alibi alibi = line.take(&Words::alibi);
  line.expect(alibi == Words::Alibi::none || alibi == Words::Alibi::per_head, "alibi");
  c.alibi = alibi != Words::Alibi::none;
  const auto sinks = line.take(&Words::sinks);
  line.expect(!sinks || *sinks == tilewise::Fill{}, "sink");
  c.sinks = sinks.has_value();
}

/// That, and what the structs of forward programs call alike.
template <class Case>
void take_forward(CaseLine& line, Case& c) {
  take_common(line, tilewise::DType::bfloat16, c);
  c.name = line.name();
  c.causal = line.take(&Words::causal);
  const tilewise::Window window = line.take(&Words::window);
  c.left = window.left.value_or(c.left);
  c.right = window.right.value_or(c.right);
  c.scale = line.take(&Words::scale).value_or(0.0);
  c.tree = line.own("tree") != 0;
}

}  // namespace
