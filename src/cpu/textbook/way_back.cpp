#include "cpu/textbook/way_back.h"

#include <algorithm>
#include <limits>

#include "cpu/textbook/unfused.h"

namespace tilewise::cpu {
namespace {

constexpr std::int64_t kStripScores = 8192;  ///< three buffers of it stay in the second-level cache

/// A hidden key's gradient is 0, whatever the derivatives are there.
void clear_hidden(const float* logits, int cols, float* gradient) {
  for (int c = 0; c < cols; ++c) {
    if (logits[c] == -std::numeric_limits<float>::infinity()) gradient[c] = 0.0F;
  }
}

std::int64_t strip_elems(const Problem& p) { return std::max(kStripScores, p.seq_k); }

}  // namespace

std::int64_t WayBack::scratch_elems(const Problem& problem) { return 3 * strip_elems(problem); }

WayBack::WayBack(const Problem& problem, const ScoreSteps& steps, float* scratch)
    : steps_(steps),
      logits_(scratch),
      capped_(scratch + strip_elems(problem)),
      premod_(scratch + 2 * strip_elems(problem)) {}

void WayBack::run(const TilePlace& block, const float* s, float* gradient, Through through) const {
  for_strips(block, kStripScores, [&](const TilePlace& strip, int first) {
    TilePlace tight = strip;  // the strip as it lies in the scratch
    tight.ld = strip.cols;
    for (int r = 0; r < strip.rows; ++r) {
      std::copy_n(s + (first + r) * block.ld, strip.cols, logits_ + r * tight.ld);
    }
    steps_.apply(tight, logits_, capped_, premod_);
    steps_.hide(tight, logits_);
    // Row by row: the steps take one leading dimension for all buffers of a tile.
    TilePlace row = tight;
    row.rows = 1;
    for (int r = 0; r < strip.rows; ++r, ++row.i0) {
      float* at = gradient + (first + r) * block.ld;
      if (through.mod) steps_.back_through_mod(row, premod_ + r * tight.ld, nullptr, at);
      if (through.cap) steps_.back_through_cap(row, capped_ + r * tight.ld, at);
      clear_hidden(logits_ + r * tight.ld, strip.cols, at);
    }
  });
}

}  // namespace tilewise::cpu
