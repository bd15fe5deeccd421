/// bwd_sm90: the producer, one thread: takes jobs from the queue, announces them, and copies what a
/// tile needs.
#pragma once

#include "cuda/kernels/bwd_sm90/boxes.cuh"
#include "cuda/kernels/bwd_sm90/sequences.cuh"
#include "cuda/tile/hopper/signal.cuh"
#include "cuda/tile/hopper/tma.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// The queue's order. Step t: prepare section t; tiles of section t - lead; convert section
/// t - lead - lag, and where tiles are cut the keys that it is the last to add to. With enough
/// tiles between them nobody waits, and the rows are still in the L2 cache.
template <Config kConfig>
struct Queue {
  const Args& args;
  const Shared<kConfig>& shared;
  int step = 0, base = 0;  ///< base: index of the first job of the step

  __forceinline__ int head_begin(int section) const {
    const SectionOrder& order = args.order;
    const int first = min(section, order.sections);
    return min(first * order.section_heads + (section - first) * order.last_heads, order.heads);
  }
  __forceinline__ int heads(int section) const {
    return section < 0 ? 0 : head_begin(section + 1) - head_begin(section);
  }

  /// Key heads whose last sharer is in a section.
  __forceinline__ int keys_of(int section) const {
    if (!kConfig.sums.split || section < 0) return 0;
    return head_begin(section + 1) / args.sharers - head_begin(section) / args.sharers;
  }

  /// Job `index`; indices come in rising order.
  __forceinline__ Job job(int index) {
    Job job;
    if (index >= all_jobs()) return job;
    if constexpr (kConfig.spans) {
      find_in_spans(job, index);
      return job;
    }
    const int blocks = all_blocks<kConfig>(args, shared);
    const int chunks = all_chunks<kConfig>(args, shared) * args.group;  // of a key head
    while (true) {
      const int section = step - args.lead, here = heads(section);
      const int parts = kConfig.sums.split ? args.parts : 1;
      const int prepares = heads(step) * chunks, tiles = here * blocks * parts;
      const int converted = section - args.lag;
      const int converts = kConfig.large_dim() ? 0 : heads(converted) * chunks;
      const int keys = keys_of(converted) * blocks;
      const int rest = index - base;
      if (rest < prepares) {
        job.kind = JobKind::prepare;
        locate_rows(job, rest, step);
        return job;
      }
      if (rest < prepares + tiles) {
        const int in = rest - prepares;
        job.kind = JobKind::tile;
        job.part = in / here % parts;
        job.block = in / here / parts;
        if (args.last_first) job.block = blocks - 1 - job.block;
        locate(job, head_begin(section) + in % here, args.heads_k);
        return job;
      }
      if (rest < prepares + tiles + converts) {
        job.kind = JobKind::convert;
        locate_rows(job, rest - prepares - tiles, converted);
        return job;
      }
      if (kConfig.sums.split && rest < prepares + tiles + converts + keys) {
        const int in = rest - prepares - tiles - converts, here = keys_of(converted);
        job.kind = JobKind::keys;
        job.block = in / here;
        locate(job, head_begin(converted) / args.sharers + in % here, args.heads_k / args.sharers);
        return job;
      }
      base += prepares + tiles + converts + keys;
      ++step;
    }
  }

