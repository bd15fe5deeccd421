#include "cuda/jit/census.h"

#include <algorithm>
#include <map>

namespace tilewise::cuda {
namespace {

constexpr int kMaxSpillBytes = 160;

/// ptxas's notes that cost a kernel its speed: setmaxnreg ignored, wgmma serialised. C7519, a
/// barrier moved, does not.
bool is_harmful(const std::string& note) {
  const std::string code = note.substr(0, 5);
  return (code >= "C7508" && code <= "C7515") || code == "C7520";
}

}  // namespace

int shared_limit_bytes(int arch) {
  constexpr int kKib = 1024;
  switch (arch) {
    case 80:
    case 87:
      return 163 * kKib;
    case 86:
    case 89:
    case 120:
    case 121:
      return 99 * kKib;
    default:
      return 227 * kKib;
  }
}

std::vector<std::string> census_faults(const PackUnit& packed, const KernelEntry& entry, int arch) {
  std::vector<std::string> faults;
  const CompileReport& r = entry.report;
  const int spilled = r.spill_store_bytes + r.spill_load_bytes;
  if (packed.allowed_spill_bytes > kMaxSpillBytes) {
    faults.push_back("its row allows " + std::to_string(packed.allowed_spill_bytes) +
                     " bytes of spills: at most " + std::to_string(kMaxSpillBytes));
  }
  if (std::max(r.spill_store_bytes, r.spill_load_bytes) > packed.allowed_spill_bytes) {
    faults.push_back("spills " + std::to_string(spilled) + " bytes, allowed are " +
                     std::to_string(packed.allowed_spill_bytes));
  }
  if (spilled == 0 && r.stack_bytes > 0) {
    // An array that is indexed by what the compiler does not know.
    faults.push_back("keeps " + std::to_string(r.stack_bytes) + " bytes in local memory");
  }
  for (const std::string& note : r.notes) {
    if (is_harmful(note)) faults.push_back(note);
  }
  const int shared = r.static_shared_bytes + entry.shared_bytes;
  if (shared > shared_limit_bytes(arch)) {
    faults.push_back("asks for " + std::to_string(shared) +
                     " bytes of shared memory, a block has " +
                     std::to_string(shared_limit_bytes(arch)));
  }
  if (packed.instruction == "mma.sync" && r.mma_count == 0) faults.push_back("has no mma.sync");
  if (packed.instruction == "wgmma.mma_async" && r.wgmma_count == 0) {
    faults.push_back("has no wgmma.mma_async");
  }
  if (entry.cubin_bytes > kMaxCubinBytes) {
    faults.push_back("has " + std::to_string(entry.cubin_bytes) +
                     " bytes of machine code, at most " + std::to_string(kMaxCubinBytes));
  }
  return faults;
}

std::vector<CensusLine> census(const Pack& pack, int arch) {
  std::map<std::string, const KernelEntry*> by_key;
  for (const KernelEntry& entry : pack.list()) by_key[entry.key] = &entry;
  std::vector<CensusLine> lines;
  for (PackUnit& packed : pack_units(arch)) {
    CensusLine line;
    const auto found = by_key.find(unit_key(packed.unit, arch));
    if (found == by_key.end()) {
      line.faults.emplace_back("is not in the pack");
    } else {
      line.entry = *found->second;
      line.faults = census_faults(packed, line.entry, arch);
    }
    line.packed = std::move(packed);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tilewise::cuda
