/// bwd_short_sm90: what the roles share: addresses in shared memory, barriers, jobs and their
/// passes.
#pragma once

#include "cuda/kernels/bwd_short_sm90/args.h"
#include "cuda/kernels/bwd_sm90/lengths.cuh"
#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/hopper/order.cuh"
#include "cuda/tile/hopper/packed_sequence.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;
using bwd_sm90::keys_of;
using bwd_sm90::kPacked;
using bwd_sm90::queries_of;

inline constexpr int kConsumerWarps = 8, kStatisticsWarps = 3;

/// Addresses of what SharedPlan lays out. "full": the copies have landed, or the statistics are
/// there; "empty": the readers are done.
template <Config kConfig>
struct Shared {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr u32 kStages = kConfig.stages, kStagesV = kConfig.stages_v;
  u32 base;

  // Rows that a pass keeps, 64 of a warpgroup: of K or Q; of V or dO.
  __forceinline__ u32 kept(u32 buffer, int warpgroup) const {
    return base + buffer * kPlan.kept + warpgroup * kPlan.columns;
  }
  __forceinline__ u32 kept_v(u32 buffer, int warpgroup) const {
    return base + buffer * kPlan.kept + 2 * kPlan.columns + warpgroup * kPlan.columns_v;
  }
  // Rows that pass by: of Q or K; of dO or V.
  __forceinline__ u32 stage(u32 index) const { return base + kPlan.stages + index * kPlan.stage; }
  __forceinline__ u32 stage_v(u32 index) const {
    if constexpr (kConfig.halves()) return base + kPlan.stages_v + index * kPlan.columns_v;
    return stage(index) + kPlan.columns;
  }
  // What query rows have: -LSE log2 e, rowsum(dO O) - dLSE.
  __forceinline__ u32 offset(u32 buffer) const {
    return base + kPlan.statistics + buffer * (2 * kPlan.known);
  }
  __forceinline__ u32 delta(u32 buffer) const { return offset(buffer) + kPlan.known; }
  __forceinline__ u32 barrier(u32 index) const {
    return base + kPlan.barriers + index * kMbarrierBytes;
  }
  __forceinline__ u32 stage_full(u32 index) const { return barrier(index); }
  __forceinline__ u32 stage_empty(u32 index) const { return barrier(kStages + index); }
  __forceinline__ u32 kept_full(u32 buffer) const { return barrier(2 * kStages + buffer); }
  __forceinline__ u32 kept_empty(u32 buffer) const { return barrier(2 * kStages + 2 + buffer); }
  __forceinline__ u32 job_full(u32 slot) const { return barrier(2 * kStages + 4 + slot); }
  __forceinline__ u32 job_empty(u32 slot) const { return barrier(2 * kStages + 6 + slot); }
  __forceinline__ u32 known(u32 buffer) const { return barrier(2 * kStages + 8 + buffer); }
  __forceinline__ u32 known_empty(u32 buffer) const { return barrier(2 * kStages + 10 + buffer); }
  // Halves: dO, V.
  __forceinline__ u32 full_v(u32 index) const { return barrier(2 * kStages + 12 + index); }
  __forceinline__ u32 empty_v(u32 index) const {
    return barrier(2 * kStages + 12 + kStagesV + index);
  }
  __forceinline__ u32 slot(u32 index) const {
    return base + kPlan.slots + index * SharedPlan::kSlot;
  }

  /// Packed: the sequence at a place in the order.
  __forceinline__ u32 order(int place) const { return base + kPlan.order + 4 * place; }

  /// Shares: whether a warpgroup is the last of its group.
  __forceinline__ u32 last(int warpgroup) const { return base + kPlan.order + 4 * warpgroup; }

  __forceinline__ void init_barriers() const {
    // Every warp arrives for itself: one warp's wait does not prove that the others have read.
    for (u32 s = 0; s < kStages; ++s) {
      mbarrier_init(stage_full(s), 1);
      mbarrier_init(stage_empty(s), kConsumerWarps);
    }
    for (u32 s = 0; s < kStagesV; ++s) {
      mbarrier_init(full_v(s), 1);
      mbarrier_init(empty_v(s), kConsumerWarps);
    }
    for (u32 s = 0; s < 2; ++s) {
      mbarrier_init(kept_full(s), 1);
      mbarrier_init(kept_empty(s), kConsumerWarps);
      mbarrier_init(job_full(s), 1);
      mbarrier_init(job_empty(s), kConsumerWarps + kStatisticsWarps);
      mbarrier_init(known(s), kStatisticsWarps + (kConfig.helped ? kConsumerWarps : 0));
      mbarrier_init(known_empty(s), kConsumerWarps);
    }
    mbarrier_fence_init();
  }
};

