/// Forms: the ways in which one kernel row can run one problem, and how a row is asked for one of
/// them. A row itself takes the form of least predicted time; `tilewise tune` measures them all.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include "problem/problem.h"

namespace tilewise {

/// The numbers of a plan that distinguish the forms of a row, as in Plan.
struct Form {
  int block_m = 0, block_n = 0, splits = 1, threads = 1;
  bool operator==(const Form&) const = default;
};

/// Problem::forms: what a planned problem says about them.
struct Forms {
  std::optional<Form> wanted;  ///< the only one to be taken
  std::vector<Form> seen;      ///< without it: all that the row could have taken
};

/// A row that is about to consider a form asks this first; false: it must not.
inline bool admits(const Problem& p, const Form& form) {
  if (p.forms == nullptr) return true;
  if (p.forms->wanted) return *p.forms->wanted == form;
  std::vector<Form>& seen = p.forms->seen;
  if (std::find(seen.begin(), seen.end(), form) == seen.end()) seen.push_back(form);
  return true;
}

/// The wanted form of `others`, or else `own`, for a row whose model knows one form.
inline Form form_of(const Problem& p, const Form& own, const std::vector<Form>& others) {
  Form taken = own;
  if (p.forms == nullptr) return taken;
  admits(p, own);
  for (const Form& other : others) {
    if (admits(p, other) && p.forms->wanted) taken = other;
  }
  return taken;
}

}  // namespace tilewise
