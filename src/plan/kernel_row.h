/// KernelRow: one entry of the kernel table. Adding a kernel is its files plus one row; its
/// conformance test, benchmark, `check` line, census and pack entry follow from the row.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise {

/// A part of a row's saved state or workspace. The words of a MemoryItem are made for the row that
/// is taken, not for every row that is asked.
struct MemoryPart {
  static constexpr int kMaxRank = 5;

  const char* name = "";
  MemoryItem::Role role = MemoryItem::Role::workspace;
  DType dtype = DType::float32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::int64_t bytes = 0;

  MemoryItem item() const;
};

/// A part with its bytes worked out from a shape of at most kMaxRank axes. Throws OutOfMemory for
/// more elements than a tensor may have.
MemoryPart memory_part(const char* name, MemoryItem::Role role, DType dtype,
                       std::span<const std::int64_t> shape);
MemoryPart memory_part(const char* name, MemoryItem::Role role, DType dtype,
                       std::initializer_list<std::int64_t> shape);

/// The cost of a row on a problem.
struct Cost {
  double ms = 0.0;                                        ///< predicted time
  double bytes_moved = 0.0;                               ///< through memory
  int block_m = 0, block_n = 0, splits = 1, threads = 1;  ///< as in Plan
  /// Saved state and workspace of this row, in the order in which they lie in memory (each 256-byte
  /// aligned).
  std::vector<MemoryPart> memory;
};

/// A row's answer where it can run a problem.
struct Prepared {
  Cost cost;
  /// What the row decided (tile, config, parts, ...), made once for every run(). The type is the
  /// row's own; empty where a row decides nothing.
  std::shared_ptr<const void> decision;
};

/// The reason why a row cannot run a problem, in words for the user, or what it would do.
using Preparation = std::variant<std::string, Prepared>;

/// The reason of a refusal; empty when the row can run the problem.
std::string refusal_of(const Preparation& preparation);

/// A row's decision, to be put into its Prepared.
template <class T>
std::shared_ptr<const void> remember(T decision) {
  return std::make_shared<const T>(std::move(decision));
}

/// The context of a run.
struct Context {
  const Plan& plan;
  const void* decision = nullptr;  ///< what the row's prepare() remembered for this problem
  std::byte* workspace = nullptr;  ///< plan.workspace_bytes, 256-byte aligned
  void* stream = nullptr;
  Executor& executor;

  template <class T>
  const T& decided() const {
    return *static_cast<const T*>(decision);
  }
};

struct KernelRow {
  const char* name;            ///< "flash_fwd_avx512"
  const char* implementation;  ///< "baseline", "eager", "fused", "flash", "reference"
  DeviceType device;
  Pass pass;
  const char* summary;
  /// Whether and how the row runs the problem on the machine. It reads of the problem only what
  /// problem_key() holds, and of host lengths what predicted times count.
  Preparation (*prepare)(const KernelRow& row, const Problem& problem, const Hardware& machine);
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

}  // namespace tilewise
