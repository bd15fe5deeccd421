/// bwd_sm90: a consumer whose 64 keys not every block of queries of the tile lists. It passes over
/// those that do not, and the other one works on them alone: the two drift apart as far as stages
/// and buffers of dS let them.
#pragma once

#include "cuda/kernels/bwd_sm90/steps.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Whether the block of queries in the stage at hand, once it has come, lists the consumer's keys.
/// Uniform.
template <Config kConfig>
__forceinline__ bool Consumer<kConfig>::is_mine() const {
  const Worker<kConfig>& worker = scores.worker;
  worker.wait_q();
  const u32 halves = load_shared_4(worker.shared.listed(worker.rQ.slot) + 8);
  return __any_sync(~0U, (halves >> worker.warpgroup & 1) != 0);
}
/// Says of which block of queries, whose stage is at hand, the next buffer of dS is, and of which
/// keys there will be dS.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::announce_ds() {
  Worker<kConfig>& worker = scores.worker;
  if (worker.warpgroup != 0 || worker.thread != 0) return;
  const u32 from = worker.shared.listed(worker.rQ.slot), to = worker.shared.ds_of(buffers.slot);
  const int head = worker.job.head * worker.args.group + static_cast<int>(load_shared_4(from + 4));
  const int bh = entry_of<kConfig>(worker.job) * worker.args.heads_q + head;
  store_shared_4(to, static_cast<u32>(bh));
  store_shared_4(to + 4, load_shared_4(from));
  store_shared_4(to + 8, load_shared_4(from + 8));
}
/// A block that does not list the consumer's keys: what is to be said of it, and nothing else.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::pass_over() {
  Worker<kConfig>& worker = scores.worker;
  worker.wait_do();
  hide_rows();  // the other one may wait there
  await_buffer();
  announce_ds();
  __syncwarp();  // all lanes have read
  worker.release(worker.shared.ds_full(buffers.slot));
  buffers.advance();
  worker.release(worker.shared.q_empty(worker.rQ.slot));
  worker.release(worker.shared.do_empty(worker.rO.slot));
  worker.rQ.advance();
  worker.rO.advance();
}
/// What was staged of the job before has been read: its place is dS's again. Further on one
/// consumer might wait here for the other, which waits for its dS.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::await_staged() {
  Worker<kConfig>& worker = scores.worker;
  if (worker.lane == 0) bulk_wait_read();
  if (worker.converted == 0) {
    worker.sync_warpgroup();
  } else {
    worker.sync_consumers();
  }
}
/// The blocks of queries of a tile, `steps` of them. One is done before the next is looked at: S
/// beside dK, as in keys_step(), would be one more place of their products, and registers for both
/// are not there (C7512).
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::run_passing(int steps) {
  Worker<kConfig>& worker = scores.worker;
  worker.await_producer(worker.shared.k_full(worker.rK.slot), worker.rK.parity);
  worker.signal_done();
  await_staged();
  mbarrier_wait(worker.shared.v_full(), worker.v_parity());
#pragma unroll 1
  for (int n = 0; n < steps; ++n) {
    if (!is_mine()) {
      pass_over();
      continue;
    }
    scores.template take_listed<false>();
    scores.enter_block(scores.block);
    scores.issue_scores();
    wgmma_wait<0>();
    pin(scores.rS);
    scores.template probabilities<true>();
    worker.wait_do();
    hide_rows();
    issue_dp();
    issue_dv(scores.rP);
    wgmma_wait<0>();
    pin(rGradS);
    pin(rDv);
    score_gradients();
    await_buffer();
    announce_ds();
    store_ds(rdS);
    buffers.advance();
    worker.release(worker.shared.do_empty(worker.rO.slot));
    worker.rO.advance();
    issue_dk(worker.rQ.slot, rdS);
    wgmma_wait<0>();
    pin(rDk);
    pin(rdS);
    worker.release(worker.shared.q_empty(worker.rQ.slot));
    worker.rQ.advance();
  }
  worker.release(worker.shared.v_empty());
  worker.release(worker.shared.k_empty(worker.rK.slot));
  next_k();
}

}  // namespace tilewise::bwd_sm90
