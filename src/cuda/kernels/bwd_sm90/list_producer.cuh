/// bwd_sm90: the producer of a problem with a block list, which says which blocks of queries see a
/// tile of keys. A unit without a list does not know of it.
#pragma once

#include "cuda/kernels/bwd_sm90/producer.cuh"
#include "cuda/tile/lists.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct ListProducer {
  static constexpr int kM = kConfig.shape.block_m, kPanels = Producer<kConfig>::kPanels;

  using Walk = ListWalk<kConfig.tells_placed()>;

  Producer<kConfig> producer;
  int steps = 0, cut = 0;  ///< blocks of queries of a tile, and those of them that a mask cuts

  __forceinline__ int list_of(const Job& job, int g) const {
    const TileLists& of = listed<kConfig>(producer.args).of_keys;
    return job.batch * of.list_b + (job.head * producer.args.group + g) * of.list_h;
  }
  /// How many blocks of queries of all heads of the group see the tile's keys.
  __forceinline__ void count_steps(const Job& job) {
    steps = cut = 0;
    if constexpr (kPacked<kConfig>) {
      if (job.batch == ragged<kConfig>(producer.args).sequences) return;  // behind the last one
    }
    const TileLists& of = listed<kConfig>(producer.args).of_keys;
    for (int g = 0; g < producer.args.group; ++g) {
      const int* counts = of.counts + 2 * (static_cast<i64>(list_of(job, g)) * of.rows + job.block);
      steps += counts[0] + counts[1];
      cut += counts[1];
    }
  }
  __forceinline__ void announce(const Job& job) {
    mbarrier_wait(producer.shared.job_empty(producer.slots.slot()), producer.slots.parity() ^ 1);
    const u32 at = producer.shared.slot(producer.slots.slot());
    store_shared_4(at, static_cast<u32>(job.kind));
    store_shared_4(at + 4, static_cast<u32>(job.block));
    store_shared_4(at + 8, static_cast<u32>(job.batch));
    store_shared_4(at + 12, static_cast<u32>(job.head));
    if constexpr (kConfig.ragged()) {
      store_shared_4(at + 16, static_cast<u32>(job.seq_q));
      store_shared_4(at + 20, static_cast<u32>(job.seq_k));
      store_shared_4(at + 24, static_cast<u32>(job.q_begin));
      store_shared_4(at + 28, static_cast<u32>(job.k_begin));
    }
    const u32 counts = at + Shared<kConfig>::kSlotBytes - 16;
    store_shared_4(counts, static_cast<u32>(steps));
    store_shared_4(counts + 4, static_cast<u32>(cut));
    mbarrier_arrive(
        producer.shared.job_full(producer.slots.slot()));  // releases the stores to the consumers
    producer.slots.advance();
  }
  /// A bit for each half of the tile's keys that a block of queries lists.
  __forceinline__ u32 halves(const Job& job, int g, int block) const {
    const TileLists& of = listed<kConfig>(producer.args).of_keys;
    const int first = job.block * kConfig.shape.block_n;
    const i64 row =
        static_cast<i64>(list_of(job, g)) * of.query_blocks + (block * kM >> of.shift_q);
    // The blocks of a tile have their bits in one word.
    const u32 bits = of.listed[row * of.block_words + (first >> of.shift_k) / 32];
    const auto bit = [&](int key) { return bits >> ((key >> of.shift_k) % 32) & 1U; };
    return bit(first) | bit(first + kConfig.shape.block_n / 2) << 1;
  }
  /// Rows of Q with their offsets, and which they are. `placed`: position and lengths alone cut
  /// their tile.
  __forceinline__ void load_q(const Job& job, int g, int block, [[maybe_unused]] bool placed) {
    // Asked for before the wait.
    u32 of_keys = 0;
    if constexpr (kConfig.passes) of_keys = halves(job, g, block);
    const u32 s = producer.rQ.slot();
    const int head = job.head * producer.args.group + g, row = block * kM;
    mbarrier_wait(producer.shared.q_empty(s), producer.rQ.parity() ^ 1);
    store_shared_4(producer.shared.listed(s), static_cast<u32>(block));
    store_shared_4(producer.shared.listed(s) + 4, static_cast<u32>(g));
    if constexpr (kConfig.passes) store_shared_4(producer.shared.listed(s) + 8, of_keys);
    if constexpr (kConfig.tells_placed())
      store_shared_4(producer.shared.listed(s) + 12, placed ? 1 : 0);
    mbarrier_expect(producer.shared.q_full(s),
                    kPanels * kM * kPanelRowBytes + Producer<kConfig>::offset_bytes());
    producer.rQ.advance();
    producer.load_rows(producer.shared.q(s), producer.args.q, kPanels, producer.shared.q_full(s),
                       job, head, row);
    producer.load_offsets(job, head, row, s);
  }
  /// First what a mask cuts, of all heads of the group, then what is seen whole.
  __forceinline__ u32 load_tile(const Job& job) {
    if (steps == 0) return producer.ask();
    u32 next = 0;
    producer.await_prepared(job);
    fence_async();  // what others stored before the signal, to our copies
    Walk walk;
    int step = 0;
    for (int n = 0; n < 2 * producer.args.group; ++n) {
      const bool whole = n >= producer.args.group;
      const int g = whole ? n - producer.args.group : n;
      walk.find(listed<kConfig>(producer.args).of_keys, list_of(job, g), job.block);
      int left = whole ? walk.whole : walk.cut;
      if (whole) walk.pass_over_cut();
      for (; left > 0; --left, ++step) {
        const int named = walk.next(), block = Walk::number(named);
        if (step == 0 && kConfig.shape.k_stages > 1) producer.load_k(job);
        load_q(job, g, block, Walk::is_placed(named));
        if (step == 0 && kConfig.shape.k_stages == 1) producer.load_k(job);
        if (step == 0) producer.load_v(job);
        // Not earlier: a tile must not be held while another block could take it.
        if (step == steps - 1) next = producer.ask();
        producer.load_do(job, job.head * producer.args.group + g, block * kM);
      }
    }
    return next;
  }

  __forceinline__ void run() {
    Queue<kConfig> queue{producer.args, producer.shared};
    u32 index = producer.ask();
    bool has_lists = false;
    while (true) {
      Job job = queue.job(static_cast<int>(index));
      if constexpr (kConfig.ragged()) {
        const bool tile = job.kind == JobKind::tile;
        const int rows = tile ? kConfig.shape.block_n : kConfig.shape.chunk_rows;
        if (job.kind != JobKind::end &&
            !look_up<kConfig.lengths>(producer.lengths(), job, tile, rows)) {
          producer.pass_over(job);
          index = producer.ask();
          continue;
        }
      }
      if (job.kind == JobKind::tile) {
        // Rows are prepared while the lists are still being made. Those who compute read lists
        // behind the announcement.
        if (!has_lists) wait_for_previous();
        has_lists = true;
        count_steps(job);
      }
      announce(job);
      if (job.kind == JobKind::tile) {
        index = load_tile(job);
      } else if (job.kind == JobKind::prepare) {
        index = producer.load_prepare(job);
      } else if (job.kind == JobKind::convert) {
        index = producer.load_convert(job);
      } else {
        break;
      }
    }
  }
};

}  // namespace tilewise::bwd_sm90
