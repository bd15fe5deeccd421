/// What a kernel row answers to a problem, for tests of single rows.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>

#include "plan/kernel_row.h"

namespace tilewise {

/// Why the row does not run the problem; empty when it does.
inline std::string refusal_by(const KernelRow& row, const Problem& problem,
                              const Hardware& machine) {
  return refusal_of(row.prepare(row, problem, machine));
}

/// What it would cost. A refusal fails the test.
inline Cost cost_by(const KernelRow& row, const Problem& problem, const Hardware& machine) {
  Preparation preparation = row.prepare(row, problem, machine);
  EXPECT_EQ(refusal_of(preparation), "") << row.name;
  auto* prepared = std::get_if<Prepared>(&preparation);
  return prepared != nullptr ? std::move(prepared->cost) : Cost{};
}

}  // namespace tilewise