 private:
  /// Spans: a section is one of one key head, all heads of a span before the next one. Their
  /// blocks come the longest first, so that the whole does too.
  struct Section {
    int span = 0, head = 0, begin = 0, size = 0;
  };
  __forceinline__ Section section_at(int index, bool keys) const {
    Section s;
    const int count = static_cast<int>(load_shared_4(shared.span_count()));
    if (index < 0 || index >= count * args.heads_k) return s;
    s.span = index / args.heads_k;
    s.head = index - s.span * args.heads_k;
    s.begin = span_begin<kConfig>(shared, s.span, keys);
    s.size = span_size<kConfig>(shared, s.span, keys) * (keys ? 1 : args.group);
    return s;
  }
  __forceinline__ void find_in_spans(Job& job, int index) {
    while (true) {
      int rest = index - base;
      Section at = section_at(step, false);
      job.kind = JobKind::prepare;
      if (rest >= at.size) {
        rest -= at.size;
        at = section_at(step - args.lead, true);
        job.kind = JobKind::tile;
      }
      if (job.kind == JobKind::tile && rest >= at.size) {
        rest -= at.size;
        at = section_at(step - args.lead - args.lag, false);
        job.kind = JobKind::convert;
      }
      if (rest < at.size) {
        job.part = at.span;
        job.head = at.head;
        if (job.kind == JobKind::tile) {
          job.block = at.begin + (args.last_first ? at.size - 1 - rest : rest);
        } else {
          job.block = at.begin + rest / args.group;
          job.head = at.head * args.group + rest % args.group;
        }
        return;
      }
      base = index - rest + at.size;
      ++step;
    }
  }

  __forceinline__ int all_jobs() const {
    if constexpr (!kPacked<kConfig> || kConfig.large_dim()) return args.jobs;
    return args.order.heads *
           (2 * all_chunks<kConfig>(args, shared) * args.group + all_blocks<kConfig>(args, shared));
  }
  __forceinline__ void locate(Job& job, int bh, int heads) const {
    job.batch = bh / heads;
    job.head = bh - job.batch * heads;
  }
  __forceinline__ void locate_rows(Job& job, int rest, int section) const {
    const int here = heads(section) * args.group;
    job.block = rest / here;
    locate(job, head_begin(section) * args.group + rest % here, args.heads_q);
  }
};

/// A position in a ring, in one register: the producer has few.
template <int kSlots>
struct Position {
  u32 word = 0;  ///< slot, then parity
  __forceinline__ u32 slot() const { return word & 0xffU; }
  __forceinline__ u32 parity() const { return word >> 8; }
  __forceinline__ void advance() {
    ++word;
    if (slot() == kSlots) word = (word & 0x100U) ^ 0x100U;
  }
};
template <>
struct Position<2> {
  u32 uses = 0;
  __forceinline__ u32 slot() const { return uses & 1; }
  __forceinline__ u32 parity() const { return uses >> 1 & 1; }
  __forceinline__ void advance() { ++uses; }
};

/// What the producer holds of the options: nothing where it copies none.
template <bool kAny>
struct CopiedOptions {};
template <>
struct CopiedOptions<true> {
  const Options* options = nullptr;
};

template <Config kConfig>
struct Producer {
  static constexpr int kM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kPanels = SharedPlan::panels(kConfig.head_dim);
  static constexpr int kPanelsV = SharedPlan::panels(kConfig.head_dim_v);
  static constexpr SharedPlan kPlan{kConfig};
  const Args& args;
  const Shared<kConfig> shared;
  Position<kConfig.shape.q_stages> rQ;
  Position<kConfig.shape.do_stages> rO;
  Position<2> slots;
  u32 tiles = 0;  ///< whose K and V have been asked for
  CopiedOptions<kConfig.options.bias()> copied;

  __forceinline__ void announce(const Job& job) {
    mbarrier_wait(shared.job_empty(slots.slot()), slots.parity() ^ 1);
    const u32 at = shared.slot(slots.slot());
    store_shared_4(at, static_cast<u32>(job.kind) | static_cast<u32>(job.part) << 8);
    store_shared_4(at + 4, static_cast<u32>(job.block));
    store_shared_4(at + 8, static_cast<u32>(job.batch));
    store_shared_4(at + 12, static_cast<u32>(job.head));
    if constexpr (kConfig.ragged()) {
      store_shared_4(at + 16, static_cast<u32>(job.seq_q));
      store_shared_4(at + 20, static_cast<u32>(job.seq_k));
      store_shared_4(at + 24, static_cast<u32>(job.q_begin));
      store_shared_4(at + 28, static_cast<u32>(job.k_begin));
    }
    mbarrier_arrive(shared.job_full(slots.slot()));  // releases the stores to the consumers
    slots.advance();
  }

