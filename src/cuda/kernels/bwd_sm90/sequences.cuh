/// bwd_sm90, bwd_dq_sm90: from a job to the sequence that it is of, whose lengths only the device
/// knows. One thread's work, the producer's.
#pragma once

#include "cuda/kernels/bwd_sm90/shared.cuh"
#include "cuda/tile/hopper/packed_sequence.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

using tile::first_block;
using tile::offset_at;

/// Offsets that a block of threads has in shared memory, where there is room for all of them: a
/// search in the L2 cache takes longer than a job's first copies (signals empty the L1 cache). With
/// them go the blocks of rows before each sequence, so that no job is none of a sequence's. Up to
/// kMostSorted sequences come in the order of their lengths, the longest first: its tiles are the
/// longest too, and what is left at the end is short.
struct KeptOffsets {
  static constexpr int kMostSorted = 512;
  static constexpr u32 kBlockBits = 23;

  const Offsets& all;
  u32 rows;     ///< where the first row of each sequence is kept; 0: nowhere
  u32 blocks;   ///< by place in the order: the sequence, and its first block; then their number
  bool sorted;  ///< else a sequence's place is its own number

  __forceinline__ u32 kept(int place) const { return load_shared_4(blocks + place * 4); }
};
__forceinline__ int offset_at(const KeptOffsets& offsets, int index) {
  return offsets.rows != 0 ? static_cast<int>(load_shared_4(offsets.rows + index * 4))
                           : tile::offset_at(offsets.all, index);
}
/// The first block of the sequence at a place in the order.
__forceinline__ int first_block(const KeptOffsets& offsets, int place, int rows) {
  if (offsets.rows == 0) return tile::first_block(offsets.all, place, rows);
  return static_cast<int>(offsets.kept(place) & ((1U << KeptOffsets::kBlockBits) - 1));
}
__forceinline__ int sequence_at(const KeptOffsets& offsets, int place) {
  return offsets.sorted ? static_cast<int>(offsets.kept(place) >> KeptOffsets::kBlockBits) : place;
}
__forceinline__ int sequence_at(const Offsets& /*offsets*/, int place) { return place; }
struct KeptLengths {
  KeptOffsets cu_q, cu_k;
  int sequences, q_rows, k_rows;
};
template <Config kConfig>
__forceinline__ KeptLengths kept_lengths(const Args& args, const Shared<kConfig>& shared) {
  const DeviceLengths& of = ragged<kConfig>(args);
  // Queries and keys of self-attention are kept once.
  const bool same = of.cu_q.data == of.cu_k.data && of.cu_q.stride == of.cu_k.stride &&
                    of.q_rows == of.k_rows && kConfig.shape.chunk_rows == kConfig.shape.block_n;
  const u32 column = (of.sequences + 2) * 4, side = same ? 0 : 2 * column;
  const bool fit = 2 * column + side <= static_cast<u32>(Shared<kConfig>::kPlan.kept);
  const u32 q = fit ? shared.places() : 0, k = fit ? q + side : 0;
  const bool sorted = fit && of.sequences <= KeptOffsets::kMostSorted;
  return {{of.cu_q, q, q + column, sorted},
          {of.cu_k, k, k + column, sorted},
          of.sequences,
          of.q_rows,
          of.k_rows};
}
/// All threads of a block, before it begins.
template <Config kConfig>
__forceinline__ void keep_offsets(const Args& args, const Shared<kConfig>& shared) {
  const KeptLengths of = kept_lengths<kConfig>(args, shared);
  if (of.cu_q.rows == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i <= of.sequences; i += kConfig.threads()) {
    store_shared_4(of.cu_q.rows + i * 4, static_cast<u32>(tile::offset_at(of.cu_q.all, i)));
    if (of.cu_k.rows == of.cu_q.rows) continue;
    store_shared_4(of.cu_k.rows + i * 4, static_cast<u32>(tile::offset_at(of.cu_k.all, i)));
  }
}
/// All threads of a block, when all offsets are kept: the order, by the queries of a sequence,
/// which are what its tiles last as long as. The rows behind the last sequence come last.
template <Config kConfig>
__forceinline__ void order_sequences(const Args& args, const Shared<kConfig>& shared) {
  const KeptLengths of = kept_lengths<kConfig>(args, shared);
  if (!of.cu_q.sorted) return;
  const auto length = [&](int i) { return offset_at(of.cu_q, i + 1) - offset_at(of.cu_q, i); };
  for (int i = static_cast<int>(threadIdx.x); i <= of.sequences; i += kConfig.threads()) {
    int place = i;
    if (i < of.sequences) {
      const int own = length(i);
      place = 0;
#pragma unroll 1
      for (int other = 0; other < of.sequences; ++other) {
        const int rows = length(other);
        if (rows > own || (rows == own && other < i)) ++place;
      }
    }
    const u32 word = static_cast<u32>(i) << KeptOffsets::kBlockBits;
    store_shared_4(of.cu_q.blocks + place * 4, word);
    if (of.cu_k.rows != of.cu_q.rows) store_shared_4(of.cu_k.blocks + place * 4, word);
  }
}
/// One warp: adds up the blocks of `rows` rows. The rows behind the last sequence are one more.
__forceinline__ void count_blocks(const KeptOffsets& of, int sequences, int all_rows, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
#pragma unroll 1
  for (int first = 0; first <= sequences; first += 32) {
    const int place = first + lane;
    int own = 0, i = 0;
    if (place <= sequences) {
      i = sequence_at(of, place);
      const int end = i < sequences ? offset_at(of, i + 1) : all_rows;
      own = (max(end - offset_at(of, i), 0) + rows - 1) / rows;
    }
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_sync(~0U, sum, max(lane - step, 0));
      if (lane >= step) sum += other;
    }
    if (place <= sequences) {
      const u32 sequence = of.sorted ? static_cast<u32>(i) << KeptOffsets::kBlockBits : 0;
      store_shared_4(of.blocks + place * 4, sequence | static_cast<u32>(before + sum - own));
    }
    before += __shfl_sync(~0U, sum, 31);
  }
  if (lane == 0) store_shared_4(of.blocks + (sequences + 1) * 4, static_cast<u32>(before));
  __syncwarp();
}
/// The producer's warp, when all offsets are kept.
template <Config kConfig>
__forceinline__ void count_blocks(const Args& args, const Shared<kConfig>& shared) {
  const KeptLengths of = kept_lengths<kConfig>(args, shared);
  if (of.cu_q.rows == 0) return;
  count_blocks(of.cu_q, of.sequences, of.q_rows, kConfig.shape.chunk_rows);
  if (of.cu_k.rows == of.cu_q.rows) return;
  count_blocks(of.cu_k, of.sequences, of.k_rows, kConfig.shape.block_n);
}
/// Spans: sequences that are neighbours in the order, of some 8,192 keys together
/// (args.parts). Of many long sequences a head does not stay in the L2 cache, a span does.
/// One thread, when blocks are counted: where each begins.
template <Config kConfig>
__forceinline__ void find_spans(const Args& args, const Shared<kConfig>& shared) {
  const KeptLengths of = kept_lengths<kConfig>(args, shared);
  const int blocks = first_block(of.cu_k, of.sequences + 1, kConfig.shape.block_n);
  const int least =
      max(args.parts, (blocks + SharedPlan::kMostSpans - 2) / (SharedPlan::kMostSpans - 1));
  int spans = 0, begin = 0;
#pragma unroll 1
  for (int place = 0; place <= of.sequences + 1; ++place) {
    const int block = first_block(of.cu_k, place, kConfig.shape.block_n);
    const bool end = place > of.sequences;
    if (place > 0 && !end && block - begin < least) continue;
    const int chunk = first_block(of.cu_q, place, kConfig.shape.chunk_rows);
    store_shared_4(shared.span(spans), static_cast<u32>(chunk));
    store_shared_4(shared.span(spans) + 4, static_cast<u32>(block));
    begin = block;
    ++spans;
  }
  store_shared_4(shared.span_count(), static_cast<u32>(spans - 1));
}
/// Chunks, or blocks of keys, of a span, and the first of them.
template <Config kConfig>
__forceinline__ int span_begin(const Shared<kConfig>& shared, int span, bool keys) {
  return static_cast<int>(load_shared_4(shared.span(span) + 4 * keys));
}
template <Config kConfig>
__forceinline__ int span_size(const Shared<kConfig>& shared, int span, bool keys) {
  return span_begin<kConfig>(shared, span + 1, keys) - span_begin<kConfig>(shared, span, keys);
}
/// Chunks of a query head, blocks of a key head: with those that are none where nobody counts them.
template <Config kConfig>
__forceinline__ int all_chunks(const Args& args, const Shared<kConfig>& shared) {
  if constexpr (kPacked<kConfig> && !kConfig.large_dim()) {
    const KeptLengths of = kept_lengths<kConfig>(args, shared);
    if (of.cu_q.rows != 0) return first_block(of.cu_q, of.sequences + 1, kConfig.shape.chunk_rows);
  }
  return args.rows_q / kConfig.shape.chunk_rows;
}
template <Config kConfig>
__forceinline__ int all_blocks(const Args& args, const Shared<kConfig>& shared) {
  if constexpr (kPacked<kConfig> && !kConfig.large_dim()) {
    const KeptLengths of = kept_lengths<kConfig>(args, shared);
    if (of.cu_k.rows != 0) return first_block(of.cu_k, of.sequences + 1, kConfig.shape.block_n);
  }
  return args.order.blocks;
}

