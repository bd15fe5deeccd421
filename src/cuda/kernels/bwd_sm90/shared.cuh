/// bwd_sm90: what the roles share: addresses in shared memory, barriers, jobs and ranges of
/// queries.
#pragma once

#include "cuda/kernels/bwd_sm90/args.h"
#include "cuda/kernels/bwd_sm90/lengths.cuh"
#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/hopper/order.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

inline constexpr int kConsumerWarps = 8;  ///< that compute

/// Addresses of what SharedPlan lays out. "full": the copies have landed; "empty": the readers are
/// done.
template <Config kConfig>
struct Shared {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kStages = kConfig.shape.q_stages, kStagesO = kConfig.shape.do_stages;
  static constexpr int kStagesK = kConfig.shape.k_stages;
  static constexpr int kSlotBytes = SharedPlan::slot_bytes(kConfig);
  static constexpr int kKeys = 2 * kStages + 2 * kStagesO;  ///< first barrier of keys
  static constexpr int kFirst = kKeys + 2 * kStagesK + 2;   ///< barrier that is not of copies
  u32 base;

  __forceinline__ u32 k(u32 stage) const { return base + kPlan.k + stage * kPlan.k_stage; }
  __forceinline__ u32 v() const { return base + kPlan.v; }
  __forceinline__ u32 q(u32 stage) const { return base + kPlan.q + stage * kPlan.q_stage; }
  __forceinline__ u32 d_o(u32 stage) const { return base + kPlan.d_o + stage * kPlan.do_stage; }
  __forceinline__ u32 p(u32 buffer) const { return base + kPlan.p + buffer * kPlan.ds_buffer; }
  __forceinline__ u32 ds(u32 buffer) const { return base + kPlan.ds + buffer * kPlan.ds_buffer; }
  __forceinline__ u32 dq(int warp) const { return base + kPlan.dq + warp * kPlan.dq_warp; }
  __forceinline__ u32 offset(u32 stage) const {
    return base + kPlan.offset + stage * (kConfig.shape.block_m * 4);
  }
  __forceinline__ u32 low(u32 stage) const {
    return base + kPlan.low + stage * (kConfig.shape.block_m * 4);
  }
  /// The bias beside a stage of Q: two panels of 64 keys.
  __forceinline__ u32 bias(u32 stage) const {
    return base + kPlan.bias + stage * (2 * kPlan.bias_panel);
  }
  __forceinline__ u32 delta(u32 stage) const {
    return base + kPlan.delta + stage * (kConfig.shape.block_m * 4);
  }
  __forceinline__ u32 barrier(u32 index) const {
    return base + kPlan.barriers + index * kMbarrierBytes;
  }
  __forceinline__ u32 q_full(u32 stage) const { return barrier(stage); }
  __forceinline__ u32 q_empty(u32 stage) const { return barrier(kStages + stage); }
  __forceinline__ u32 do_full(u32 stage) const { return barrier(2 * kStages + stage); }
  __forceinline__ u32 do_empty(u32 stage) const { return barrier(2 * kStages + kStagesO + stage); }
  __forceinline__ u32 v_full() const { return barrier(kKeys); }
  __forceinline__ u32 v_empty() const { return barrier(kKeys + 1); }
  __forceinline__ u32 k_full(u32 stage) const { return barrier(kKeys + 2 + stage); }
  __forceinline__ u32 k_empty(u32 stage) const { return barrier(kKeys + 2 + kStagesK + stage); }
  __forceinline__ u32 ds_full(u32 buffer) const { return barrier(kFirst + buffer); }
  __forceinline__ u32 job_full(u32 slot) const { return barrier(kFirst + 2 + slot); }
  __forceinline__ u32 job_empty(u32 slot) const { return barrier(kFirst + 4 + slot); }
  // Wide: where the half of K, then of V, lands that goes to registers; it has gone there.
  __forceinline__ u32 landing() const { return base + kPlan.ds; }
  __forceinline__ u32 landing_empty() const { return barrier(kFirst); }
  // Wide: P has been left for the next warpgroup, has been taken.
  __forceinline__ u32 p_full(u32 buffer) const { return barrier(kFirst + 6 + buffer); }
  __forceinline__ u32 p_empty(u32 buffer) const { return barrier(kFirst + 8 + buffer); }
  // To head dim 128: dS has been used for dQ; all who compute have come.
  __forceinline__ u32 ds_empty(u32 buffer) const { return barrier(kFirst + 10 + buffer); }
  __forceinline__ u32 all_met() const { return barrier(kFirst + 12); }
  __forceinline__ u32 slot(u32 index) const { return base + kPlan.slots + index * kSlotBytes; }
  /// A list: which block of queries, and of which head of the group, a stage of Q holds; of which
  /// head of the batch and block dS in a buffer is. `passes`: then a bit for each half of the
  /// tile's keys that is listed.
  __forceinline__ u32 listed(u32 stage) const { return base + kPlan.listed + stage * 16; }
  __forceinline__ u32 ds_of(u32 buffer) const { return listed(kStages + buffer); }
  __forceinline__ u32 places() const { return base + kPlan.places; }
  /// The first chunk of a span, behind it its first block; how many there are.
  __forceinline__ u32 span(int index) const { return base + kPlan.spans + 8 * index; }
  __forceinline__ u32 span_count() const { return span(SharedPlan::kMostSpans + 1); }

