/// layer_steps, the working layer's choice of blocks; src/layers/cpu_choice.cpp says the same in
/// loops. Forward: choice_means, choice_shares, choice_heads, choice_rows, choice_lists.
#pragma once

#include "cuda/kernels/layers/steps.cuh"

namespace tilewise::layer_steps {

using tile::u32;
using tile::u64;

/// Blocks of sequence b, padding left out; tokens of one: the last may be ragged.
__forceinline__ int own_blocks(const ChoiceArgs& a, i64 b) {
  return (counted(a.lengths, b, a.tokens) + a.block - 1) / a.block;
}
__forceinline__ int block_tokens(const ChoiceArgs& a, i64 b, int block) {
  return max(min(a.block, counted(a.lengths, b, a.tokens) - block * a.block), 0);
}
/// Where a token's q (part 0) or k (part 1) begins in qkv.
__forceinline__ i64 vector_at(const ChoiceArgs& a, i64 bh, int token, int part) {
  const i64 b = bh / a.heads, head = bh % a.heads;
  return (((b * a.tokens + token) * 3 + part) * a.heads + head) * a.dim;
}
__forceinline__ bool may_cluster(const ChoiceArgs& a) { return a.fixed < 0 || a.fixed == 2; }

/// One block: mean, maximum and minimum of q or k over a block of tokens; blockIdx.x = (bh, part,
/// block).
template <Config kConfig>
__forceinline__ void choice_means(const ChoiceArgs& a) {
  const i64 place = blockIdx.x;
  const int block = static_cast<int>(place % a.blocks),
            part = static_cast<int>(place / a.blocks % 2);
  const i64 bh = place / a.blocks / 2;
  const int count = block_tokens(a, bh / a.heads, block);
  float squares = 0.0F;
  for (int e = threadIdx.x; e < a.dim; e += kThreads) {
    float sum = 0.0F, highest = -tile::infinity(), lowest = tile::infinity();
    for (int i = 0; i < count; ++i) {
      const float x = kept_at<kConfig>(a.qkv, vector_at(a, bh, block * a.block + i, part) + e);
      sum += x;
      highest = fmaxf(highest, x);
      lowest = fminf(lowest, x);
    }
    a.extremes[2 * place * a.dim + e] = highest;
    a.extremes[(2 * place + 1) * a.dim + e] = lowest;
    sum /= static_cast<float>(max(count, 1));
    a.pooled[place * a.dim + e] = sum;
    squares += sum * sum;
  }
  squares = sum_of_block(squares);
  if (threadIdx.x == 0) a.norms[place] = fmaxf(sqrtf(squares), 1e-12F);
}

/// The length of a centroid.
__forceinline__ float axis_length(const float* axis, int dim) {
  float squares = 0.0F;
  for (int e = 0; e < dim; ++e) squares += axis[e] * axis[e];
  return fmaxf(sqrtf(squares), 1e-12F);
}

/// One block: the soft clusters of one mean.
template <Config>
__forceinline__ void choice_shares(const ChoiceArgs& a) {
  const i64 place = blockIdx.x;
  const int head = static_cast<int>(place / a.blocks / 2 % a.heads);
  const float* mean = a.pooled + place * a.dim;
  const float scale = 1.0F / (a.norms[place] * fabsf(*a.temperature));
  float most = -tile::infinity();
  const int c = threadIdx.x;  // kMostClusters threads
  float scaled = -tile::infinity();
  if (c < a.clusters) {
    const float* axis = a.centroids + (static_cast<i64>(head) * a.clusters + c) * a.dim;
    float dot = 0.0F;
    for (int e = 0; e < a.dim; ++e) dot += mean[e] * axis[e];
    dot /= axis_length(axis, a.dim);
    a.cosine[place * a.clusters + c] = dot / a.norms[place];
    most = scaled = dot * scale;
  }
  most = block_reduce<kThreads>(most, Max{});
  const float value = c < a.clusters ? expf(scaled - most) : 0.0F;
  const float total = sum_of_block(value);
  if (c < a.clusters) a.share[place * a.clusters + c] = value / total;
}

/// Philox 4x32-10 as src/problem/philox.h has it: the word of `which` for a (sequence, head).
__forceinline__ u32 noise_word(const ChoiceArgs& a, u32 bh, int which) {
  const u32 draw = a.draw + (a.counter == nullptr ? 0 : *a.counter);
  u32 c[4] = {static_cast<u32>(which) / 4, bh, a.site, draw};
  u32 key0 = a.key[0], key1 = a.key[1];
  for (int round = 0; round < 10; ++round) {
    const u64 product0 = static_cast<u64>(c[0]) * 0xD2511F53U;
    const u64 product1 = static_cast<u64>(c[2]) * 0xCD9E8D57U;
    c[0] = static_cast<u32>(product1 >> 32) ^ c[1] ^ key0;
    c[1] = static_cast<u32>(product1);
    c[2] = static_cast<u32>(product0 >> 32) ^ c[3] ^ key1;
    c[3] = static_cast<u32>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return c[which % 4];
}

/// One thread: the pattern and the route of one (sequence, head).
template <Config>
__forceinline__ void choice_heads(const ChoiceArgs& a) {
  each(static_cast<i64>(a.batch) * a.heads, [&](i64 bh) {
    int chosen = a.fixed;
    if (chosen < 0) {
      float scores[kChoices], sum = 0.0F;
      for (int k = 0; k < kChoices; ++k) {
        scores[k] = a.logits[bh * kChoices + k];
        if (!a.training) continue;
        const double uniform =
            (static_cast<double>(noise_word(a, static_cast<u32>(bh), k)) + 0.5) * 0x1p-32;
        scores[k] -= static_cast<float>(log(-log(uniform)));
      }
      chosen = 0;
      for (int k = 1; k < kChoices; ++k) chosen = scores[k] > scores[chosen] ? k : chosen;
      for (int k = 0; k < kChoices; ++k) sum += expf(scores[k] - scores[chosen]);
      for (int k = 0; k < kChoices; ++k) {
        a.soft[bh * kChoices + k] = expf(scores[k] - scores[chosen]) / sum;
      }
    }
    // The numbers of src/layers have the random pattern between.
    a.pattern[bh] = chosen < 2 ? chosen : chosen + 1;
    const float g = a.gate[bh];
    float mixing = a.gated ? g : 1.0F;
    if (a.gated && !a.training) mixing = g <= a.route_below ? 0.0F : g >= a.route_above ? 1.0F : g;
    a.mixing[bh] = mixing;
  });
}

/// How far query block i and key block j share clusters.
__forceinline__ float affinity(const ChoiceArgs& a, i64 bh, int i, int j) {
  const float* q = a.share + (2 * bh * a.blocks + i) * a.clusters;
  const float* k = a.share + ((2 * bh + 1) * a.blocks + j) * a.clusters;
  float sum = 0.0F;
  for (int c = 0; c < a.clusters; ++c) sum += q[c] * k[c];
  return sum;
}

/// Whether clustered lists key block j in row i, for all j of this block's threads: near(j, is).
template <class Near>
__forceinline__ void each_near(const ChoiceArgs& a, i64 bh, int i, float* scores,
                               const Near& near) {
  float sum = 0.0F;
  const int own = own_blocks(a, bh / a.heads);
  for (int j = threadIdx.x; j < own; j += kThreads) sum += scores[j] = affinity(a, bh, i, j);
  const float mean = sum_of_block(sum) / static_cast<float>(max(own, 1));
  for (int j = threadIdx.x; j < a.blocks; j += kThreads) near(j, j < own && scores[j] > mean);
}

/// One block: one row of blocks; blockIdx.x = (bh, row).
template <Config>
__forceinline__ void choice_rows(const ChoiceArgs& a) {
  __shared__ float scores[kMostBlocks];
  const i64 bh = blockIdx.x / a.blocks;
  const int i = static_cast<int>(blockIdx.x % a.blocks);
  const auto pattern = static_cast<ChoicePattern>(a.pattern[bh]);
  unsigned char* seen = a.seen + static_cast<i64>(blockIdx.x) * a.blocks;
  const int own = own_blocks(a, bh / a.heads);
  const int there = i >= own ? 0 : a.causal ? i + 1 : own;
  int count = 0;
  const auto keep = [&](int j, bool in_pattern) {
    const bool listed = (in_pattern || j == i || j == 0) && j < there;
    seen[j] = listed ? 1 : 0;
    count += listed ? 1 : 0;
  };
  if (pattern == ChoicePattern::clustered) {
    each_near(a, bh, i, scores, keep);
  } else if (pattern == ChoicePattern::selected) {
    // As src/layers/choices.h; rintf, too, takes halves to the even number.
    const int kept = max(1, static_cast<int>(rint(a.kept * own)));
    const float* q = a.extremes + 2 * (2 * bh * a.blocks + i) * a.dim;
    for (int j = threadIdx.x; j < there; j += kThreads) {
      const float* k = a.extremes + 2 * ((2 * bh + 1) * a.blocks + j) * a.dim;
      float sum = 0.0F;
      for (int e = 0; e < 2 * a.dim; ++e) sum += q[e] * k[e];
      scores[j] = sum;
    }
    __syncthreads();  // all scores are there
    for (int j = threadIdx.x; j < a.blocks; j += kThreads) {
      int better = 0;
      for (int other = 0; j < there && other < there; ++other) {
        const bool wins = scores[other] > scores[j] || (scores[other] == scores[j] && other < j);
        better += wins ? 1 : 0;
      }
      keep(j, better < kept);
    }
  } else {
    for (int j = threadIdx.x; j < a.blocks; j += kThreads) {
      const int apart = abs(i - j);
      keep(j, pattern == ChoicePattern::local     ? apart <= a.reach
              : pattern == ChoicePattern::strided ? apart <= 1 || j % a.every == 0
                                                  : (apart & (apart - 1)) == 0);
    }
  }
  const float total = sum_of_block(static_cast<float>(count));
  if (threadIdx.x == 0) a.counts[blockIdx.x] = static_cast<int>(total);
}

/// One block: one list; blockIdx.x = (bh, 0 sparse | 1 dense). A warp writes a row.
template <Config>
__forceinline__ void choice_lists(const ChoiceArgs& a) {
  __shared__ int begins[kMostBlocks + 1];
  const i64 list = blockIdx.x, bh = list / 2;
  const bool dense = list % 2 == 1;
  const float mixing = a.mixing[bh];
  // The gate's training runs both; a routed one has mixing 0 or 1.
  const bool both = a.training && a.gated;
  const bool runs = both || (dense ? mixing < 1.0F : mixing > 0.0F);
  if (threadIdx.x == 0) {
    const int own = own_blocks(a, bh / a.heads);
    int next = static_cast<int>(list * a.blocks * a.blocks), listed = 0;
    for (int i = 0; i < a.blocks; ++i) {
      begins[i] = next;
      const int all = i >= own ? 0 : a.causal ? i + 1 : own;
      const int row = dense ? all : a.counts[bh * a.blocks + i];
      next += runs ? row : 0;
      listed += row;
    }
    begins[a.blocks] = next;
    const int every = a.causal ? own * (own + 1) / 2 : own * own;
    if (!dense) a.density[bh] = static_cast<float>(listed) / static_cast<float>(max(every, 1));
  }
  __syncthreads();  // the rows' places are there
  for (int i = threadIdx.x; i <= a.blocks; i += kThreads) {
    a.offsets[list * (a.blocks + 1) + i] = begins[i];
  }
  if (!runs) return;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < a.blocks; i += kThreads / 32) {
    const unsigned char* seen = a.seen + (bh * a.blocks + i) * a.blocks;
    const int own = own_blocks(a, bh / a.heads), there = i >= own ? 0 : a.causal ? i + 1 : own;
    int at = begins[i];
    for (int first = 0; first < there; first += 32) {
      const int j = first + lane;
      const bool listed = j < there && (dense || seen[j] != 0);
      const u32 votes = __ballot_sync(~0U, listed);
      if (listed) a.index[at + __popc(votes & ((1U << lane) - 1U))] = j;
      at += __popc(votes);
    }
  }
}

/// One thread: one (sequence, head). Straight through: the gradient of the softmax.
template <Config>
__forceinline__ void choice_logits_backward(const ChoiceArgs& a) {
  each(static_cast<i64>(a.batch) * a.heads, [&](i64 bh) {
    const int chosen = a.pattern[bh] < 2 ? a.pattern[bh] : a.pattern[bh] - 1;
    for (int k = 0; k < kChoices; ++k) {
      const float* soft = a.soft + bh * kChoices;
      a.d_logits[bh * kChoices + k] =
          a.fixed >= 0 ? 0.0F
                       : soft[chosen] * ((k == chosen ? 1.0F : 0.0F) - soft[k]) * a.d_weight[bh];
    }
  });
}

/// One block: which blocks a row's clusters are near to; into seen and counts.
template <Config>
__forceinline__ void choice_near(const ChoiceArgs& a) {
  __shared__ float scores[kMostBlocks];
  const i64 bh = blockIdx.x / a.blocks;
  const int i = static_cast<int>(blockIdx.x % a.blocks);
  if (static_cast<ChoicePattern>(a.pattern[bh]) != ChoicePattern::clustered) return;
  unsigned char* seen = a.seen + static_cast<i64>(blockIdx.x) * a.blocks;
  const int own = own_blocks(a, bh / a.heads);
  int count = 0;
  each_near(a, bh, i, scores, [&](int j, bool near) {
    seen[j] = i < own && (near || j == i || j == 0) ? 1 : 0;
    count += seen[j];
  });
  const float total = sum_of_block(static_cast<float>(count));
  if (threadIdx.x == 0) a.counts[blockIdx.x] = static_cast<int>(total);
}

/// One block: the gradient of one mean's clusters, on to its tokens; blockIdx.x as choice_means.
template <Config kConfig>
__forceinline__ void choice_shares_backward(const ChoiceArgs& a) {
  __shared__ float d_cosine[kMostClusters];
  const i64 place = blockIdx.x;
  const int block = static_cast<int>(place % a.blocks),
            part = static_cast<int>(place / a.blocks % 2);
  const i64 bh = place / a.blocks / 2;
  const int c = threadIdx.x, head = static_cast<int>(bh % a.heads);
  const bool clustered = static_cast<ChoicePattern>(a.pattern[bh]) == ChoicePattern::clustered;
  if (!clustered) {
    if (c < a.clusters) a.d_cosine[place * a.clusters + c] = 0.0F;
    if (c == 0) a.d_scaled[place] = 0.0F;
    return;
  }
  float count = 0.0F;
  for (int i = threadIdx.x; i < a.blocks; i += kThreads) {
    count += static_cast<float>(a.counts[bh * a.blocks + i]);
  }
  const float d = a.d_weight[bh] / fmaxf(sum_of_block(count), 1.0F);
  float d_share = 0.0F, share = 0.0F, cosine = 0.0F;
  if (c < a.clusters) {
    share = a.share[place * a.clusters + c];
    cosine = a.cosine[place * a.clusters + c];
    const unsigned char* seen = a.seen + bh * a.blocks * a.blocks;
    const float* others = a.share + (2 * bh + 1 - part) * a.blocks * a.clusters + c;
    for (int o = 0; o < a.blocks; ++o) {
      const i64 pair = part == 0 ? static_cast<i64>(block) * a.blocks + o
                                 : static_cast<i64>(o) * a.blocks + block;
      if (seen[pair] != 0) d_share += others[static_cast<i64>(o) * a.clusters];
    }
    d_share *= d;
  }
  const float along = sum_of_block(share * d_share);
  const float temperature = *a.temperature, size = fabsf(temperature);
  const float d_scaled = share * (d_share - along);
  const float sum = sum_of_block(c < a.clusters ? d_scaled * cosine : 0.0F);
  if (c == 0) a.d_scaled[place] = -sum / (size * temperature);
  if (c < a.clusters) {
    a.d_cosine[place * a.clusters + c] = d_scaled / size;
    d_cosine[c] =
        d_scaled / size /
        axis_length(a.centroids + (static_cast<i64>(head) * a.clusters + c) * a.dim, a.dim);
  }
  __syncthreads();  // all clusters' gradients are there
  const float* mean = a.pooled + place * a.dim;
  const float length = a.norms[place];
  const auto d_unit = [&](int e) {
    float x = 0.0F;
    for (int k = 0; k < a.clusters; ++k) {
      x += d_cosine[k] * a.centroids[(static_cast<i64>(head) * a.clusters + k) * a.dim + e];
    }
    return x;
  };
  float toward = 0.0F;
  for (int e = threadIdx.x; e < a.dim; e += kThreads) toward += d_unit(e) * mean[e] / length;
  toward = sum_of_block(toward);
  const int tokens = block_tokens(a, bh / a.heads, block);
  for (int e = threadIdx.x; e < a.dim; e += kThreads) {
    const float d_mean =
        (d_unit(e) - mean[e] / length * toward) / length / static_cast<float>(max(tokens, 1));
    for (int i = 0; i < tokens; ++i) {
      const i64 at = vector_at(a, bh, block * a.block + i, part) + e;
      keep<kConfig>(a.d_qkv, at, kept_at<kConfig>(a.d_qkv, at) + d_mean);
    }
  }
}

/// One block: one centroid; blockIdx.x = (head, cluster).
template <Config>
__forceinline__ void choice_centroids_backward(const ChoiceArgs& a) {
  const i64 place = blockIdx.x;
  const int head = static_cast<int>(place / a.clusters), c = static_cast<int>(place % a.clusters);
  const float* axis = a.centroids + place * a.dim;
  const float length = axis_length(axis, a.dim);
  const auto d_axis = [&](int e) {
    float x = 0.0F;
    for (int b = 0; b < a.batch; ++b) {
      const i64 first = (static_cast<i64>(b) * a.heads + head) * 2 * a.blocks;
      for (int n = 0; n < 2 * a.blocks; ++n) {
        const i64 mean = first + n;
        x += a.d_cosine[mean * a.clusters + c] * a.pooled[mean * a.dim + e] / a.norms[mean];
      }
    }
    return x;
  };
  float toward = 0.0F;
  for (int e = threadIdx.x; e < a.dim; e += kThreads) toward += d_axis(e) * axis[e] / length;
  toward = sum_of_block(toward);
  for (int e = threadIdx.x; e < a.dim; e += kThreads) {
    a.d_centroids[place * a.dim + e] += (d_axis(e) - axis[e] / length * toward) / length;
  }
}

/// One block of all.
template <Config>
__forceinline__ void choice_temperature_backward(const ChoiceArgs& a) {
  float sum = 0.0F;
  const int places = a.batch * a.heads * 2 * a.blocks;
  for (int n = threadIdx.x; n < places; n += kThreads) sum += a.d_scaled[n];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *a.d_temperature += sum;
}

}  // namespace tilewise::layer_steps