/// Fills in the sequence and the lengths of a job or tile, which names the block of `rows` rows, of
/// keys (`by_keys`) or of queries, that all packed sequences have or that its batch entry has.
/// False: the block is none of the sequence's.
template <Lengths kLengths, class From, class Piece>
__forceinline__ bool look_up(const From& of, Piece& piece, bool by_keys, int rows) {
  if constexpr (kLengths == Lengths::keys) {
    piece.seq_k = min(max(of.key_lengths[piece.batch * of.key_lengths_b], 0), of.k_rows);
    return true;
  } else {
    const auto& offsets = by_keys ? of.cu_k : of.cu_q;
    const int place = last_not_after(offsets, of.sequences, piece.block, rows);
    const int b = sequence_at(offsets, place);
    piece.batch = b;
    piece.block -= first_block(offsets, place, rows);
    // Neither sees the other: keys behind the last sequence, queries behind it.
    const bool behind = b == of.sequences;
    piece.q_begin = offset_at(of.cu_q, b);
    piece.k_begin = offset_at(of.cu_k, b);
    const int q_end = !behind ? offset_at(of.cu_q, b + 1) : by_keys ? piece.q_begin : of.q_rows;
    const int k_end = !behind ? offset_at(of.cu_k, b + 1) : by_keys ? of.k_rows : piece.k_begin;
    piece.seq_q = min(max(q_end - piece.q_begin, 0), of.q_rows);
    piece.seq_k = min(max(k_end - piece.k_begin, 0), of.k_rows);
    return piece.block >= 0 && piece.block * rows < (by_keys ? piece.seq_k : piece.seq_q);
  }
}

}  // namespace tilewise::bwd_sm90
