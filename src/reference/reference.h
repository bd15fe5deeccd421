/// The oracle: the paper as code in float64, all of CONTRACT, written for reading. Equations:
/// docs/math.md.
///
/// Inputs are read exactly, everything is computed in double, and results are rounded once, to the
/// tensor's type. Backward works out O and LSE anew from q, k and v instead of trusting the rounded
/// ones that it is passed: it is the truth that kernels are compared with, so it takes nothing from
/// them.
#pragma once

#include <span>
#include <vector>

#include "plan/kernel_row.h"

namespace tilewise {

/// The table's rows reference_fwd and reference_bwd.
std::span<const KernelRow> reference_rows();

namespace reference {

/// Row-major, in the shape of the caller's tensors. Dense: o (B, Hq, Sq, Dv), lse (B, Hq, Sq).
/// Packed: o (1, Hq, total_q, Dv), lse (Hq, total_q).
struct Forward {
  std::vector<double> o, lse;
};

/// Row-major, in the shape of the caller's tensors: dq, dk, dv as q, k, v; dbias as Problem::dbias
/// was given, a broadcast axis having one element (empty when it was not given); dsinks (Hq) (empty
/// without sinks).
struct Backward {
  std::vector<double> dq, dk, dv, dbias, dsinks;
  /// One a captured tensor of the score; empty where its gradient is not wanted.
  std::vector<std::vector<double>> dcaptures;
};

/// Forward without the last rounding. Reads the problem's inputs only; its outputs may be not
/// given.
Forward forward_f64(const Problem& problem, Executor& executor = default_executor());

/// Backward without the last rounding. Reads q, k, v, d_o, d_lse and the options; of dbias its
/// shape only.
Backward backward_f64(const Problem& problem, Executor& executor = default_executor());

}  // namespace reference
}  // namespace tilewise