/// What a job holds: all passes of a key head and its query heads, or (cut) one pass.
enum class JobKind : int { all, queries, keys, end };

/// `batch`: entry, or packed sequence; `head`: of keys; `pass`: the one of a cut job. Lengths, and
/// where the sequence begins in the packed tensors, only where Args does not say.
struct Job {
  JobKind kind = JobKind::end;
  int pass = 0, batch = 0, head = 0;
  int seq_q = 0, seq_k = 0, q_begin = 0, k_begin = 0;
};

/// The head that K and V are of.
template <Config kConfig>
__forceinline__ int key_head(const Args& args, const Job& job) {
  return kConfig.shares ? job.head / args.sharers : job.head;
}

/// Half-open range of passes.
struct Passes {
  int begin, end;
};
/// Over queries: those of a head of the group after those of another.
template <Config kConfig>
__forceinline__ int query_passes_of_head(const Args& args, const Job& job) {
  return (queries_of<kConfig>(args, job) + kBlock - 1) / kBlock;
}
template <Config kConfig>
__forceinline__ Passes query_passes(const Args& args, const Job& job) {
  if (job.kind == JobKind::queries) return {job.pass, job.pass + 1};
  if (job.kind == JobKind::keys) return {0, 0};
  return {0, args.group * query_passes_of_head<kConfig>(args, job)};
}
template <Config kConfig>
__forceinline__ Passes key_passes(const Args& args, const Job& job) {
  if (job.kind == JobKind::keys) return {job.pass, job.pass + 1};
  if (job.kind == JobKind::queries) return {0, 0};
  return {0, (keys_of<kConfig>(args, job) + kBlock - 1) / kBlock};
}

/// Packed: rows behind the last sequence, whose queries and keys do not see each other.
template <Config kConfig>
__forceinline__ bool lies_behind(const Args& args, const Job& job) {
  return kPacked<kConfig> && job.batch == args.batch;
}

/// Blocks of 64 query rows of a job that have statistics: of `heads` heads from `head` of the group
/// on, of each those from `first` on.
struct Known {
  int head, heads, first, blocks;
  /// Row of the statistics where a head's block of 64 rows begins.
  __forceinline__ int row_of(int of_head, int block) const {
    return ((of_head - head) * blocks + block - first) * kRows;
  }
};
template <Config kConfig>
__forceinline__ Known known_of(const Args& args, const Job& job) {
  const int blocks = (queries_of<kConfig>(args, job) + kRows - 1) / kRows;
  if (kConfig.cut && job.kind == JobKind::queries) {
    const int of_head = query_passes_of_head<kConfig>(args, job);
    return {job.pass / of_head, 1, job.pass % of_head * 2, 2};
  }
  return {0, args.group, 0, blocks};
}

template <Config kConfig>
__forceinline__ Diagonals diagonals(const Args& args, const Job& job) {
  const int shift = kPacked<kConfig> ? job.seq_k - job.seq_q : 0;
  Diagonals d = mask_diagonals<kConfig.mask>(args.low + shift, args.high + shift);
  if constexpr (kPacked<kConfig> && kConfig.mask != Mask::none) d.high = min(d.high, args.top);
  return d;
}
/// A top-left diagonal left of the window, which depends on the lengths: nobody sees a key.
template <Config kConfig>
__forceinline__ bool sees_nothing(const Args& args, const Job& job, const Diagonals& d) {
  return lies_behind<kConfig>(args, job) || (kConfig.mask == Mask::both && d.high <= d.low);
}

