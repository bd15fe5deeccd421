/// bwd_sm90: the producer as a warp, for lists whose blocks are half of a tile. A step is one
/// consumer's 64 keys there, and lasts about as long as one thread takes to walk the list, to look
/// up which half is listed and to copy six boxes. Here each lane copies one of them, and what the
/// list says of a step has been asked for a step ahead.
#pragma once

#include "cuda/kernels/bwd_sm90/list_producer.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// All of a position in a ring.
template <int kSlots>
__forceinline__ u32& word_of(Position<kSlots>& position) {
  return position.word;
}
__forceinline__ u32& word_of(Position<2>& position) { return position.uses; }

/// What lane 0 has.
__forceinline__ u32 of_first_lane(u32 x) {
  return static_cast<u32>(__shfl_sync(~0U, static_cast<int>(x), 0));
}

template <Config kConfig>
struct PassingProducer {
  static_assert(kConfig.passes && !kConfig.tells_placed() && kConfig.shape.k_stages == 1);
  static constexpr int kM = kConfig.shape.block_m;
  static constexpr int kPanels = Producer<kConfig>::kPanels, kPanelsV = Producer<kConfig>::kPanelsV;
  /// Lanes: the panels of Q, its offsets, the panels of dO, its delta.
  static constexpr int kFirstO = kPanels + 1, kCopies = kPanels + kPanelsV + 2;

  /// A block of queries of a head of the group.
  struct Step {
    int g = 0, block = 0;
    u32 bits = 0;  ///< of its row of blocks the word that has the tile's
  };

  ListProducer<kConfig> one;  ///< what a thread alone does; its rings are those of all lanes
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ListWalk<> walk;
  int nth = 0,
      left = 0;  ///< parts of the tile's lists begun, a part being cut or whole; of it left

  __forceinline__ const TileLists& of_keys() const {
    return listed<kConfig>(one.producer.args).of_keys;
  }
  /// The next step of the tile, of which there must be one. What a mask cuts, of all heads of the
  /// group, comes before what is seen whole.
  __forceinline__ Step next_step(const Job& job) {
    const int group = one.producer.args.group;
    int g = nth > group ? nth - group - 1 : nth - 1;
    while (left == 0) {
      const bool whole = nth >= group;
      g = whole ? nth - group : nth;
      walk.find(of_keys(), one.list_of(job, g), job.block);
      left = whole ? walk.whole : walk.cut;
      if (whole) walk.pass_over_cut();
      ++nth;
    }
    --left;
    const int block = walk.next();
    return {g, block, *one.word_of_halves(job, g, block)};
  }

  /// Everything that a step takes, an operand's panel or row of numbers a lane.
  __forceinline__ void load_step(const Job& job, const Step& at) {
    Producer<kConfig>& p = one.producer;
    const bool is_o = lane >= kFirstO;
    const int panel = is_o ? lane - kFirstO : lane;
    const u32 s = is_o ? p.rO.slot() : p.rQ.slot();
    const u32 full = is_o ? p.shared.do_full(s) : p.shared.q_full(s);
    if (lane == 0) {
      const u32 q = p.rQ.slot(), d_o = p.rO.slot();
      mbarrier_wait(p.shared.q_empty(q), p.rQ.parity() ^ 1);
      mbarrier_wait(p.shared.do_empty(d_o), p.rO.parity() ^ 1);
      store_shared_4(p.shared.listed(q), static_cast<u32>(at.block));
      store_shared_4(p.shared.listed(q) + 4, static_cast<u32>(at.g));
      store_shared_4(p.shared.listed(q) + 8, one.halves_of(job, at.bits));
      mbarrier_expect(p.shared.q_full(q),
                      kPanels * kM * kPanelRowBytes + Producer<kConfig>::offset_bytes());
      mbarrier_expect(p.shared.do_full(d_o), Producer<kConfig>::kPlan.do_stage + kM * 4);
    }
    __syncwarp();  // the places are free, and the bytes are expected before they arrive
    const int head = job.head * p.args.group + at.g, row = at.block * kM;
    if (panel == (is_o ? kPanelsV : kPanels) && lane < kCopies) {
      bulk_load(is_o ? p.shared.delta(s) : p.shared.offset(s),
                (is_o ? p.args.delta : p.args.offset) + p.row_offset(job, head, row), kM * 4, full);
    } else if (lane < kCopies) {
      load_queries<kConfig>(p.args, is_o ? p.args.d_o : p.args.q,
                            (is_o ? p.shared.d_o(s) : p.shared.q(s)) + panel * kM * kPanelRowBytes,
                            full, panel * kPanelColumns, job, head, row);
    }
    p.rQ.advance();
    p.rO.advance();
  }

  /// Lane 0 gives back the next job's index.
  __forceinline__ u32 load_tile(const Job& job) {
    Producer<kConfig>& p = one.producer;
    if (one.steps == 0) return lane == 0 ? p.ask() : 0;
    if (lane == 0) p.await_prepared(job);
    __syncwarp();
    fence_async();  // what others stored before the signal, to our copies
    nth = left = 0;
    u32 next = 0;
    Step at = next_step(job);
    for (int step = 0; step < one.steps; ++step) {
      const bool last = step == one.steps - 1;
      Step after;
      if (!last) after = next_step(job);
      load_step(job, at);
      if (step == 0 && lane == 0) {
        p.load_k(job);
        p.load_v(job);
      }
      // Not earlier: a tile must not be held while another block could take it.
      if (last && lane == 0) next = p.ask();
      at = after;
    }
    return next;
  }
  /// Jobs whose rows come in order: one thread copies them, and the others learn where its rings
  /// are.
  __forceinline__ u32 load_rows(const Job& job) {
    Producer<kConfig>& p = one.producer;
    u32 next = 0;
    if (lane == 0) next = job.kind == JobKind::prepare ? p.load_prepare(job) : p.load_convert(job);
    __syncwarp();
    word_of(p.rQ) = of_first_lane(word_of(p.rQ));
    word_of(p.rO) = of_first_lane(word_of(p.rO));
    return next;
  }

  __forceinline__ void run() {
    Producer<kConfig>& p = one.producer;
    Queue<kConfig> queue{p.args, p.shared};
    u32 next = lane == 0 ? p.ask() : 0;
    bool has_lists = false;
    while (true) {
      Job job = queue.job(static_cast<int>(of_first_lane(next)));
      const bool tile = job.kind == JobKind::tile;
      if constexpr (kConfig.ragged()) {
        const int rows = tile ? kConfig.shape.block_n : kConfig.shape.chunk_rows;
        if (job.kind != JobKind::end && !look_up<kConfig.lengths>(p.lengths(), job, tile, rows)) {
          if (lane == 0) p.pass_over(job);
          next = lane == 0 ? p.ask() : 0;
          continue;
        }
      }
      if (tile) {
        // Rows are prepared while the lists are still being made. Those who compute read lists
        // behind the announcement.
        if (!has_lists) wait_for_previous();
        has_lists = true;
        one.count_steps(job);
      }
      if (lane == 0) one.announce(job);
      __syncwarp();
      if (job.kind == JobKind::end) break;
      next = tile ? load_tile(job) : load_rows(job);
    }
  }
};

}  // namespace tilewise::bwd_sm90
