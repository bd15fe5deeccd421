/// select: blocks of keys that pooled scores choose for each block of queries. See rows/select.md.
#pragma once

#include "cuda/kernels/rows/select_args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::select {

using namespace tile;

template <Type kType>
__forceinline__ float element(const void* data, i64 at) {
  if constexpr (kType == Type::float32) return static_cast<const float*>(data)[at];
  const u32 bits = static_cast<const unsigned short*>(data)[at];
  return kType == Type::bf16 ? widen<Element::bf16>(bits) : widen<Element::fp16>(bits);
}

/// What a thread has seen of a column of a block. Sums count from the first token on: what a
/// variance loses in a large mean would show.
struct Column {
  float sum = 0.0F, squares = 0.0F, top = -infinity(), low = infinity();

  __forceinline__ void add(float x, float first) {
    const float off = x - first;
    sum += off;
    squares += off * off;
    top = fmaxf(top, x);
    low = fminf(low, x);
  }
  __forceinline__ void add(const Column& other) {
    sum += other.sum;
    squares += other.squares;
    top = fmaxf(top, other.top);
    low = fminf(low, other.low);
  }
};

/// Statistics of a block of tokens: a warp takes every fourth token, a lane every 32nd column, and
/// the warps' shares are added in their order.
template <Config kConfig>
__forceinline__ void pool(const PoolArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Column* shares = reinterpret_cast<Column*>(memory);  // of each warp, kMostDim of them
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int block = static_cast<int>(blockIdx.x) % args.blocks;
  const int bh = static_cast<int>(blockIdx.x) / args.blocks;
  const int batch = bh / args.heads, head = bh - batch * args.heads;
  int tokens = args.tokens;
  if (args.lengths != nullptr) tokens = min(max(args.lengths[batch * args.lengths_b], 0), tokens);
  const int begin = block * args.block, end = min(begin + args.block, tokens);
  const i64 base = batch * args.from.stride_b + head * args.from.stride_h;
  for (int d = lane; d < args.head_dim; d += 32) {
    Column mine;
    const i64 column = base + d * args.from.stride_d;
    const float first =
        begin < end ? element<kConfig.type>(args.from.data, column + begin * args.from.stride_s)
                    : 0.0F;
    for (int i = begin + warp; i < end; i += kThreads / 32)
      mine.add(element<kConfig.type>(args.from.data, column + i * args.from.stride_s), first);
    shares[warp * kMostDim + d] = mine;
  }
  __syncthreads();  // the shares of all warps are there
  float* to = args.to + static_cast<i64>(blockIdx.x) * args.features;
  for (int d = thread; d < args.head_dim; d += kThreads) {
    Column all = shares[d];
    for (int w = 1; w < kThreads / 32; ++w) all.add(shares[w * kMostDim + d]);
    const i64 at = base + d * args.from.stride_d + begin * args.from.stride_s;
    const float first = begin < end ? element<kConfig.type>(args.from.data, at) : 0.0F;
    const float count = static_cast<float>(max(end - begin, 1)), off = all.sum / count;
    const float statistics[kStatistics] = {first + off, all.top, all.low,
                                           fmaxf(all.squares / count - off * off, 0.0F)};
    int place = d;
    for (int s = 0; s < kStatistics; ++s) {
      if (args.factor[s] == 0.0F) continue;
      to[place] = begin < end ? args.factor[s] * statistics[s] : 0.0F;
      place += args.head_dim;
    }
  }
}

/// Grows as the float does, and is never 0; NaN counts as -inf.
__forceinline__ u32 ordered(float x) {
  if (x != x) x = -infinity();
  const u32 bits = static_cast<u32>(__float_as_int(x));
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}
__forceinline__ float from_ordered(u32 key) {
  return __int_as_float(static_cast<int>((key >> 31) != 0 ? key & 0x7fffffffU : ~key));
}

/// The sum of all threads, for each of them.
__forceinline__ float block_sum(float x, float* shares, int thread) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  __syncthreads();  // the sum before has been read
  if (thread % 32 == 0) shares[thread / 32] = x;
  __syncthreads();  // the shares of all warps are there
  float sum = 0.0F;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += shares[w];
  return sum;
}
__forceinline__ float block_max(float x, float* shares, int thread) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, step));
  __syncthreads();  // what was there has been read
  if (thread % 32 == 0) shares[thread / 32] = x;
  __syncthreads();  // the shares of all warps are there
  float top = shares[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) top = fmaxf(top, shares[w]);
  return top;
}

