/// Plan: which kernel runs a problem, with which tiles, workspace and cost, and why. A plain value:
/// it can be printed, forced, kept and compared with what was measured. Planning needs no device
/// and no data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/spec.h"
#include "tilewise/tensor.h"

namespace tilewise {

enum class Pass : std::uint8_t { forward, backward };

/// "forward" or "backward".
TILEWISE_API std::string_view pass_name(Pass pass);

/// The machine that a plan is made for, as plain numbers: the one at hand, or one that is only
/// named.
struct Hardware {
  Device device;
  std::string name;               ///< "AMD EPYC 9654", "NVIDIA H100 80GB HBM3", ...
  std::int64_t memory_bytes = 0;  ///< of the device
  double matrix_tflops =
      0.0;  ///< sustained rate of the units that a bf16/fp16 kernel uses, TFLOP/s
  double float32_tflops = 0.0;  ///< sustained rate of float32 multiply-add, TFLOP/s
  double bandwidth_gbps = 0.0;  ///< memory, GB/s, both directions counted
  double launch_us = 0.0;     ///< cost of starting one kernel or one parallel region, microseconds
  std::int64_t l2_bytes = 0;  ///< a GPU's L2 cache, a CPU's last-level cache; 0: not known

  // CPU
  int threads = 1;
  std::string isa;  ///< best usable set: "scalar", "avx2", "avx512", "amx"

  // CUDA
  int arch = 0;             ///< 80, 86, 89, 90, 100, 120
  int multiprocessors = 0;  ///< SMs
  int shared_kib = 0;       ///< shared memory that one block may ask for, KiB

  bool at_hand = false;  ///< by hardware(): what `tilewise tune` measured counts
};

/// The machine at hand. Throws DeviceError, saying what is missing, when there is no such device or
/// driver.
TILEWISE_API Hardware hardware(Device device = {});

/// One tensor that a pass holds in memory.
struct MemoryItem {
  enum class Role : std::uint8_t {
    input,      ///< q, k, v, bias, ...: the caller's
    output,     ///< O, LSE: kept for backward
    saved,      ///< S, P: what an implementation keeps for its own backward beyond O and LSE
    gradient,   ///< dO, dQ, dK, dV, dbias, dsinks
    workspace,  ///< gone when the pass is over
  };
  std::string name;
  Role role = Role::input;
  std::string shape;  ///< "(8, 1, 16384, 16384)"
  DType dtype = DType::float32;
  std::int64_t bytes = 0;
};

/// Why a kernel of the table was passed over.
struct Refusal {
  std::string kernel;
  std::string reason;
};

/// Narrows the choice. Empty = free: the `flash` rows of the tensors' device. A forced kernel or
/// implementation that cannot run the problem is an error. TILEWISE_FORCE_KERNEL in the environment
/// (a kernel's or an implementation's name, or FORWARD+BACKWARD) does the same for calls that leave
/// both empty.
struct Choice {
  std::string implementation;  ///< baseline, eager, fused, flash, reference
  std::string kernel;          ///< a row's name (see kernels()), or one a pass: FORWARD+BACKWARD
};

/// The library's own.
struct Decision;

struct Plan {
  Pass pass = Pass::forward;
  std::string kernel;
  std::string implementation;
  Device device;
  int block_m = 0;  ///< query rows of a tile (B_r); 0 = the kernel has no tiles
  int block_n = 0;  ///< keys of a tile (B_c)
  int splits =
      1;  ///< parts that the keys (backward: the queries or keys) of one head are split into
  int threads = 1;  ///< CPU: bodies that run at a time; the workspace has scratch for so many
  std::int64_t workspace_bytes =
      0;  ///< Launch::workspace must have at least this much, or the allocator gives it
  std::int64_t saved_bytes = 0;  ///< size of ForwardTensors::saved; 0 for flash
  bool keeps_saved =
      true;  ///< false: a forward that was given no ForwardTensors::saved, so that nothing is kept
  double flops = 0.0;        ///< multiply-adds counted twice, visible pairs only
  double bytes_moved = 0.0;  ///< through memory, both directions
  double predicted_ms = 0.0;
  std::string reason;              ///< why this kernel
  std::vector<MemoryItem> memory;  ///< every tensor of the pass, workspace included
  std::vector<Refusal> refusals;   ///< every other kernel of the device and pass, with the reason

  /// What the kernel decided for the problem beside these numbers; opaque, shared by copies. A plan
  /// without it, or whose numbers were changed, runs only if its kernel decides the same.
  std::shared_ptr<const Decision> decision;

  /// Bytes that are alive between forward and backward: inputs, outputs and what is saved.
  TILEWISE_API std::int64_t live_bytes() const;
  /// Most bytes alive during the pass.
  TILEWISE_API std::int64_t peak_bytes() const;
};

/// A plan in words and numbers, for people; several lines.
TILEWISE_API std::string explain(const Plan& plan);

/// One row of the kernel table.
struct KernelInfo {
  std::string name;
  std::string implementation;
  DeviceType device = DeviceType::cpu;
  Pass pass = Pass::forward;
  std::string summary;  ///< one line: algorithm, instruction set, tiles
};

/// Every row of the kernel table in order, most special first.
TILEWISE_API std::vector<KernelInfo> kernels();

}  // namespace tilewise
