#include "plan/batch_invariance.h"

#include <limits>

#include "problem/blocks.h"

namespace tilewise {
namespace {

/// One entry has no number of listed pairs: the caller's list has those of all.
constexpr double kUnknownPairs = std::numeric_limits<double>::infinity();

}  // namespace

bool plans_one_entry(const Problem& p) {
  if (!p.deterministic || p.packed) return false;
  const bool counts = p.block_list.defined() || p.listed_pairs >= 0.0;
  return p.batch > 1 || p.key_lengths.defined() || (counts && p.listed_pairs != kUnknownPairs);
}

Problem one_entry(const Problem& problem) {
  Problem p = problem;
  p.batch = 1;
  p.key_lengths = {};
  p.listed_pairs = kUnknownPairs;
  for (Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse, &p.d_o, &p.d_lse, &p.dq, &p.dk, &p.dv, &p.mask,
                    &p.bias, &p.dbias, &p.alibi_slopes, &p.block_table}) {
    const bool pool = p.paged && (t == &p.k || t == &p.v);
    // How many pages the other entries have decides nothing.
    if (t->defined()) t->sizes[0] = pool ? ceil_div(p.seq_k, p.page_size) : 1;
  }
  return p;
}

}  // namespace tilewise
