/// bwd_short_sm90: the producer, one thread: hands out jobs and copies what their passes keep and
/// what passes by.
#pragma once

#include "cuda/kernels/bwd_short_sm90/shared.cuh"
#include "cuda/tile/hopper/tile_counter.cuh"
#include "cuda/tile/hopper/tma.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;

template <Config kConfig>
struct Producer {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kPanels = SharedPlan::panels(kConfig.head_dim);
  static constexpr int kPanelsV = SharedPlan::panels(kConfig.head_dim_v);
  const Args& args;
  const Shared<kConfig> shared;
  Ring<kConfig.stages> stages;
  Ring<kConfig.halves() ? kConfig.stages_v : 1> stages_v;
  Ring<kConfig.kept> kept;
  Ring<2> slots;
  Job job;

  __forceinline__ void locate(int bh) {
    job.batch = bh / args.heads_k;
    job.head = bh - job.batch * args.heads_k;
  }
  /// Cut: passes over keys come first, which are the longer ones where heads are grouped; of both
  /// those first that a causal mask leaves long.
  __forceinline__ void take(int index) {
    job = {};
    if constexpr (kConfig.cut) {
      const int pairs = args.batch * args.heads_k;
      const int of_keys = (args.seq_k + kBlock - 1) / kBlock;
      const int of_head = (args.seq_q + kBlock - 1) / kBlock;
      job.kind = index < pairs * of_keys ? JobKind::keys : JobKind::queries;
      if (job.kind == JobKind::queries) index -= pairs * of_keys;
      locate(index % pairs);
      job.pass = index / pairs;
      if (job.kind == JobKind::queries) {
        const int block = job.pass / args.group, head = job.pass % args.group;
        job.pass = head * of_head + of_head - 1 - block;
      }
    } else {
      job.kind = JobKind::all;
      locate(index);
    }
    if constexpr (kPacked<kConfig>) look_up();
  }
  /// The rows behind the last sequence are one more.
  __forceinline__ void look_up() {
    if (job.batch < args.batch && args.batch <= kMostSorted)
      job.batch = static_cast<int>(load_shared_4(shared.order(job.batch)));
    const int b = job.batch;
    job.q_begin = offset_at(args.cu_q, b);
    job.k_begin = offset_at(args.cu_k, b);
    const bool behind = b == args.batch;
    const int q_end = behind ? args.q_rows : offset_at(args.cu_q, b + 1);
    const int k_end = behind ? args.k_rows : offset_at(args.cu_k, b + 1);
    job.seq_q = max(q_end - job.q_begin, 0);
    job.seq_k = max(k_end - job.k_begin, 0);
    // Statistics have room for the longest sequence that the caller named.
    if (!behind) job.seq_q = min(job.seq_q, args.seq_q);
  }
  __forceinline__ void announce() {
    mbarrier_wait(shared.job_empty(slots.slot), slots.parity ^ 1);
    const u32 at = shared.slot(slots.slot);
    store_shared_4(at, static_cast<u32>(job.kind));
    store_shared_4(at + 4, static_cast<u32>(job.pass));
    store_shared_4(at + 8, static_cast<u32>(job.batch));
    store_shared_4(at + 12, static_cast<u32>(job.head));
    store_shared_4(at + 16, static_cast<u32>(job.seq_q));
    store_shared_4(at + 20, static_cast<u32>(job.seq_k));
    store_shared_4(at + 24, static_cast<u32>(job.q_begin));
    store_shared_4(at + 28, static_cast<u32>(job.k_begin));
    mbarrier_arrive(shared.job_full(slots.slot));  // releases the stores
    slots.advance();
  }

