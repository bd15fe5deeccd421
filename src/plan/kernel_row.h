/// KernelRow: one entry of the kernel table. Adding a kernel is its files plus one row; its
/// conformance test, benchmark, `check` line, census and pack entry follow from the row.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise {

/// What a row would cost on a problem.
struct Cost {
  double ms = 0.0;                                        ///< predicted time
  double bytes_moved = 0.0;                               ///< through memory
  int block_m = 0, block_n = 0, splits = 1, threads = 1;  ///< as in Plan
  /// Saved state and workspace of this row, in the order in which they lie in memory (each 256-byte
  /// aligned).
  std::vector<MemoryItem> memory;
};

/// What a row gets to run with.
struct Context {
  const Plan& plan;
  std::byte* workspace = nullptr;  ///< plan.workspace_bytes, 256-byte aligned
  void* stream = nullptr;
  Executor& executor;
};

struct KernelRow {
  const char* name;            ///< "flash_fwd_avx512"
  const char* implementation;  ///< "baseline", "eager", "fused", "flash", "reference"
  DeviceType device;
  Pass pass;
  const char* summary;
  /// Empty when the row can run the problem on the machine, else the reason, in words for the user.
  std::string (*supports)(const KernelRow& row, const Problem& problem, const Hardware& machine);
  Cost (*cost)(const KernelRow& row, const Problem& problem, const Hardware& machine);
  void (*run)(const KernelRow& row, const Problem& problem, const Context& context);
  const void* config =
      nullptr;  ///< the row's own constants (tiles, stages), for rows that share functions
  /// Set: a problem for which it gives a reason gets the row only by its name, not by the plan's
  /// choice. For a kernel or an option whose text has not run on its hardware yet, or that is there
  /// to be compared with.
  std::string (*on_trial)(const KernelRow& row, const Problem& problem) = nullptr;
};

/// All rows, most special first. Each room that computes contributes its own spans (flash_rows(),
/// reference_rows(), ...).
std::span<const KernelRow> kernel_table();

/// Rounds up to the alignment of workspace parts.
constexpr std::int64_t align_workspace(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// Cuts a workspace (or saved state) into parts in the order of the row's MemoryItems.
class WorkspaceCutter {
 public:
  explicit WorkspaceCutter(void* begin) : at_(static_cast<std::byte*>(begin)) {}
  template <class T>
  T* take(std::int64_t elems) {
    T* part = reinterpret_cast<T*>(at_);
    at_ += align_workspace(elems * static_cast<std::int64_t>(sizeof(T)));
    return part;
  }

 private:
  std::byte* at_;
};

/// A MemoryItem with its bytes worked out from a shape.
MemoryItem memory_item(std::string name, MemoryItem::Role role, DType dtype,
                       const std::vector<std::int64_t>& shape);

}  // namespace tilewise
