#include "cuda/rows.h"

#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/bwd_short_sm90/row.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/copied/row.h"
#include "cuda/kernels/decode_sm90/row.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/mla_sm90/row.h"
#include "cuda/kernels/rows/append.h"
#include "cuda/kernels/rows/combine.h"
#include "cuda/kernels/rows/convert.h"
#include "cuda/kernels/rows/delta.h"
#include "cuda/kernels/rows/pack.h"
#include "cuda/kernels/textbook/baseline.h"
#include "cuda/kernels/textbook/softmax_rows.h"
#include "cuda/kernels/textbook/unfused.h"

namespace tilewise::cuda {

std::span<const KernelRow> cuda_rows() {
  static const std::vector<KernelRow> rows = {kFlashMlaSm90,
                                              kFlashDecodeSm90,
                                              kFlashForwardSm90,
                                              kFlashForwardCopiedSm90,
                                              kFlashForwardSm80,
                                              kFlashForwardTile16,
                                              kFlashBackwardShortSm90,
                                              kFlashBackwardSm90,
                                              kFlashBackwardPassingSm90,
                                              kFlashBackwardCopiedSm90,
                                              kFlashBackwardSm80,
                                              kFlashBackwardTwoPassSm80,
                                              kFusedForward,
                                              kFusedBackward,
                                              kEagerForward,
                                              kEagerBackward,
                                              kBaselineForward};
  return rows;
}

std::vector<PackUnit> pack_units(int arch) {
  std::vector<PackUnit> units;
  add_fwd_sm90_units(units, arch);
  add_bwd_sm90_units(units, arch);
  add_decode_sm90_units(units, arch);
  add_mla_sm90_units(units, arch);
  add_fwd_sm80_units(units, arch);
  add_bwd_sm80_units(units, arch);
  add_pack_rows_units(units);
  add_combine_units(units);
  add_append_units(units);
  add_bwd_delta_units(units);
  add_bwd_convert_units(units);
  if (arch == 80) {
    // The textbook's kernels compile in a tenth of a second; one architecture is enough to watch
    // them.
    add_softmax_units(units);
    add_baseline_units(units);
  }
  return units;
}

}  // namespace tilewise::cuda