  __forceinline__ void init_barriers() const {
    // Every consumer warp arrives for itself: one warp's wait does not prove that the others have
    // read.
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(q_full(s), 1);
      mbarrier_init(q_empty(s), kConsumerWarps);
    }
    for (int s = 0; s < kStagesO; ++s) {
      mbarrier_init(do_full(s), 1);
      mbarrier_init(do_empty(s), kConsumerWarps);
    }
    // Wide: V and K are released by the four warps that read them.
    constexpr int kKeysLeave = kConfig.large_dim() ? 4 : kConsumerWarps;
    constexpr int kWarps = kConfig.threads() / 32 - 4;  // but the producer's
    constexpr int kOfBias = kConfig.sums.bias ? 3 : 0;  // of BiasSums
    mbarrier_init(v_full(), 1);
    mbarrier_init(v_empty(), kKeysLeave);
    for (int s = 0; s < kStagesK; ++s) {
      mbarrier_init(k_full(s), 1);
      mbarrier_init(k_empty(s), kConfig.large_dim() ? kKeysLeave : kWarps);
    }
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(ds_full(s), kConfig.large_dim() ? 4 : kConsumerWarps);
      mbarrier_init(job_full(s), 1);
      mbarrier_init(job_empty(s), kWarps + kOfBias);
    }
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(p_full(s), 4);
      mbarrier_init(p_empty(s), 4);
      mbarrier_init(ds_empty(s), 4 + kOfBias);
    }
    mbarrier_init(all_met(), kWarps);
    mbarrier_fence_init();
  }
};

/// What the queue holds. Prepare: row statistics of a chunk of queries, zeros for its dQ. Tile: dK
/// and dV of a block of keys, and what it adds to dQ. Convert: the finished sums of a chunk to dQ.
/// Keys, where tiles are cut: those of a block of keys to dK and dV.
enum class JobKind : int { prepare, tile, convert, end, keys };

/// `block`: chunk of rows or block of keys; `head`: query head, of a tile key head (a sharer of
/// it), of keys key head. `part`: of a tile's queries; or the span. Packed: `batch` is the
/// sequence, `block` is of it. The lengths, and where the sequence begins in the packed tensors,
/// only where Args does not say. With a list `part` is how many of the blocks of queries that see a
/// tile a mask cuts: they come first.
struct Job {
  JobKind kind = JobKind::end;
  int block = 0, batch = 0, head = 0, part = 0;
  int seq_q = 0, seq_k = 0, q_begin = 0, k_begin = 0;
};

/// What the producer has announced in a slot.
template <Config kConfig>
__forceinline__ Job load_job(u32 slot) {
  const Bytes16 words = load_shared_16(slot);
  Job job = {static_cast<JobKind>(words.x & 0xffU), static_cast<int>(words.y),
             static_cast<int>(words.z), static_cast<int>(words.w), static_cast<int>(words.x >> 8)};
  if constexpr (kConfig.ragged()) {
    const Bytes16 lengths = load_shared_16(slot + 16);
    job.seq_q = static_cast<int>(lengths.x);
    job.seq_k = static_cast<int>(lengths.y);
    job.q_begin = static_cast<int>(lengths.z);
    job.k_begin = static_cast<int>(lengths.w);
  }
  return job;
}

/// The sums of dQ of a chunk come to be converted in pieces that fill a stage: of Q, where they fit
/// of dO in turn with it.
template <Config kConfig>
struct Piece {
  static constexpr int kBytes = kConfig.shape.block_m * kConfig.columns_dq() * 2;
  static constexpr int kCount = kConfig.shape.chunk_rows * kConfig.columns_dq() * 4 / kBytes;
  static_assert(kCount % 2 == 0);
  static constexpr bool in_do(int piece) {
    return SharedPlan(kConfig).do_stage >= kBytes && piece % 2 == 1;
  }
};

