/// The score passes for any x86-64 CPU.
#include "cpu/micro/score_passes_impl.h"

namespace tilewise::cpu {

const ScorePasses& score_passes_scalar() {
  static constexpr ScorePasses kPasses = make_score_passes();
  return kPasses;
}

const ScorePasses& score_passes(Isa isa) {
  if (isa >= Isa::avx512) return score_passes_avx512();
  return isa == Isa::avx2 ? score_passes_avx2() : score_passes_scalar();
}

}  // namespace tilewise::cpu
