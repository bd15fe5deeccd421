/// The score passes for AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
// NOTE: as in avx512_lanes.h; here for the functions of the headers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "cpu/micro/score_passes_impl.h"

namespace tilewise::cpu {

const ScorePasses& score_passes_avx512() {
  static constexpr ScorePasses kPasses = make_score_passes();
  return kPasses;
}

}  // namespace tilewise::cpu
