/// bwd_short_sm90: what is known of a query row beforehand: -LSE log2 e, and delta = rowsum(dO O) -
/// dLSE. Three warps work it out for the next job while others compute.
#pragma once

#include "cuda/kernels/bwd_short_sm90/shared.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;

template <Config kConfig>
struct Statistics {
  static constexpr Element kElement = kConfig.element;
  /// Eight lanes have a row, each 16 bytes of every 128.
  static constexpr int kParts = kConfig.refined ? 0 : SharedPlan::panels(kConfig.head_dim_v);
  /// As many copies as registers allow who has few, and who has many.
  static constexpr int kFew = kParts != 2 ? 4 : kConfig.fetches() ? 2 : 1, kMany = 4;

  const Args& args;
  const Shared<kConfig> shared;

  /// A row among the job's, and where it lies.
  struct Row {
    int head = 0, row = 0;
    bool given = false;
  };
  __forceinline__ Row row_at(const Job& job, const Known& known, int index) const {
    const int block = index / kRows, of_head = block / known.blocks;
    Row r;
    r.head = job.head * args.group + known.head + of_head;
    r.row = (known.first + block - of_head * known.blocks) * kRows + index % kRows;
    r.given = of_head < known.heads && r.row < queries_of<kConfig>(args, job);
    return r;
  }
  /// Entry of the batch, and the row in what the caller gave.
  __forceinline__ int entry(const Job& job) const { return kPacked<kConfig> ? 0 : job.batch; }
  __forceinline__ int given_row(const Job& job, int row) const {
    return kPacked<kConfig> ? job.q_begin + row : row;
  }
  __forceinline__ Bytes16 load(const Rows& rows, const Job& job, const Row& r, int column) const {
    if (!r.given || column >= args.head_dim_v) return {0, 0, 0, 0};
    const i64 at = entry(job) * rows.b + r.head * rows.h + given_row(job, r.row) * rows.s + column;
    return load_global_16(static_cast<const unsigned short*>(rows.data) + at);
  }
  /// A line of a row to the L2 cache.
  __forceinline__ void fetch(const Rows& rows, const Job& job, const Row& r, int column) const {
    if (!r.given || column >= args.head_dim_v) return;
    const i64 at = entry(job) * rows.b + r.head * rows.h + given_row(job, r.row) * rows.s + column;
    prefetch_line(static_cast<const unsigned short*>(rows.data) + at);
  }
  static __forceinline__ float product(Bytes16 x, Bytes16 y) {
    const u32 a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
    float sum = 0.0F;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sum += widen<kElement>(a[e] & 0xffffU) * widen<kElement>(b[e] & 0xffffU);
      sum += widen_high<kElement>(a[e]) * widen_high<kElement>(b[e]);
    }
    return sum;
  }
  /// A row with that sum, to shared memory. One that sees no key counts as one past the end.
  __forceinline__ void keep(const Job& job, u32 buffer, int index, const Row& r, float lse,
                            float sum) const {
    const bool sees = r.given && lse != -infinity();
    if (sees && args.d_lse != nullptr) {
      sum -= args.d_lse[entry(job) * args.d_lse_b + r.head * args.d_lse_h +
                        given_row(job, r.row) * args.d_lse_s];
    }
    store_shared_4(shared.offset(buffer) + 4 * index,
                   static_cast<u32>(__float_as_int(sees ? -kLog2e * lse : -infinity())));
    store_shared_4(shared.delta(buffer) + 4 * index,
                   static_cast<u32>(__float_as_int(sees ? sum : 0.0F)));
  }

  /// Warp `warp` of `warps`: every so many four of a job's rows, kAtOnce of them together.
  template <int kAtOnce>
  __forceinline__ void fill(const Job& job, u32 buffer, int warp, int warps, int lane) const {
    if (lies_behind<kConfig>(args, job)) return;
    const Known known = known_of<kConfig>(args, job);
    // Cut, of keys: the queries that see them.
    int begin = 0, end = known.blocks * kRows;
    if (kConfig.cut && job.kind == JobKind::keys) {
      const BlockRange seen = query_range<kConfig>(args, job, job.pass * kBlock, kBlock);
      begin = seen.begin * kRows, end = seen.end * kRows;
    }
    const int rows = known.heads * (end - begin);
    // Where few copies are under way at a time, they find their lines in the L2 cache.
    if constexpr (kConfig.fetches() && kParts > 1 && kAtOnce == kFew) {
#pragma unroll 1
      for (int n = warp * 8 + lane / 4; n < rows; n += warps * 8) {
        const Row r = row_at(job, known, index_of(n, begin, end, known));
        fetch(lane % 2 == 0 ? args.o_rows : args.d_o_rows, job, r, lane / 2 % 2 * 64);
      }
    }
#pragma unroll 1
    for (int first = warp * 4; first < rows; first += warps * 4 * kAtOnce) {
      Bytes16 o[kAtOnce][kParts + 1], d_o[kAtOnce][kParts + 1];
      float lse[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const Row r =
            row_at(job, known, index_of(first + 4 * n * warps + lane / 8, begin, end, known));
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          o[n][p] = load(args.o_rows, job, r, p * 64 + lane % 8 * 8);
          d_o[n][p] = load(args.d_o_rows, job, r, p * 64 + lane % 8 * 8);
        }
        lse[n] = -infinity();
        if (r.given) {
          lse[n] = args.lse[entry(job) * args.lse_b + r.head * args.lse_h +
                            given_row(job, r.row) * args.lse_s];
        }
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        float sum = 0.0F;
#pragma unroll
        for (int p = 0; p < kParts; ++p) sum += product(o[n][p], d_o[n][p]);
#pragma unroll
        for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
        const int at = first + 4 * n * warps + lane / 8;
        if (lane % 8 != 0 || at >= rows) continue;
        const int index = index_of(at, begin, end, known);
        keep(job, buffer, index, row_at(job, known, index), lse[n], sum);
      }
    }
  }
  /// The n-th of the rows from `begin` to `end` of each head.
  __forceinline__ int index_of(int n, int begin, int end, const Known& known) const {
    if constexpr (!kConfig.cut) return n;
    const int head = n / (end - begin);
    return head * known.blocks * kRows + begin + n - head * (end - begin);
  }

  /// The warps that do nothing else.
  __forceinline__ void run(int warp, int lane) {
    Announced<kConfig> announced;
    while (true) {
      const u32 buffer = announced.slots.slot, parity = announced.slots.parity;
      const Job job = announced.fetch(shared, lane);
      if (job.kind == JobKind::end) return;
      mbarrier_wait(shared.known_empty(buffer), parity ^ 1);
      fill<kFew>(job, buffer, warp, kStatisticsWarps + (kConfig.helped ? kConsumerWarps : 0), lane);
      __syncwarp();  // the arrival of lane 0 is for the stores of all
      if (lane == 0) mbarrier_arrive(shared.known(buffer));
    }
  }
};

}  // namespace tilewise::bwd_short_sm90
