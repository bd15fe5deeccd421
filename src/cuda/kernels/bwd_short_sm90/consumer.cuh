/// bwd_short_sm90: the consumers, two warpgroups: the passes of each job.
#pragma once

#include "cuda/kernels/bwd_short_sm90/key_pass.cuh"
#include "cuda/kernels/bwd_short_sm90/query_pass.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer {
  Worker<kConfig> worker;

  __forceinline__ Consumer(const Args& args, u32 shared_base, int group)
      : worker(args, shared_base, group) {}

  __forceinline__ void run_job(u32 parity) {
    if constexpr (kConfig.helped) {
      // One job a block: who computes would wait for the statistics.
      mbarrier_wait(worker.shared.known_empty(worker.buffer), parity ^ 1);
      const Statistics<kConfig> statistics{worker.args, worker.shared};
      statistics.template fill<Statistics<kConfig>::kMany>(
          worker.job, worker.buffer, kStatisticsWarps + worker.warpgroup * 4 + worker.warp,
          kStatisticsWarps + kConsumerWarps, worker.lane);
      __syncwarp();  // the arrival of lane 0 is for the stores of all
      worker.release(worker.shared.known(worker.buffer));
    }
    mbarrier_wait(worker.shared.known(worker.buffer), parity);
    const Passes queries = query_passes<kConfig>(worker.args, worker.job),
                 keys = key_passes<kConfig>(worker.args, worker.job);
#pragma unroll 1
    for (int pass = queries.begin; pass < queries.end; ++pass) {
      QueryPass<kConfig> over(worker);
      over.run(pass);
    }
    if constexpr (kConfig.refined)
      worker.sync_consumers();  // delta of both warpgroups' rows is there
#pragma unroll 1
    for (int pass = keys.begin; pass < keys.end; ++pass) {
      KeyPass<kConfig> over(worker);
      over.run(pass);
    }
    __syncwarp();  // all lanes have read the statistics
    worker.release(worker.shared.known_empty(worker.buffer));
  }
  __forceinline__ void run() {
    while (true) {
      worker.buffer = worker.announced.slots.slot;
      const u32 parity = worker.announced.slots.parity;
      worker.job = worker.announced.fetch(worker.shared, worker.lane);
      if (worker.job.kind == JobKind::end) break;
      run_job(parity);
    }
    worker.settle();  // shared memory must outlive the copies out of it
  }
};

}  // namespace tilewise::bwd_short_sm90