  /// One box of rows for each panel of `map` to a stage.
  __forceinline__ void load_rows(u32 stage, const TensorMapBytes& map, int panels, u32 full,
                                 const Job& job, int head, int row) const {
    for (int p = 0; p < panels; ++p) {
      load_queries<kConfig>(args, map, stage + p * kM * kPanelRowBytes, full, p * kPanelColumns,
                            job, head, row);
    }
  }
  /// The next stage of a ring, once it is empty; `bytes` will arrive.
  __forceinline__ u32 open_q(u32 bytes) {
    const u32 slot = rQ.slot();
    mbarrier_wait(shared.q_empty(slot), rQ.parity() ^ 1);
    mbarrier_expect(shared.q_full(slot), bytes);
    rQ.advance();
    return slot;
  }
  __forceinline__ u32 open_do(u32 bytes) {
    const u32 slot = rO.slot();
    mbarrier_wait(shared.do_empty(slot), rO.parity() ^ 1);
    mbarrier_expect(shared.do_full(slot), bytes);
    rO.advance();
    return slot;
  }
  __forceinline__ i64 row_offset(const Job& job, int head, int row) const {
    return static_cast<i64>(entry_of<kConfig>(job) * args.heads_q + head) * args.rows_q +
           kept_row<kConfig>(job) + row;
  }
  __forceinline__ int key_bh(const Job& job) const {
    return counted<kConfig>(args, job,
                            job.kind == JobKind::tile ? job.head : job.head / args.group);
  }

  /// Bytes of a bias beside a stage of Q.
  static constexpr int bias_bytes() {
    if (!kConfig.options.bias()) return 0;
    return 2 * (kConfig.options.pairs.staged ? kM : 1) * kPanelRowBytes;
  }
  /// The rows' offsets, and what rounding took from LSE.
  static constexpr int offset_bytes() { return kM * (kConfig.shifts() ? 8 : 4); }
  __forceinline__ void load_offsets(const Job& job, int head, int row, u32 s) const {
    const i64 at = row_offset(job, head, row);
    bulk_load(shared.offset(s), args.offset + at, kM * 4, shared.q_full(s));
    if constexpr (kConfig.shifts())
      bulk_load(shared.low(s), args.offset_low + at, kM * 4, shared.q_full(s));
  }
  __forceinline__ void load_bias(const Job& job, int head, int row, u32 s) const {
    if constexpr (kConfig.options.bias()) {
      const BiasTiles& of = copied.options->bias_tiles;
      for (int p = 0; p < 2; ++p) {
        tma_load(shared.bias(s) + p * kPlan.bias_panel, &of.map, shared.q_full(s),
                 job.block * kBlockN + p * kPanelColumns, of.by_head * head, of.by_query * row,
                 of.by_batch * job.batch, of.by_head != 0 ? kEvictFirst : kEvictNormal);
      }
    }
  }
  /// Rows of Q with their offsets.
  __forceinline__ void load_q(const Job& job, int head, int row) {
    const u32 s = open_q(kPanels * kM * kPanelRowBytes + offset_bytes() + bias_bytes());
    load_rows(shared.q(s), args.q, kPanels, shared.q_full(s), job, head, row);
    load_offsets(job, head, row, s);
    load_bias(job, head, row, s);
  }
  /// Rows of dO with their delta.
  __forceinline__ void load_do(const Job& job, int head, int row) {
    const u32 s = open_do(kPlan.do_stage + kM * 4);
    load_rows(shared.d_o(s), args.d_o, kPanelsV, shared.do_full(s), job, head, row);
    bulk_load(shared.delta(s), args.delta + row_offset(job, head, row), kM * 4, shared.do_full(s));
  }
  /// Rows of keys: panels to `place`, those of the half that goes to registers to where it lands.
  __forceinline__ void load_keys(const TensorMapBytes& map, int panels, u32 place, u32 full,
                                 const Job& job) const {
    constexpr int kPanel = kBlockN * kPanelRowBytes;
    const int lower = kConfig.half_registers() ? panels / 2 : panels;
    mbarrier_expect(full, panels * kPanel);
    for (int p = 0; p < panels; ++p) {
      const u32 to = p < lower ? place + p * kPanel : shared.landing() + (p - lower) * kPanel;
      bwd_sm90::load_keys<kConfig>(args, map, to, full, p * kPanelColumns, job);
    }
  }
  __forceinline__ void load_k(const Job& job) {
    const u32 s = tiles % kConfig.shape.k_stages;
    mbarrier_wait(shared.k_empty(s), tiles / kConfig.shape.k_stages & 1 ^ 1);
    // V's half of the tile before has gone from where this one lands.
    if constexpr (kConfig.half_registers()) mbarrier_wait(shared.landing_empty(), 1);
    load_keys(args.k, kPanels, shared.k(s), shared.k_full(s), job);
  }
  __forceinline__ void load_v(const Job& job) {
    mbarrier_wait(shared.v_empty(), tiles++ & 1 ^ 1);
    if constexpr (kConfig.half_registers()) mbarrier_wait(shared.landing_empty(), 0);
    load_keys(args.v, kPanelsV, shared.v(), shared.v_full(), job);
  }