  /// 64 rows: a box for each panel.
  template <bool kKeys>
  __forceinline__ void load(u32 to, const TensorMapBytes& map, int panels, u32 full, int head,
                            int row) const {
    int at[4] = {};
    if constexpr (kPacked<kConfig>) {
      if constexpr (kKeys) {
        key_row<kConfig>(at, args, job, row);
      } else {
        query_row<kConfig>(at, args, job, head, row);
      }
    }
#pragma unroll 1
    for (int p = 0; p < panels; ++p) {
      const u32 place = to + p * SharedPlan::kPanel;
      if constexpr (kPacked<kConfig>) {
        tma_load_5d(place, &map, full, p * kPanelColumns, at, kEvictLast);
      } else {
        tma_load(place, &map, full, p * kPanelColumns, head, row, job.batch, kEvictLast);
      }
    }
  }
  /// A pass's own 128 rows.
  template <bool kKeys>
  __forceinline__ void keep(const TensorMapBytes& first, const TensorMapBytes& second, int head,
                            int row) {
    const u32 full = shared.kept_full(kept.slot);
    mbarrier_wait(shared.kept_empty(kept.slot), kept.parity ^ 1);
    mbarrier_expect(full, kPlan.kept);
#pragma unroll 1
    for (int w = 0; w < 2; ++w) {
      load<kKeys>(shared.kept(kept.slot, w), first, kPanels, full, head, row + w * kRows);
      load<kKeys>(shared.kept_v(kept.slot, w), second, kPanelsV, full, head, row + w * kRows);
    }
    kept.advance();
  }
  /// The other side's rows, 64 at a time.
  template <bool kKeys>
  __forceinline__ void pass_by(const TensorMapBytes& first, const TensorMapBytes& second, int head,
                               const BlockRange& range) {
#pragma unroll 1
    for (int block = range.begin; block < range.end; ++block) {
      u32 full = shared.stage_full(stages.slot);
      mbarrier_wait(shared.stage_empty(stages.slot), stages.parity ^ 1);
      mbarrier_expect(full, kPlan.stage);
      load<kKeys>(shared.stage(stages.slot), first, kPanels, full, head, block * kRows);
      u32 slot_v = stages.slot;
      if constexpr (kConfig.halves()) {
        slot_v = stages_v.slot;
        full = shared.full_v(slot_v);
        mbarrier_wait(shared.empty_v(slot_v), stages_v.parity ^ 1);
        mbarrier_expect(full, kPlan.columns_v);
        stages_v.advance();
      }
      load<kKeys>(shared.stage_v(slot_v), second, kPanelsV, full, head, block * kRows);
      stages.advance();
    }
  }

  __forceinline__ void load_job() {
    const Passes queries = query_passes<kConfig>(args, job), keys = key_passes<kConfig>(args, job);
    const int of_head = query_passes_of_head<kConfig>(args, job);
#pragma unroll 1
    for (int pass = queries.begin; pass < queries.end; ++pass) {
      const int head = job.head * args.group + pass / of_head, row = pass % of_head * kBlock;
      keep<false>(args.q, args.d_o, head, row);
      const BlockRange range = key_range<kConfig>(args, job, row, kBlock);
#pragma unroll 1
      for (int sweep = 0; sweep < (kConfig.refined ? 2 : 1); ++sweep)
        pass_by<true>(args.k, args.v, key_head<kConfig>(args, job), range);
    }
#pragma unroll 1
    for (int pass = keys.begin; pass < keys.end; ++pass) {
      keep<true>(args.k, args.v, key_head<kConfig>(args, job), pass * kBlock);
      const BlockRange range = query_range<kConfig>(args, job, pass * kBlock, kBlock);
#pragma unroll 1
      for (int g = 0; g < args.group; ++g)
        pass_by<false>(args.q, args.d_o, job.head * args.group + g, range);
    }
  }

  __forceinline__ void run() {
    tma_prefetch_map(&args.q);
    tma_prefetch_map(&args.d_o);
    tma_prefetch_map(&args.k);
    tma_prefetch_map(&args.v);
    tma_prefetch_map(&args.dq);
    tma_prefetch_map(&args.dk);
    tma_prefetch_map(&args.dv);
    const bool asks = args.jobs > static_cast<int>(gridDim.x);
    if (asks) claim(args.counter);
    u64 asked = asks ? ask(args.counter) : 0;
    int index = static_cast<int>(blockIdx.x);
    take(index);
    announce();
    Job now = job;
    while (now.kind != JobKind::end) {
      // The next job is announced before this one's copies: its statistics take a while.
      index = asks ? answer(args.counter, asked, args.jobs) : args.jobs;
      job = {};
      if (index < args.jobs) {
        take(index);
        if (asks) asked = ask(args.counter);
      }
      announce();
      const Job next = job;
      job = now;
      load_job();
      now = next;
    }
  }
};

}  // namespace tilewise::bwd_short_sm90
