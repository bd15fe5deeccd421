/// The flash rows of the CPU: the same two kernels, once per instruction set.
#include <array>

#include "cpu/flash/decode_geometry.h"
#include "cpu/flash/flash.h"
#include "cpu/flash/mapped_mask.h"
#include "cpu/flash/tiles.h"
#include "problem/grouped.h"

namespace tilewise::cpu {
namespace {

constexpr Isa kScalar = Isa::scalar;
constexpr Isa kAvx2 = Isa::avx2;
constexpr Isa kAvx512 = Isa::avx512;
constexpr Isa kAvx512Bf16 = Isa::avx512bf16;
constexpr Isa kAmx = Isa::amx;

using Prepare = Prepared (*)(const KernelRow& row, const Problem& problem, const Hardware& machine);

template <Prepare kPrepare>
Preparation prepare(const KernelRow& row, const Problem& problem, const Hardware& machine) {
  std::string reason = tiled_refusal(problem, *static_cast<const Isa*>(row.config), machine);
  if (!reason.empty()) return reason;
  return kPrepare(row, with_map_sizes(problem), machine);
}

using Run = void (*)(const KernelRow& row, const Problem& problem, const Context& context);

template <Run kRun>
void run(const KernelRow& row, const Problem& problem, const Context& context) {
  const MappedMask mapped(problem);
  kRun(row, mapped.problem(), context);
}

/// Few query rows of heads that are alike, and more than the float32 rows read in place: as rows of
/// one head they fill tiles, at twice the speed. The keys are not split, so there must be tasks for
/// half of the threads, whose number must not matter with `deterministic`.
bool fills_as_rows(const Problem& p, const Problem& rows, const Hardware& machine) {
  return !p.deterministic && rows.seq_q > p.seq_q && !beats_tiles(rows) &&
         2 * smallest_tasks_bf16(rows) >= threads_with_work(p, machine);
}

/// Few query rows of bfloat16 that the row reads the keys for where they lie.
bool reads_in_row(const KernelRow& row, const Problem& p) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  return p.pass == Pass::forward && isa >= Isa::avx512bf16 && reads_bf16(p, isa);
}

/// True where reading is faster than grouped(), whose keys are packed.
bool reads_faster(const KernelRow& row, const Problem& p) {
  constexpr std::int64_t kFewTileRows = 32, kLongRow = 128;
  const std::int64_t rows = p.group() * p.seq_q;
  if (rows <= kReadingRows) return true;
  const bool tiles = *static_cast<const Isa*>(row.config) >= Isa::amx;
  return tiles && (rows <= kFewTileRows || p.head_dim > kLongRow);
}

template <Prepare kPrepare>
Preparation prepare_bf16(const KernelRow& row, const Problem& problem, const Hardware& machine) {
  std::string reason = tiled_refusal(problem, *static_cast<const Isa*>(row.config), machine);
  if (!reason.empty()) return reason;
  if (problem.dtype != DType::bfloat16)
    return std::string(dtype_name(problem.dtype)) +
           " is not supported by this kernel (only bfloat16)";
  if (problem.pass == Pass::forward && beats_tiles(problem)) {
    const Problem rows = grouped(problem);
    const bool reads = reads_in_row(row, problem);
    const bool faster = reads && reads_faster(row, problem);
    if (!faster && fills_as_rows(problem, rows, machine)) return kPrepare(row, rows, machine);
    if (reads) {
      return flash_decode_prepared(row, with_map_sizes(problem), machine);
    }
    return "few query rows are not supported by this kernel (the float32 kernels read the keys in "
           "place)";
  }
  if (problem.pass == Pass::backward && half_tiles(problem)) {
    return "at most 16 rows and keys are not supported by this kernel (the float32 kernels are "
           "faster)";
  }
  return kPrepare(row, with_map_sizes(problem), machine);
}

/// As prepare_bf16 decided. flash_decode's blocks have at most kMostListedKeys keys, those of tiles
/// have more.
void run_forward_bf16(const KernelRow& row, const Problem& problem, const Context& context) {
  if (!beats_tiles(problem)) return run<flash_forward_bf16>(row, problem, context);
  if (context.plan.block_n <= kMostListedKeys) return run<flash_decode>(row, problem, context);
  flash_forward_bf16(row, grouped(problem), context);
}

constexpr KernelRow bf16_forward_row(const char* name, const char* summary, const Isa& isa) {
  return {.name = name,
          .implementation = "flash",
          .device = DeviceType::cpu,
          .pass = Pass::forward,
          .summary = summary,
          .prepare = prepare_bf16<flash_forward_bf16_prepared>,
          .run = run_forward_bf16,
          .config = &isa};
}
constexpr KernelRow bf16_backward_row(const char* name, const char* summary, const Isa& isa) {
  return {.name = name,
          .implementation = "flash",
          .device = DeviceType::cpu,
          .pass = Pass::backward,
          .summary = summary,
          .prepare = prepare_bf16<flash_backward_bf16_prepared>,
          .run = run<flash_backward_bf16>,
          .config = &isa};
}

constexpr KernelRow forward_row(const char* name, const char* summary, const Isa& isa) {
  return {.name = name,
          .implementation = "flash",
          .device = DeviceType::cpu,
          .pass = Pass::forward,
          .summary = summary,
          .prepare = prepare<flash_forward_prepared>,
          .run = run<flash_forward>,
          .config = &isa};
}
constexpr KernelRow backward_row(const char* name, const char* summary, const Isa& isa) {
  return {.name = name,
          .implementation = "flash",
          .device = DeviceType::cpu,
          .pass = Pass::backward,
          .summary = summary,
          .prepare = prepare<flash_backward_prepared>,
          .run = run<flash_backward>,
          .config = &isa};
}

constexpr std::array kRows{
    bf16_forward_row("flash_fwd_amx", "bfloat16, tiled, online softmax; AMX, 2 x 2 tiles", kAmx),
    bf16_forward_row("flash_fwd_avx512bf16",
                     "bfloat16, tiled, online softmax; vdpbf16ps, 8 x 32 register tile",
                     kAvx512Bf16),
    forward_row("flash_fwd_avx512", "tiled, online softmax; AVX-512, 6 x 64 register tile",
                kAvx512),
    forward_row("flash_fwd_avx2", "tiled, online softmax; AVX2 + FMA, 6 x 16 register tile", kAvx2),
    forward_row("flash_fwd_scalar", "tiled, online softmax; any x86-64 CPU", kScalar),
    bf16_backward_row("flash_bwd_amx", "bfloat16, tiled, P recomputed from LSE; AMX, 2 x 2 tiles",
                      kAmx),
    bf16_backward_row("flash_bwd_avx512bf16",
                      "bfloat16, tiled, P recomputed from LSE; vdpbf16ps, 8 x 32 register tile",
                      kAvx512Bf16),
    backward_row("flash_bwd_avx512", "tiled, P recomputed from LSE; AVX-512, 6 x 64 register tile",
                 kAvx512),
    backward_row("flash_bwd_avx2", "tiled, P recomputed from LSE; AVX2 + FMA, 6 x 16 register tile",
                 kAvx2),
    backward_row("flash_bwd_scalar", "tiled, P recomputed from LSE; any x86-64 CPU", kScalar),
};

}  // namespace

std::span<const KernelRow> flash_rows() { return kRows; }

}  // namespace tilewise::cpu
