/// The kernel table: every room's rows, most special first.
#include <vector>

#include "cpu/flash/flash.h"
#include "cpu/textbook/textbook.h"
#include "cuda/rows.h"
#include "plan/kernel_row.h"
#include "reference/reference.h"

namespace tilewise {

std::span<const KernelRow> kernel_table() {
  static const std::vector<KernelRow> table = [] {
    std::vector<KernelRow> rows;
    for (const auto room :
         {cuda::cuda_rows(), cpu::flash_rows(), cpu::textbook_rows(), reference_rows()}) {
      rows.insert(rows.end(), room.begin(), room.end());
    }
    return rows;
  }();
  return table;
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> infos;
  for (const KernelRow& row : kernel_table()) {
    infos.push_back({row.name, row.implementation, row.device, row.pass, row.summary});
  }
  return infos;
}

}  // namespace tilewise
