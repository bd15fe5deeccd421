/// Conformance: one kernel row on one case against the float64 reference, under CONTRACT 18.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.h"
#include "plan/kernel_row.h"

namespace tilewise {

enum class CheckStatus : std::uint8_t { passed, failed, skipped };

/// The error of one result.
struct Deviation {
  std::string quantity;  ///< "O", "LSE", "dQ", "dK", "dV", "dbias", "dsinks"
  double error = 0.0;    ///< max |ours - float64|; infinite where one is NaN or Inf wrongly
  /// 2 max |unfused - float64| + 1e-5; LSE: 1e-5 max(1, max |s|); 0 = only finiteness was asked
  /// for.
  double bound = 0.0;
};

struct CheckResult {
  CheckStatus status = CheckStatus::passed;
  std::string kernel;
  std::string reason;  ///< why it failed or was skipped; empty when passed
  std::string repeat;  ///< the command that repeats it: tilewise check --kernel ROW --case "..."
  std::vector<Deviation> deviations;
};

/// Expected results of cases, kept for the next row: the reference is slow. Bounded: the oldest go
/// first. Thread-safe.
class ReferenceCache;
std::shared_ptr<ReferenceCache> make_reference_cache(std::int64_t max_bytes = std::int64_t{256}
                                                                              << 20);

struct CheckOptions {
  std::uint64_t seed = 1;
  Device device;  ///< where the row runs; its type must be the row's
  bool repeatable =
      true;  ///< also run twice and compare bits (forward; backward when deterministic)
  double max_work =
      4e9;  ///< multiply-adds of the reference above which only sampled rows are checked
  Executor* executor = nullptr;
  std::shared_ptr<ReferenceCache> cache;  ///< null = none kept
};

/// Never throws for what the row does wrong: a crash by exception is a failure with its message.
CheckResult check_case(const KernelRow& row, const Case& problem, const CheckOptions& options = {});

/// `tilewise check --kernel ROW --case "..."`, with --device and --seed where they are not the
/// defaults.
std::string repeat_line(const KernelRow& row, const Case& problem, const CheckOptions& options);

}  // namespace tilewise
