/// The working layer's choice of blocks on a CUDA device.
#include <algorithm>

#include "layers/choices.h"
#include "layers/cuda_ops.h"
#include "problem/philox.h"

namespace tilewise::asam {
namespace {

namespace steps = layer_steps;

void check_sizes(const ChoiceShape& shape) {
  if (shape.blocks() > steps::kMostBlocks) {
    throw Unsupported("more than " + std::to_string(steps::kMostBlocks) +
                      " blocks of a sequence are not supported on cuda; config.block_size is " +
                      std::to_string(shape.block));
  }
  if (shape.clusters > steps::kMostClusters) {
    throw Unsupported("more than " + std::to_string(steps::kMostClusters) +
                      " clusters are not supported on cuda");
  }
}

}  // namespace

steps::ChoiceArgs choice_args(const Choice<float>& c) {
  const HeadShape& h = c.shape.heads;
  const Config& config = *c.config;
  const std::int64_t n = c.shape.blocks();
  const DropoutMask random({
      .p = 0.0,
      .seed = c.draw.seed,
  });
  const bool automatic = config.pattern == Pattern::automatic;
  steps::ChoiceArgs a;
  a.batch = static_cast<int>(h.batch);
  a.tokens = static_cast<int>(h.tokens);
  a.heads = static_cast<int>(h.heads);
  a.dim = static_cast<int>(h.dim);
  a.block = static_cast<int>(c.shape.block);
  a.blocks = static_cast<int>(n);
  a.clusters = static_cast<int>(c.shape.clusters);
  a.fixed = automatic ? -1 : choice_number(config.pattern);
  a.training = c.training;
  a.causal = config.causal;
  a.gated = config.adaptive_gate;
  a.reach = static_cast<int>(local_reach(config));
  a.every = static_cast<int>(strided_every(config));
  a.kept = config.density;
  a.route_above = static_cast<float>(config.route_above);
  a.route_below = static_cast<float>(1.0 - config.route_above);
  std::copy(random.key().begin(), random.key().end(), a.key);
  a.draw = c.draw.draw;
  a.counter = counter_of(c.draw);
  a.lengths = c.lengths;
  a.site = c.draw.site;
  a.qkv = c.qkv.data();
  a.logits = c.logits;
  a.gate = c.gate;
  a.centroids = c.centroids;
  a.temperature = c.temperature;
  a.pattern = c.pattern;
  a.soft = c.soft;
  a.mixing = c.mixing;
  a.density = c.density;
  a.offsets = c.offsets;
  a.index = c.index;
  a.d_weight = c.d_weight;
  a.d_logits = c.d_logits;
  a.d_qkv = c.d_qkv.data();
  a.d_centroids = c.d_centroids;
  a.d_temperature = c.d_temperature;
  return a;
}

steps::ChoiceArgs CudaOps::start_choice(const Choice<float>& c) {
  check_sizes(c.shape);
  const HeadShape& h = c.shape.heads;
  const std::int64_t n = c.shape.blocks(), lists = h.batch * h.heads, means = 2 * lists * n;
  const Pattern pattern = c.config->pattern;
  steps::ChoiceArgs a = choice_args(c);
  a.pooled = choice_.pooled.room(memory_, means * h.dim);
  a.extremes = choice_.extremes.room(memory_, 2 * means * h.dim);
  a.norms = choice_.norms.room(memory_, means);
  a.cosine = choice_.cosine.room(memory_, means * c.shape.clusters);
  a.share = choice_.share.room(memory_, means * c.shape.clusters);
  a.seen = choice_.seen.room(memory_, lists * n * n);
  a.counts = choice_.counts.room(memory_, lists * n);
  start(Step::choice_means, a, means);
  if (pattern == Pattern::automatic || pattern == Pattern::clustered) {
    start(Step::choice_shares, a, means);
  }
  return a;
}

void CudaOps::choose(const Choice<float>& c) {
  const steps::ChoiceArgs a = start_choice(c);
  const std::int64_t lists = c.shape.heads.batch * c.shape.heads.heads;
  start(Step::choice_heads, a, blocks_for(lists));
  start(Step::choice_rows, a, lists * a.blocks);
  start(Step::choice_lists, a, 2 * lists);
}

void CudaOps::choose_backward(const Choice<float>& c) {
  const Pattern pattern = c.config->pattern;
  const HeadShape& h = c.shape.heads;
  const std::int64_t lists = h.batch * h.heads;
  if (pattern != Pattern::automatic && pattern != Pattern::clustered) {
    return clear(c.d_logits, lists * kChoices * static_cast<std::int64_t>(sizeof(float)));
  }
  // Means and shares anew: another layer's are there.
  steps::ChoiceArgs a = start_choice(c);
  const std::int64_t means = 2 * lists * a.blocks;
  a.d_cosine = choice_.d_cosine.room(memory_, means * c.shape.clusters);
  a.d_scaled = choice_.d_scaled.room(memory_, means);
  start(Step::choice_logits_backward, a, blocks_for(lists));
  start(Step::choice_near, a, lists * a.blocks);
  start(Step::choice_shares_backward, a, means);
  start(Step::choice_centroids_backward, a, h.heads * c.shape.clusters);
  start(Step::choice_temperature_backward, a, 1);
}

}  // namespace tilewise::asam
