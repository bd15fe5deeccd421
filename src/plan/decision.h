/// Decision: what a Plan keeps of its making (Plan::decision), for run() and its checks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "plan/kernel_row.h"

namespace tilewise {

/// The row that a Plan took, and what the row decided.
struct Decision {
  const KernelRow* row = nullptr;
  std::shared_ptr<const void> of_row;  ///< Prepared::decision
  std::string problem;                 ///< problem_key() of the problem that it was made for
  // The plan's numbers as they were made: a caller may have changed those of the Plan.
  std::int64_t workspace_bytes = 0, saved_bytes = 0;
  int block_m = 0, block_n = 0, splits = 1, threads = 1;
};

}  // namespace tilewise