template <Config kConfig>
__forceinline__ const ListArgs& listed(const Args& args) {
  static_assert(kConfig.listed());
  return static_cast<const ListArgs&>(args);
}
template <Config kConfig>
__forceinline__ const DeviceLengths& ragged(const Args& args) {
  static_assert(kConfig.ragged());
  return static_cast<const RaggedArgs&>(args).of;
}
/// First row of a job's queries in what is kept for (bh, row): offset, delta, sums of dQ.
template <Config kConfig>
__forceinline__ int kept_row(const Job& job) {
  constexpr int kC = kConfig.shape.chunk_rows;
  return kPacked<kConfig> ? (job.q_begin / kC + job.batch) * kC : 0;
}
/// The key head that a tile is of.
template <Config kConfig>
__forceinline__ int key_head(const Args& args, const Job& job) {
  return kConfig.sums.split ? job.head / args.sharers : job.head;
}
/// Where a job is counted: by its key head, and by its span.
template <Config kConfig>
__forceinline__ int counted(const Args& args, const Job& job, int key_head) {
  const int bh = entry_of<kConfig>(job) * args.heads_k + key_head;
  return kConfig.spans ? bh * SharedPlan::kMostSpans + job.part : bh;
}
/// Where a block of a key head's keys is in what is summed and counted for cut tiles.
template <Config kConfig>
__forceinline__ int kept_tile(const Args& args, const Job& job, int head) {
  static_assert(!kConfig.sums.split || !kPacked<kConfig>);
  return (job.batch * (args.heads_k / args.sharers) + head) * args.order.blocks + job.block;
}
/// Rows of a chunk, which may be cut where its sequence ends: no box may begin behind that.
template <Config kConfig>
__forceinline__ int rows_of_chunk(const Job& job) {
  if constexpr (!kPacked<kConfig>) return kConfig.shape.chunk_rows;
  return min(kConfig.shape.chunk_rows, job.seq_q - job.block * kConfig.shape.chunk_rows);
}

template <Config kConfig>
__forceinline__ Diagonals diagonals(const Args& args, const Job& job) {
  const int shift = kConfig.ragged() ? job.seq_k - queries_of<kConfig>(args, job) : 0;
  Diagonals d = mask_diagonals<kConfig.mask>(args.low + shift, args.high + shift);
  if constexpr (kConfig.ragged() && kConfig.mask != Mask::none)
    d.high = min(d.high, ragged<kConfig>(args).top);
  return d;
}

/// Blocks of queries that see a tile's keys, of the tile's part; "full" are those without a hidden
/// pair, none where keys lie past the end.
template <Config kConfig>
__forceinline__ BlockRange query_range(const Args& args, const Job& job) {
  constexpr int kM = kConfig.shape.block_m, kN = kConfig.shape.block_n;
  const int seq_q = queries_of<kConfig>(args, job), seq_k = keys_of<kConfig>(args, job);
  const int key = job.block * kN, key_end = min(key + kN, seq_k);
  BlockRange range;
  if (kConfig.ragged() && key >= seq_k) return range;  // keys behind a length
  if constexpr (kConfig.mask == Mask::none) {
    range.end = range.full_end = (seq_q + kM - 1) / kM;
  } else {
    const Diagonals d = diagonals<kConfig>(args, job);
    // A top-left diagonal left of the window, which depends on the lengths: nobody sees a key, and
    // a fixed order of additions would wait for blocks that add nothing.
    if (kConfig.ragged() && kConfig.mask == Mask::both && d.high <= d.low) return range;
    range = query_blocks<kM>(d, key, key_end, seq_q);
    // Rows past the end see nothing by their LSE: the last block needs no mask for them.
    if (kConfig.mask == Mask::right) range.full_end = range.end;
  }
  if (key_end < key + kN) range.full_begin = range.full_end = range.end;
  if constexpr (kConfig.sums.split) {
    const int first = range.begin, count = range.end - first;
    const int end = first + count * (job.part + 1) / args.parts;
    range.clip(first + count * job.part / args.parts, end);
    // Known to be the same where it was: a loop less for those who compute.
    if constexpr (kConfig.mask != Mask::both) range.full_end = range.end;
  }
  return range;
}

}  // namespace tilewise::bwd_sm90