/// A row's candidates and its choice among them.
struct Row {
  const Args& args;
  u32* const keys;                   ///< ordered scores, one a candidate
  float* const shares;               ///< of warps, in shared memory
  const int thread, end;             ///< candidates
  float top = 0.0F, inverse = 1.0F;  ///< of the softmax

  /// Infinite scores share all of the probability.
  __forceinline__ float weight(u32 key) const {
    const float x = from_ordered(key);
    return (x == top ? 1.0F : exp2_approx((x - top) * kLog2e)) * inverse;
  }
  __forceinline__ void normalise() {
    float most = -infinity();
    for (int j = thread; j < end; j += kThreads) most = fmaxf(most, from_ordered(keys[j]));
    most = block_max(most, shares, thread);
    top = most > -infinity() ? most : 0.0F;
    float sum = 0.0F;
    for (int j = thread; j < end; j += kThreads) sum += weight(keys[j]);
    sum = block_sum(sum, shares, thread);
    inverse = sum > 0.0F ? 1.0F / sum : 1.0F;
  }
  /// Whether those from `key` on are enough: as many as are wanted, or of the wanted mass.
  __forceinline__ bool enough(u32 key) const {
    float sum = 0.0F;
    for (int j = thread; j < end; j += kThreads) {
      if (keys[j] >= key) sum += args.rule == Rule::top_k ? 1.0F : weight(keys[j]);
    }
    sum = block_sum(sum, shares, thread);
    return args.rule == Rule::top_k ? sum >= static_cast<float>(args.count) : sum >= args.mass;
  }
  /// The largest key from which on there are enough, bit by bit; 0: all together are not.
  __forceinline__ u32 last_key() const {
    u32 key = 0;
#pragma unroll 1
    for (int bit = 31; bit >= 0; --bit) {
      const u32 next = key | 1U << bit;
      if (enough(next)) key = next;
    }
    return key;
  }
  /// How many of those whose key is the last are taken, the first ones.
  __forceinline__ int of_equal(u32 last) const {
    float larger = 0.0F;
    for (int j = thread; j < end; j += kThreads) {
      if (keys[j] > last) larger += args.rule == Rule::top_k ? 1.0F : weight(keys[j]);
    }
    larger = block_sum(larger, shares, thread);
    if (args.rule == Rule::top_k) return args.count - static_cast<int>(larger);
    const float each = weight(last), wanted = ceilf((args.mass - larger) / each);
    return each > 0.0F && wanted < static_cast<float>(end) ? max(static_cast<int>(wanted), 0) : end;
  }
};

/// The rule's choice among a row's candidates. All threads make it; one warp then asks in order,
/// so that the first of equal ones are known.
struct Choice {
  Row of;
  u32 least = 0;  ///< the smallest key that is taken; 0: all are, or the rule has a threshold
  int equal = 0;  ///< how many of that key are left to take

  __forceinline__ explicit Choice(const Row& row) : of(row) {
    const Rule rule = of.args.rule;
    if (rule != Rule::top_k) of.normalise();
    if (rule == Rule::above || of.end == 0) return;
    least = of.last_key();
    equal = least == 0 ? 0 : of.of_equal(least);
  }
  /// Whether the candidate of this lane is taken, if it is `here`.
  __forceinline__ bool takes(u32 key, bool here, int lane) {
    const bool above = of.args.rule == Rule::above;
    const bool by_rule = above ? of.weight(key) > of.args.threshold : key > least;
    const bool same = here && !above && least != 0 && key == least;
    const u32 all_same = __ballot_sync(~0U, same);
    const bool first = same && __popc(all_same & ((1U << lane) - 1)) < equal;
    equal = max(equal - __popc(all_same), 0);
    return (here && by_rule) || first;
  }
};

/// Keys of a batch entry.
template <class Given>
__forceinline__ int keys_of(const Given& args, int batch) {
  if (args.lengths == nullptr) return args.seq_k;
  return min(max(args.lengths[batch * args.lengths_b], 0), args.seq_k);
}

/// Where a row of blocks lies beside the blocks of keys.
struct Position {
  int tokens;                  ///< keys of the batch entry
  int first, last;             ///< the diagonal's keys of the row's first and last query
  int end;                     ///< candidates: blocks of keys
  int diagonal, diagonal_end;  ///< blocks that the diagonal crosses

