/// select, the scorers that look at tokens: antidiagonals, and vertical and slash lines. See
/// rows/select.md; src/selection/select_cpu.cpp says the same in loops.
#pragma once

#include "cuda/kernels/rows/select.cuh"

namespace tilewise::select {

__forceinline__ int floor_div(int x, int y) { return x >= 0 ? x / y : -((-x + y - 1) / y); }

/// Where the tokens of a head begin.
__forceinline__ i64 head_base(const View4& view, int batch, int head) {
  return batch * view.stride_b + head * view.stride_h;
}

/// One block takes one row of blocks: the probabilities of its tiles, by blocks of keys.
template <Config kConfig>
__forceinline__ void antidiagonals(const ScorerArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  float* logits = reinterpret_cast<float*>(memory);  // of a row of tiles
  const int all_tiles = (args.seq_k + args.stride - 1) / args.stride;
  float* q = logits + all_tiles;  // (stride, head_dim)
  float* sums = q + args.stride * args.head_dim;
  float* shares = sums + args.columns;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const i64 at = blockIdx.x;
  const int bh = static_cast<int>(at / args.rows), row = static_cast<int>(at % args.rows);
  const int batch = bh / args.heads_q, head = bh % args.heads_q;
  const int keys = keys_of(args, batch), shift = keys - args.seq_q;
  const int tiles = (keys + args.stride - 1) / args.stride;
  const i64 of_q = head_base(args.q, batch, head);
  const i64 of_k = head_base(args.k, batch, head / args.group);
  for (int j = thread; j < args.columns; j += kThreads) sums[j] = 0.0F;
  const int end = min((row + 1) * args.block_q, args.seq_q);
  const int elems = args.stride * args.head_dim;
  for (int first = row * args.block_q; first < end; first += args.stride) {
    __syncthreads();  // the last tile's queries have been read
    for (int n = thread; n < elems; n += kThreads) {
      const int i = first + n / args.head_dim;
      const i64 place = of_q + i * args.q.stride_s + n % args.head_dim * args.q.stride_d;
      q[n] = i < args.seq_q ? element<kConfig.type>(args.q.data, place) : 0.0F;
    }
    __syncthreads();  // the tile's queries are there
    const int last = min(first + args.stride, args.seq_q) - 1 + shift;
    const int seen = args.causal ? min(max(floor_div(last, args.stride) + 1, 0), tiles) : tiles;
    float top = -infinity();
    for (int c = warp; c < seen; c += kThreads / 32) {
      float dot = 0.0F;
      for (int n = lane; n < elems; n += 32) {
        const int j = c * args.stride + args.stride - 1 - n / args.head_dim;
        const i64 place = of_k + j * args.k.stride_s + n % args.head_dim * args.k.stride_d;
        if (j < keys) dot = __fmaf_rn(q[n], element<kConfig.type>(args.k.data, place), dot);
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(~0U, dot, step);
      dot *= args.scale / static_cast<float>(args.stride);
      if (lane == 0) logits[c] = dot;
      top = fmaxf(top, dot);
    }
    top = block_max(top, shares, thread);  // and the logits of all warps are there
    float all = 0.0F;
    for (int c = thread; c < seen; c += kThreads) all += exp2_approx((logits[c] - top) * kLog2e);
    all = block_sum(all, shares, thread);
    const int of_block = args.block_k / args.stride;
    for (int j = thread; j * of_block < seen; j += kThreads) {
      float sum = 0.0F;
      for (int c = j * of_block; c < min((j + 1) * of_block, seen); ++c)
        sum += exp2_approx((logits[c] - top) * kLog2e);
      sums[j] += sum / all;
    }
  }
  for (int j = thread; j < args.columns; j += kThreads)
    args.to[at * args.columns + j] = logf(sums[j]);
}

/// One block takes one query: its probabilities by blocks of keys, then by distances.
template <Config kConfig>
__forceinline__ void lines(const ScorerArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  float* q = reinterpret_cast<float*>(memory);
  float* near = q + args.head_dim;  // by block of keys: of the first distance, of the next one
  float* far = near + args.columns;
  float* shares = far + args.columns;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int bh = static_cast<int>(blockIdx.x) / args.queries;
  const int batch = bh / args.heads_q, head = bh % args.heads_q;
  const int keys = keys_of(args, batch);
  const int i = args.seq_q - args.queries + static_cast<int>(blockIdx.x) % args.queries;
  const int position = i + keys - args.seq_q;
  const int end = args.causal ? min(max(position + 1, 0), keys) : keys;
  const int blocks = (end + args.block_k - 1) / args.block_k;
  const i64 of_q = head_base(args.q, batch, head) + i * args.q.stride_s;
  const i64 of_k = head_base(args.k, batch, head / args.group);
  for (int d = thread; d < args.head_dim; d += kThreads)
    q[d] = args.scale * element<kConfig.type>(args.q.data, of_q + d * args.q.stride_d);
  __syncthreads();  // the query is there
  const auto logit = [&](int j) {
    float dot = 0.0F;
    for (int d = lane; d < args.head_dim; d += 32) {
      const i64 place = of_k + j * args.k.stride_s + d * args.k.stride_d;
      dot = __fmaf_rn(q[d], element<kConfig.type>(args.k.data, place), dot);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(~0U, dot, step);
    return dot;
  };
  float top = -infinity();
  for (int j = warp; j < end; j += kThreads / 32) top = fmaxf(top, logit(j));
  top = block_max(top, shares, thread);
  // A warp takes whole blocks: the products are worked out anew, so that no row of keys is stored.
  const int diagonal = floor_div(position, args.block_k);
  float all = 0.0F;
  for (int block = warp; block < blocks; block += kThreads / 32) {
    float first = 0.0F, next = 0.0F;
    const int stop = min((block + 1) * args.block_k, end);
    for (int j = block * args.block_k; j < stop; ++j) {
      const float p = exp2_approx((logit(j) - top) * kLog2e);
      (floor_div(position - j, args.block_k) == diagonal - block ? first : next) += p;
    }
    if (lane == 0) {
      near[block] = first;
      far[block] = next;
      all += first + next;
    }
  }
  all = block_sum(all, shares, thread);  // and the blocks of all warps are there
  const float inverse = all > 0.0F ? 1.0F / all : 0.0F;
  const int count = 3 * args.columns + 1;
  float* to = args.to + static_cast<i64>(blockIdx.x) * count;
  for (int n = thread; n < count; n += kThreads) {
    float p = 0.0F;
    if (n < args.columns) {
      if (n < blocks) p = near[n] + far[n];
    } else {
      // Distance d is the first one of block diagonal - d, and the next one of the block before.
      const int block = diagonal - (n - 2 * args.columns);
      if (block >= 0 && block < blocks) p = near[block];
      if (block >= 1 && block <= blocks) p += far[block - 1];
    }
    to[n] = p * inverse;
  }
}

/// The rule's choice among `end` keys, which begin in shared memory: write(j, taken), by one warp.
template <class Write>
__forceinline__ void apply_rule(const Args& args, const u32* keys, float* shares, int end,
                                const Write& write) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  Choice choice({args, const_cast<u32*>(keys), shares, thread, end});
  if (thread >= 32) return;
  for (int j = lane; j - lane < end; j += 32) {
    const bool here = j < end;
    const bool taken = choice.takes(here ? keys[j] : 0, here, lane);
    if (here) write(j, taken);
  }
}

/// One block takes one head: which blocks of keys and which distances its rows attend.
template <Config kConfig>
__forceinline__ void pick_lines(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int count = 3 * args.columns + 1;
  u32* keys = reinterpret_cast<u32*>(memory);
  float* shares = reinterpret_cast<float*>(memory) + count;
  const int thread = static_cast<int>(threadIdx.x);
  const int bh = static_cast<int>(blockIdx.x), batch = bh / args.heads_q;
  const float* from = args.lines + static_cast<i64>(bh) * args.queries * count;
  for (int n = thread; n < count; n += kThreads) {
    float sum = 0.0F;
    for (int i = 0; i < args.queries; ++i) sum += from[static_cast<i64>(i) * count + n];
    keys[n] = ordered(logf(sum));
  }
  __syncthreads();  // all sums are there
  unsigned char* line = args.line + static_cast<i64>(bh) * count;
  for (int n = thread; n < args.columns; n += kThreads) line[n] = 0;
  __syncthreads();  // blocks past the keys stay out
  const int blocks = (keys_of(args, batch) + args.block_k - 1) / args.block_k;
  apply_rule(args, keys, shares, blocks, [&](int j, bool taken) { line[j] = taken ? 1 : 0; });
  __syncthreads();  // the shares have been read
  apply_rule(args, keys + args.columns, shares, 2 * args.columns + 1,
             [&](int n, bool taken) { line[args.columns + n] = taken ? 1 : 0; });
}

/// One block takes one row: the rule on its scores, or the lines that cross it, and what is kept
/// whatever the scores.
template <Config kConfig>
__forceinline__ void scored(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32* keys = reinterpret_cast<u32*>(memory);
  float* shares = reinterpret_cast<float*>(memory) + args.columns;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const i64 at = blockIdx.x;
  const int bh = static_cast<int>(at / args.rows), row = static_cast<int>(at % args.rows);
  const Position position(args, bh / args.heads_q, row);
  const int end = position.end;
  const unsigned char* line = args.line + static_cast<i64>(bh) * (3 * args.columns + 1);
  for (int j = thread; j < end; j += kThreads)
    keys[j] = args.line != nullptr ? 0 : ordered(args.scores[at * args.columns + j]);
  __syncthreads();  // the scores are there
  if (args.line == nullptr) {
    Choice choice({args, keys, shares, thread, end});
    if (thread >= 32) return;
    return write_row(args, at, position, lane, [&](int j, bool here) {
      return choice.takes(here ? keys[j] : 0, here, lane);
    });
  }
  const auto crossed = [&](int j) {
    bool any = line[j] != 0;
    const int begin = j * args.block_k, stop = min(begin + args.block_k, position.tokens);
    const int nearest = max(floor_div(position.first - (stop - 1), args.block_k), -args.columns);
    const int farthest = min(floor_div(position.last - begin, args.block_k), args.columns);
    for (int d = nearest; d <= farthest; ++d) any |= line[2 * args.columns + d] != 0;
    return any;
  };
  if (thread < 32)
    write_row(args, at, position, lane, [&](int j, bool here) { return here && crossed(j); });
}

}  // namespace tilewise::select