  /// A job that is none of its sequence's is done: it counts for those who wait.
  __forceinline__ void pass_over(const Job& job) const {
    if (job.kind == JobKind::prepare) signal_add(args.prepared + key_bh(job), kConsumerWarps);
    if (!kConfig.large_dim() && job.kind == JobKind::tile)
      signal_add(args.finished + key_bh(job), kConfig.dq_warps());
  }

  __forceinline__ u32 ask() const { return atomicAdd(args.next_job, 1U); }

  /// Chunks, or blocks of keys, that are counted together with the job.
  __forceinline__ int chunks_beside(const Job& job) const {
    if constexpr (kConfig.spans) return span_size<kConfig>(shared, job.part, false);
    return all_chunks<kConfig>(args, shared);
  }
  __forceinline__ int blocks_beside(const Job& job) const {
    if constexpr (kConfig.spans) return span_size<kConfig>(shared, job.part, true);
    return all_blocks<kConfig>(args, shared);
  }

  /// All rows of the job's key head have been prepared.
  __forceinline__ void await_prepared(const Job& job) const {
    const u32 warps = static_cast<u32>(chunks_beside(job) * args.group * kConsumerWarps);
    signal_wait(args.prepared + key_bh(job), warps);
  }

  /// All parts of a tile have been added up.
  __forceinline__ void await_added(const Job& job) const {
    signal_wait(args.added + kept_tile<kConfig>(args, job, job.head),
                static_cast<u32>(args.sharers * args.parts * kConsumerWarps));
  }

  /// Where lengths and offsets are looked up.
  __forceinline__ decltype(auto) lengths() const {
    if constexpr (kPacked<kConfig> && !kConfig.large_dim()) {
      return kept_lengths<kConfig>(args, shared);
    } else {
      return ragged<kConfig>(args);
    }
  }

  // Each copies a job's rows and gives back the next job's index, asked for while copies are still
  // to come.

