/// bwd_sm90: the gradient of a bias with an element for each query and key: dS of every step, added
/// to float32 sums in memory by the three warps of the producer's warpgroup that copy nothing.
#pragma once

#include "cuda/kernels/bwd_sm90/worker.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

inline constexpr int kBiasWarps = 3;

template <Config kConfig>
struct BiasSums {
  static constexpr int kM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr Element kElement = kConfig.element;
  static_assert(kM == 64 && kBlockN == 128 && !kConfig.two_plane && !kConfig.large_dim());
  static_assert(!kConfig.ragged() || kConfig.lengths == Lengths::keys);
  static_assert(!kConfig.logits.softcap, "dS is not the bias's then");

  const Args& args;
  const Shared<kConfig> shared;
  const tile::BiasSums& to;
  const int warp, lane;  ///< of kBiasWarps
  Ring<2> slots, buffers;
  Job job;

  __forceinline__ BiasSums(const Args& a, u32 shared_base, const Options* options)
      : args(a),
        shared{shared_base},
        to(options->bias_sums),
        warp(static_cast<int>(threadIdx.x) / 32 - 1),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __forceinline__ void fetch_job() {
    mbarrier_wait(shared.job_full(slots.slot), slots.parity);
    job = load_job<kConfig>(shared.slot(slots.slot));
    __syncwarp();  // all lanes have read the slot
    if (lane == 0) mbarrier_arrive(shared.job_empty(slots.slot));
    slots.advance();
  }

  /// (B6) dbias takes dS of a block of queries, whose rows in shared memory are keys: fragments of
  /// 16 queries x 8 keys, as bwd_convert takes them.
  __forceinline__ void step(float* sums, int block) {
    mbarrier_wait(shared.ds_full(buffers.slot), buffers.parity);
    constexpr int kQueries = kM / 16, kItems = kQueries * kBlockN / 16;
#pragma unroll 1
    for (int item = warp; item < kItems; item += kBiasWarps) {
      const int queries = item % kQueries, keys = item / kQueries;
      const int key = keys * 16 + lane / 16 * 8 + lane % 8;
      const int chunk = (queries * 2 + lane / 8 % 2) ^ (key % 8);
      u32 words[4];
      load_matrix_trans_x4(words, shared.ds(buffers.slot) + key * kPanelRowBytes + chunk * 16);
      const int fragment =
          (block * kQueries + queries) * to.fragments + job.block * (kBlockN / 8) + keys * 2;
      float* const at = sums + static_cast<i64>(fragment) * 128 + lane * 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 upper = words[2 * half], lower = words[2 * half + 1];
        const float of[4] = {widen<kElement>(upper & 0xffffU), widen_high<kElement>(upper),
                             widen<kElement>(lower & 0xffffU), widen_high<kElement>(lower)};
        add_global_x4(at + half * 128, of);
      }
    }
    __syncwarp();  // all lanes have read dS
    if (lane == 0) mbarrier_arrive(shared.ds_empty(buffers.slot));
    buffers.advance();
  }

  __forceinline__ void run() {
    for (;;) {
      fetch_job();
      if (job.kind == JobKind::end) return;
      if (job.kind != JobKind::tile) continue;
      const BlockRange range = query_range<kConfig>(args, job);
      for (int g = 0; g < args.group; ++g) {
        const int head = job.head * args.group + g;
        float* const sums = to.sums + job.batch * to.stride_b + head * to.stride_h;
#pragma unroll 1
        for (int block = range.begin; block < range.end; ++block) step(sums, block);
      }
    }
  }
};

}  // namespace tilewise::bwd_sm90