/// Blocks of 64 keys that queries query .. query+rows-1 see; "full" are those without a hidden
/// pair.
template <Config kConfig>
__forceinline__ BlockRange key_range(const Args& args, const Job& job, int query, int rows) {
  BlockRange range;
  const int seq_q = queries_of<kConfig>(args, job), seq_k = keys_of<kConfig>(args, job);
  const Diagonals d = diagonals<kConfig>(args, job);
  if (query >= seq_q || sees_nothing<kConfig>(args, job, d)) return range;
  if constexpr (kConfig.mask == Mask::none) {
    range.end = (seq_k + kRows - 1) / kRows;
    range.full_end = seq_k / kRows;
  } else {
    range = key_blocks<kRows>(d, query, min(query + rows, seq_q), seq_k);
  }
  return range;
}
/// Blocks of 64 queries that see keys key .. key+rows-1. What lies past an end needs no mask:
/// queries there have no P, and keys there are not stored.
template <Config kConfig>
__forceinline__ BlockRange query_range(const Args& args, const Job& job, int key, int rows) {
  BlockRange range;
  const int seq_q = queries_of<kConfig>(args, job), seq_k = keys_of<kConfig>(args, job);
  const Diagonals d = diagonals<kConfig>(args, job);
  if (key >= seq_k || sees_nothing<kConfig>(args, job, d)) return range;
  if constexpr (kConfig.mask == Mask::none) {
    range.end = range.full_end = (seq_q + kRows - 1) / kRows;
  } else {
    range = query_blocks<kRows>(d, key, min(key + rows, seq_k), seq_q);
    if (kConfig.mask == Mask::right) range.full_end = range.end;
  }
  return range;
}

/// Coordinates beside the column of row `row` of `rows` that begin at `begin`, in a map of all
/// `n` rows. No box may lie wholly behind a sequence: its last row stands for it.
__forceinline__ void packed_row(int (&c)[4], int head, int n, int rows, int begin, int row) {
  c[0] = head;
  c[1] = n - rows + min(row, rows - 1);
  c[2] = rows + begin;
  c[3] = 0;
}
template <Config kConfig>
__forceinline__ void query_row(int (&c)[4], const Args& args, const Job& job, int head, int row) {
  packed_row(c, head, args.q_rows, job.seq_q, job.q_begin, row);
}
template <Config kConfig>
__forceinline__ void key_row(int (&c)[4], const Args& args, const Job& job, int row) {
  packed_row(c, job.head, args.k_rows, job.seq_k, job.k_begin, row);
}

/// All threads of a block, before it begins: up to kMostSorted packed sequences come in the order
/// of their sizes, so that what is left at the end is short.
template <Config kConfig>
__forceinline__ void order_sequences(const Args& args, const Shared<kConfig>& shared) {
  if (args.batch > kMostSorted) return;
  const u32 sizes = shared.offset(0);  // nobody has statistics yet
  for (int i = static_cast<int>(threadIdx.x); i < args.batch; i += kThreads) {
    const int queries = offset_at(args.cu_q, i + 1) - offset_at(args.cu_q, i);
    const int keys = offset_at(args.cu_k, i + 1) - offset_at(args.cu_k, i);
    const float size = static_cast<float>(queries) * static_cast<float>(keys);
    store_shared_4(sizes + 4 * i, static_cast<u32>(__float_as_int(size)));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < args.batch; i += kThreads) {
    const float own = load_shared_f32(sizes + 4 * i);
    int place = 0;
#pragma unroll 1
    for (int other = 0; other < args.batch; ++other) {
      const float size = load_shared_f32(sizes + 4 * other);
      if (size > own || (size == own && other < i)) ++place;
    }
    store_shared_4(shared.order(place), static_cast<u32>(i));
  }
}

/// A role's way through the announced jobs.
template <Config kConfig>
struct Announced {
  Ring<2> slots;

  /// One warp: the next job.
  __forceinline__ Job fetch(const Shared<kConfig>& shared, int lane) {
    mbarrier_wait(shared.job_full(slots.slot), slots.parity);
    const u32 at = shared.slot(slots.slot);
    const Bytes16 what = load_shared_16(at), lengths = load_shared_16(at + 16);
    __syncwarp();  // all lanes have read the slot
    if (lane == 0) mbarrier_arrive(shared.job_empty(slots.slot));
    slots.advance();
    return {static_cast<JobKind>(what.x), static_cast<int>(what.y),    static_cast<int>(what.z),
            static_cast<int>(what.w),     static_cast<int>(lengths.x), static_cast<int>(lengths.y),
            static_cast<int>(lengths.z),  static_cast<int>(lengths.w)};
  }
};

}  // namespace tilewise::bwd_short_sm90