  __forceinline__ Position(const Args& args, int batch, int row)
      : tokens(keys_of(args, batch)),
        first(row * args.block_q + tokens - args.seq_q),
        last(min((row + 1) * args.block_q, args.seq_q) - 1 + tokens - args.seq_q) {
    const int blocks = (tokens + args.block_k - 1) / args.block_k;
    const int on_diagonal = last < 0 ? 0 : last / args.block_k + 1;
    end = args.causal ? min(on_diagonal, blocks) : blocks;
    diagonal = first < 0 ? 0 : min(first / args.block_k, end);
    diagonal_end = min(on_diagonal, end);
  }
  /// Whether the block is kept whatever its score.
  __forceinline__ bool keeps(const Args& args, int j) const {
    return (args.keep_first && j == 0) || (args.keep_diagonal && j >= diagonal && j < diagonal_end);
  }
};

/// Writes a row's choice, by one warp: take(j, whether j is a candidate).
template <class Take>
__forceinline__ void write_row(const Args& args, i64 at, const Position& position, int lane,
                               Take take) {
  int taken = 0;
  for (int word = 0; word < args.words; ++word) {
    const int j = word * 32 + lane;
    const bool here = j < position.end;
    const bool chosen = take(j, here);
    const u32 bits = __ballot_sync(~0U, chosen || (here && position.keeps(args, j)));
    taken += __popc(bits);
    if (args.mask != nullptr) {
      if (j < args.columns) args.mask[at * args.columns + j] = (bits >> lane & 1U) != 0 ? 1 : 0;
    } else if (lane == 0) {
      args.bits[at * args.words + word] = bits;
    }
  }
  if (lane == 0 && args.counts != nullptr) args.counts[at] = taken;
}

/// One block takes one row: scores of its candidates, a softmax, the rule, and what is kept
/// whatever the scores.
template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32* keys = reinterpret_cast<u32*>(memory);
  float* q = reinterpret_cast<float*>(memory) + args.columns;
  float* shares = q + args.features;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const i64 at = blockIdx.x;
  const int bh = static_cast<int>(at / args.rows), row = static_cast<int>(at % args.rows);
  const int batch = bh / args.heads_q, head = bh - batch * args.heads_q;
  const Position position(args, batch, row);
  const int end = position.end;
  for (int f = thread; f < args.features; f += kThreads) q[f] = args.q[at * args.features + f];
  __syncthreads();  // the row's statistics are there
  const i64 heads_k = args.heads_q / args.group;
  const float* k = args.k + (batch * heads_k + head / args.group) * args.columns * args.features;
  for (int j = warp; j < end; j += kThreads / 32) {
    float dot = 0.0F;
    for (int f = lane; f < args.features; f += 32)
      dot = __fmaf_rn(q[f], k[static_cast<i64>(j) * args.features + f], dot);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(~0U, dot, step);
    if (lane == 0) keys[j] = ordered(dot);
  }
  __syncthreads();  // the scores of all warps are there
  Choice choice({args, keys, shares, thread, end});
  if (warp > 0) return;
  write_row(args, at, position, lane,
            [&](int j, bool here) { return choice.takes(here ? keys[j] : 0, here, lane); });
}

/// Where each row's blocks begin: one block, each thread rows that lie side by side.
template <Config kConfig>
__forceinline__ void scan(const ListArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int* before = reinterpret_cast<int*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int all = args.heads * args.rows, each = (all + kScanThreads - 1) / kScanThreads;
  const int first = min(thread * each, all), end = min(first + each, all);
  int mine = 0;
  for (int i = first; i < end; ++i) mine += args.counts[i];
  before[thread] = mine;
  for (int step = 1; step < kScanThreads; step *= 2) {
    __syncthreads();  // the sums so far are there
    const int other = thread >= step ? before[thread - step] : 0;
    __syncthreads();  // and have been read
    before[thread] += other;
  }
  __syncthreads();  // the sums are complete
  int at = before[thread] - mine;
  for (int i = first; i < end; ++i) {
    const int head = i / args.rows, row = i - head * args.rows;
    int* offsets = args.row_offsets + static_cast<i64>(head) * (args.rows + 1);
    offsets[row] = at;
    at += args.counts[i];
    if (row == args.rows - 1) offsets[args.rows] = at;
  }
}

/// A warp writes a row's blocks.
template <Config kConfig>
__forceinline__ void scatter(const ListArgs& args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const i64 i = static_cast<i64>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (i >= static_cast<i64>(args.heads) * args.rows) return;
  const i64 head = i / args.rows;
  int at = args.row_offsets[i + head];
  for (int word = 0; word < args.words; ++word) {
    const u32 bits = args.bits[i * args.words + word];
    if ((bits >> lane & 1) != 0)
      args.block_index[at + __popc(bits & ((1U << lane) - 1))] = word * 32 + lane;
    at += __popc(bits);
  }
}

}  // namespace tilewise::select