  __forceinline__ u32 load_tile(const Job& job) {
    const BlockRange range = query_range<kConfig>(args, job);
    if (range.begin >= range.end) {
      if constexpr (kConfig.large_dim()) open_q(0), open_do(0);  // whose places zeros will take
      return ask();
    }
    u32 next = 0;
    await_prepared(job);
    fence_async();  // what others stored before the signal, to our copies
    for (int g = 0; g < args.group; ++g) {
      const int head = job.head * args.group + g;
      for (int block = range.begin; block < range.end; ++block) {
        const bool first = g == 0 && block == range.begin;
        const bool last = g == args.group - 1 && block == range.end - 1;
        if (first && kConfig.shape.k_stages > 1)
          load_k(job);  // there is room for it before the next Q's
        load_q(job, head, block * kM);
        if (first && kConfig.shape.k_stages == 1) load_k(job);
        if (first && !kConfig.half_registers()) load_v(job);
        // Not earlier: a tile must not be held while another block could take it.
        if (last) next = ask();
        load_do(job, head, block * kM);
        // V lands where half of K has been taken from: not in the way of the first Q and dO.
        if (first && kConfig.half_registers()) load_v(job);
      }
    }
    return next;
  }
  __forceinline__ u32 load_prepare(const Job& job) {
    const u32 next = ask();
    for (int row = 0; row < rows_of_chunk<kConfig>(job); row += kM) {
      const int at = job.block * kConfig.shape.chunk_rows + row;
      const u32 q = open_q(kPlan.do_stage);
      load_rows(shared.q(q), args.o, kPanelsV, shared.q_full(q), job, job.head, at);
      const u32 d = open_do(kPlan.do_stage);
      load_rows(shared.d_o(d), args.d_o, kPanelsV, shared.do_full(d), job, job.head, at);
    }
    return next;
  }
  __forceinline__ u32 load_convert(const Job& job) {
    const u32 next = ask();
    // NOTE: where no tile sees anything none has waited for it; the sums may not be zero yet.
    if constexpr (kConfig.ragged() || kConfig.listed()) await_prepared(job);
    const int tiles = blocks_beside(job) * (kConfig.sums.split ? args.parts : 1);
    signal_wait(args.finished + key_bh(job), static_cast<u32>(tiles * kConfig.dq_warps()));
    fence_async();
    const float* sums =
        args.dq_sum +
        row_offset(job, job.head, job.block * kConfig.shape.chunk_rows) * kConfig.columns_dq();
    for (int piece = 0; piece < Piece<kConfig>::kCount; ++piece) {
      const bool second = Piece<kConfig>::in_do(piece);
      const u32 s = second ? open_do(Piece<kConfig>::kBytes) : open_q(Piece<kConfig>::kBytes);
      bulk_load(second ? shared.d_o(s) : shared.q(s), sums + piece * (Piece<kConfig>::kBytes / 4),
                Piece<kConfig>::kBytes, second ? shared.do_full(s) : shared.q_full(s));
    }
    return next;
  }

  __forceinline__ void run() {
    tma_prefetch_map(&args.q);
    tma_prefetch_map(&args.k);
    tma_prefetch_map(&args.v);
    tma_prefetch_map(&args.o);
    tma_prefetch_map(&args.d_o);
    tma_prefetch_map(&args.dq);
    tma_prefetch_map(&args.dk);
    tma_prefetch_map(&args.dv);
    Queue<kConfig> queue{args, shared};
    u32 index = ask();
    while (true) {
      Job job = queue.job(static_cast<int>(index));
      if constexpr (kConfig.ragged()) {
        const bool tile = job.kind == JobKind::tile || job.kind == JobKind::keys;
        const int rows = tile ? kBlockN : kConfig.shape.chunk_rows;
        if (job.kind != JobKind::end && !look_up<kConfig.lengths>(lengths(), job, tile, rows)) {
          pass_over(job);
          index = ask();
          continue;
        }
      }
      if (kConfig.sums.split && job.kind == JobKind::keys) {
        // Nothing is copied here, so that the announcement says that the sums are complete.
        await_added(job);
        announce(job);
        index = ask();
        continue;
      }
      announce(job);
      if (job.kind == JobKind::tile) {
        index = load_tile(job);
      } else if (job.kind == JobKind::prepare) {
        index = load_prepare(job);
      } else if (!kConfig.large_dim() && job.kind == JobKind::convert) {
        index = load_convert(job);
      } else {
        break;
      }
    }
  }
};

}  // namespace tilewise::bwd_sm90
