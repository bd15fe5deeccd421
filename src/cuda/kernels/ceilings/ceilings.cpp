#include "cuda/kernels/ceilings/ceilings.h"

#include "cuda/driver/launch.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/kernel.h"

namespace tilewise::cuda {
namespace {

using ceilings::What;

/// Blocks of a multiprocessor: the registers of a wgmma block leave room for one.
constexpr int kBlocks = 4, kBlocksShared = 2, kBlocksMemory = 8;

const char* what_text(What what) {
  switch (what) {
    case What::read:
      return "read";
    case What::copy:
      return "copy";
    case What::shared:
      return "shared";
    case What::float32:
      return "float32";
    case What::bf16:
      return "bf16";
    case What::tf32:
      return "tf32";
    case What::wgmma:
      return "wgmma";
  }
  return "";
}

int blocks_of(What what) {
  if (what == What::wgmma) return 1;
  if (what == What::read || what == What::copy) return kBlocksMemory;
  return what == What::shared ? kBlocksShared : kBlocks;
}

/// FLOPs or bytes of a block in one round.
double work_of_round(What what) {
  constexpr double kWarps = ceilings::kThreads / 32.0;
  switch (what) {
    case What::shared:
      return ceilings::kSharedBytes;
    case What::float32:
      return 2.0 * ceilings::kThreads * ceilings::kChains;
    case What::bf16:
      return 2.0 * kWarps * ceilings::kTiles * 16 * 8 * 16;
    case What::tf32:
      return 2.0 * kWarps * ceilings::kTiles * 16 * 8 * 8;
    case What::wgmma:
      return 2.0 * kWarps / 4 * ceilings::kProducts * 64 * ceilings::kProductN * 16;
    case What::read:
    case What::copy:
      break;
  }
  return 0.0;
}

}  // namespace

KernelUnit ceiling_unit(What what) {
  KernelUnit unit{.stem = "ceilings",
                  .file = "ceilings/kernel",
                  .config = std::string(".what = What::") + what_text(what),
                  .threads = ceilings::kThreads,
                  .min_blocks = blocks_of(what)};
  if (what == What::shared) unit.shared_bytes = ceilings::kSharedBytes;
  if (what == What::wgmma) {
    unit.shared_bytes = ceilings::kPanels;
    unit.prelude =
        "#include \"cuda/tile/hopper/wgmma.cuh\"\n" +
        wgmma_text(tile::Element::bf16, {.n = ceilings::kProductN, .operands_in_shared = true});
  }
  return unit;
}

bool has_ceiling(What what, int arch) { return what != What::wgmma || arch == 90; }

std::int64_t ceiling_threads(const Hardware& machine) {
  return std::int64_t{kBlocksMemory} * machine.multiprocessors * ceilings::kThreads;
}

std::int64_t ceiling_step_bytes(const Hardware& machine) {
  return std::int64_t{16} * ceilings::kVectors * ceiling_threads(machine);
}

void launch_ceiling(What what, const CeilingLaunch& work, const Hardware& machine) {
  const ceilings::Args args{
      .from = work.from, .to = work.to, .vectors = work.bytes / 16, .rounds = work.rounds};
  launch(load(ceiling_unit(what), machine.device.index),
         {.x = std::int64_t{blocks_of(what)} * machine.multiprocessors}, nullptr, args);
}

double ceiling_work(What what, const CeilingLaunch& work, const Hardware& machine) {
  if (what == What::read) return static_cast<double>(work.bytes);
  if (what == What::copy) return 2.0 * static_cast<double>(work.bytes);
  return work_of_round(what) * work.rounds * blocks_of(what) * machine.multiprocessors;
}

}  // namespace tilewise::cuda
