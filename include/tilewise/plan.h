/// Plan: the kernel for a problem, its tiles, workspace and cost, and the reason for the choice. A
/// plan is a plain value that can be printed, kept and compared with measurements. Planning needs
/// no device and no data.
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

/// The machine of a plan, as plain numbers: this machine, or one described by its figures.
struct Hardware {
  Device device = {};
  std::string name = {};          ///< "AMD EPYC 9654", "NVIDIA H100 80GB HBM3", ...
  std::int64_t memory_bytes = 0;  ///< of the device
  double matrix_tflops = 0.0;     ///< sustained rate of the units for bf16 and fp16, TFLOP/s
  double float32_tflops = 0.0;    ///< sustained rate of float32 multiply-add, TFLOP/s
  double bandwidth_gbps = 0.0;    ///< memory bandwidth, GB/s, both directions counted
  double launch_us = 0.0;         ///< cost of one kernel launch or parallel region, microseconds
  std::int64_t l2_bytes = 0;      ///< L2 cache of a GPU, last-level cache of a CPU; 0 = unknown

  // CPU
  int threads = 1;
  std::string isa = {};  ///< best usable instruction set: "scalar", "avx2", "avx512", "amx"

  // CUDA
  int arch = 0;             ///< 80, 86, 89, 90, 100, 120
  int multiprocessors = 0;  ///< SMs
  int shared_kib = 0;       ///< shared memory available to one block, KiB

  bool at_hand = false;  ///< set by hardware(): plans use the results of `tilewise tune`
};

/// Describes this machine. Throws DeviceError if the device or its driver is missing.
TILEWISE_API Hardware hardware(Device device = {});

/// One tensor in memory during a pass.
struct MemoryItem {
  enum class Role : std::uint8_t {
    input,      ///< q, k, v, bias, ...: owned by the caller
    output,     ///< O, LSE: kept for backward
    saved,      ///< S, P: saved for the implementation's own backward, besides O and LSE
    gradient,   ///< dO, dQ, dK, dV, dbias, dsinks
    workspace,  ///< freed after the pass
  };
  std::string name = {};
  Role role = Role::input;
  std::string shape = {};  ///< "(8, 1, 16384, 16384)"
  DType dtype = DType::float32;
  std::int64_t bytes = 0;
};

/// The reason why a kernel was not chosen.
struct Refusal {
  std::string kernel = {};
  std::string reason = {};
};

/// Restricts the choice of a kernel. If both fields are empty, the planner considers the `flash`
/// kernels of the tensors' device. A forced kernel or implementation that cannot run the problem is
/// an error. For calls with both fields empty, the environment variable TILEWISE_FORCE_KERNEL names
/// a kernel, an implementation or FORWARD+BACKWARD.
struct Choice {
  std::string implementation = {};  ///< baseline, eager, fused, flash, reference
  std::string kernel = {};          ///< a name from kernels(), or one per pass: FORWARD+BACKWARD
};

/// Internal to the library.
struct Decision;

struct Plan {
  Pass pass = Pass::forward;
  std::string kernel = {};
  std::string implementation = {};
  Device device = {};
  int block_m = 0;  ///< query rows per tile (B_r); 0 = no tiles
  int block_n = 0;  ///< keys per tile (B_c)
  int splits = 1;   ///< parts of a head's keys (backward: queries or keys)
  int threads = 1;  ///< CPU worker threads; the workspace holds one scratch area for each
  std::int64_t workspace_bytes = 0;  ///< minimum size of Launch::workspace
  std::int64_t saved_bytes = 0;      ///< size of ForwardTensors::saved; 0 for flash
  bool keeps_saved = true;    ///< false if forward has no ForwardTensors::saved and saves nothing
  double flops = 0.0;         ///< multiply-adds counted twice, visible pairs only
  double bytes_moved = 0.0;   ///< memory traffic, both directions
  double predicted_ms = 0.0;  ///< time by the planner's model, milliseconds
  std::string reason = {};    ///< why this kernel was chosen
  std::vector<MemoryItem> memory = {};  ///< every tensor of the pass, workspace included
  std::vector<Refusal> refusals = {};   ///< the other kernels of the device and pass, with reasons

  /// The kernel's other decisions for the problem. Opaque, and shared by copies. A plan without it,
  /// or with changed numbers, runs only if its kernel decides the same again.
  std::shared_ptr<const Decision> decision = {};

  /// Bytes live between forward and backward: inputs, outputs and saved state.
  TILEWISE_API std::int64_t live_bytes() const;
  /// Largest number of live bytes during the pass.
  TILEWISE_API std::int64_t peak_bytes() const;
};

/// The plan as text of several lines, for people.
TILEWISE_API std::string explain(const Plan& plan);

/// One row of the kernel table.
struct KernelInfo {
  std::string name = {};
  std::string implementation = {};
  DeviceType device = DeviceType::cpu;
  Pass pass = Pass::forward;
  std::string summary = {};  ///< one line: algorithm, instruction set, tiles
};

/// All rows of the kernel table, most specialised first.
TILEWISE_API std::vector<KernelInfo> kernels();

}  // namespace tilewise
