/// MaterializedCase: a Case with memory behind it. Inputs are random from one seed, outputs and
/// gradients hold NaN, guard bands lie on both sides of every tensor, gaps of strided tensors hold
/// NaN.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/device_memory.h"
#include "tilewise/attention.h"

namespace tilewise {

class CaseState;

struct MaterializeOptions {
  bool guards = true;  ///< bands of 256 bytes around each tensor
};

/// Owns every buffer of one case. Forward's tensors exist from the beginning, backward's from the
/// first call of backward() on, so that live memory can be read in between. Not thread-safe;
/// movable.
class MaterializedCase {
 public:
  /// Throws InvalidArgument for a case that no tensors can express, OutOfMemory.
  MaterializedCase(const Case& problem, std::uint64_t seed, DeviceMemory& memory,
                   MaterializeOptions options = {});
  MaterializedCase(MaterializedCase&&) noexcept;
  MaterializedCase& operator=(MaterializedCase&&) noexcept;
  ~MaterializedCase();

  /// Keeps the memory that was passed alive as long as the case.
  void own(std::unique_ptr<DeviceMemory> memory);

  const Case& problem() const;
  const AttentionSpec& spec() const;
  /// Views on the device.
  const ForwardTensors& forward() const;
  const BackwardTensors& backward();

  /// The same problem with tensors in host memory, for the reference; on the CPU the very same
  /// tensors. Outputs are those of the last download().
  const AttentionSpec& host_spec() const;
  const ForwardTensors& host_forward() const;
  const BackwardTensors& host_backward();

  /// New random values in Q, K, V (and dO): what a benchmark does between rounds.
  void refresh(std::uint64_t seed);
  /// Fills O and LSE, or the gradients, with NaN again.
  void poison_outputs();
  void poison_gradients();
  /// Copies outputs (and gradients, once they exist) to the host; nothing to do on the CPU.
  void download();
  /// Sets O and LSE of the backward tensors from host memory of the same shapes, contiguous: what a
  /// forward gave.
  void set_forward_results(const std::vector<double>& o, const std::vector<double>& lse);
  /// Names of the tensors whose guard bands or gaps were written; empty when all are intact.
  std::string damage();

 private:
  std::unique_ptr<CaseState> state_;
};

/// Shapes, strides and spec of a case with null data: all that plan() reads. Small index tensors
/// (offsets, lengths, block lists) have data.
class PlannedCase {
 public:
  explicit PlannedCase(const Case& problem, Device device = {});
  PlannedCase(PlannedCase&&) noexcept;
  PlannedCase& operator=(PlannedCase&&) noexcept;
  ~PlannedCase();
  const ForwardTensors& forward() const;
  const BackwardTensors& backward() const;
  const AttentionSpec& spec() const;

 private:
  std::unique_ptr<CaseState> state_;
};

/// On the CPU or any device: materialize(c, seed, *device_memory(device)) keeps `memory` alive
/// itself.
MaterializedCase materialize(const Case& problem, std::uint64_t seed, Device device = {},
                             MaterializeOptions options = {});

}  // namespace tilewise
