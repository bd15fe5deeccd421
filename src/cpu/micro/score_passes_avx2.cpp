/// The score passes for AVX2 with FMA.
#include "cpu/micro/score_passes_impl.h"

namespace tilewise::cpu {

const ScorePasses& score_passes_avx2() {
  static constexpr ScorePasses kPasses = make_score_passes();
  return kPasses;
}

}  // namespace tilewise::cpu
