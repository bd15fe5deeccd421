/// FlashAttention-2 forward (Dao 2023, Algorithm 1) on the CPU. Schedule, memory and numbers:
/// flash_fwd.md.
///
/// Per group of key heads: pack K^T panels and V rows as float32 (all workers), then one task per
/// block of kTaskRows query rows: for each block of keys, S = Q K^T, logits, online softmax, O += P
/// V.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/flash/flash.h"
#include "cpu/flash/score_steps.h"
#include "cpu/flash/tiles.h"
#include "cpu/flash/visible.h"
#include "cpu/micro/elements.h"
#include "plan/accounting.h"

namespace tilewise::cpu {
namespace {

constexpr int kTaskRows = 96;   // query rows of a task: a packed K or V block is used by this many
constexpr int kGroupRows = 24;  // rows whose strip of scores stays in the first-level cache
constexpr int kBlockKeys = 256;
constexpr int kKeyStep = 64;  // a group's keys begin at a multiple of it: whole panels of every set
// Rows of a query block of a list that has groups of its own; of shorter blocks one group has some.
constexpr int kLeastGroup = 12;
// Upper limits for the mean of P over all keys, relative to the first panel's maximum. The mean is
// near 1 if later scores resemble the first ones, and larger if the first panel shows only one key.
// With few keys rounding errors do not average out, so their limit is lower.
constexpr float kMostOfAKey = 16.0F;
constexpr float kMostOfFewKeys = 4.0F;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Padded sizes and the layout of the workspace.
struct Geometry {
  std::int64_t ld_q, ld_v;              ///< padded head dims of Q and of V
  std::int64_t keys;                    ///< longest key sequence, padded to panels
  std::int64_t k_elems, v_elems;        ///< packed K and V of one (sequence, key head)
  bool v_in_place;                      ///< V's rows are read where they lie
  std::int64_t pairs, pairs_at_a_time;  ///< (sequence, key head)
  Cuts tasks;                           ///< blocks of query rows of the longest sequence
  int lanes;
  int workers;

  Geometry(const Problem& p, const Micro& micro, int task_rows, int threads)
      : tasks(p.seq_q, task_rows, p.block_list.block_q, kTaskRows, 6) {
    lanes = micro.lanes;
    ld_q = p.head_dim;  // Q rows are only read element by element
    ld_v = round_up(p.head_dim_v, micro.lanes);
    keys = round_up(std::max<std::int64_t>(p.seq_k, 1), std::lcm(micro.panel_cols, kBlockKeys));
    k_elems = keys * p.head_dim;
    v_in_place = whole_vectors(p.v, micro) && !p.paged;
    v_elems = v_in_place ? 0 : keys * ld_v;
    pairs = p.batch * p.heads_k;
    workers = threads;
    pairs_at_a_time = cpu::pairs_at_a_time(p, tasks.count() * p.group(), threads);
  }
};

/// Scratch of one worker.
struct Scratch {
  float* q;      ///< kTaskRows x D, unless they are read where they lie
  float* o;      ///< kTaskRows x ld_v
  float* s;      ///< kGroupRows x kBlockKeys
  float* sums;   ///< kGroupRows x lanes: of a strip's P, where m is known ahead
  float* m;      ///< kTaskRows
  float* l;      ///< kTaskRows
  float* alpha;  ///< kTaskRows: rescale factors
  float* rows;   ///< kBlockKeys x max(D, ld_v): keys before they are packed

  static std::int64_t elems(const Problem& p, const Geometry& g) {
    const std::int64_t tiles =
        kTaskRows * (g.ld_q + g.ld_v + 3) + kGroupRows * (g.lanes + std::int64_t{kBlockKeys});
    return own_pages(tiles + kBlockKeys * std::max(p.head_dim, g.ld_v));
  }
};

std::vector<MemoryPart> workspace_items(const Problem& p, const Geometry& g) {
  using Role = MemoryItem::Role;
  return {
      memory_part("packed K", Role::workspace, DType::float32,
                  {g.pairs_at_a_time, g.keys, p.head_dim}),
      memory_part("packed V", Role::workspace, DType::float32,
                  {g.pairs_at_a_time, g.v_in_place ? 0 : g.keys, g.ld_v}),
      memory_part("workers' scratch", Role::workspace, DType::float32,
                  {g.workers, Scratch::elems(p, g)}),
  };
}

class Forward {
 public:
  Forward(const Problem& p, const Micro& micro, const Context& context)
      : p_(p),
        micro_(micro),
        geometry_(context.decided<Geometry>()),
        steps_(p),
        log2_(!steps_.elementwise() && std::isfinite(p.scale * std::numbers::log2e_v<float>)),
        executor_(context.executor) {
    WorkspaceCutter cut(context.workspace);
    const Geometry& g = geometry_;
    packed_k_ = cut.take<float>(g.pairs_at_a_time * g.k_elems);
    packed_v_ = cut.take<float>(g.pairs_at_a_time * g.v_elems);
    scratch_ = cut.take<float>(g.workers * Scratch::elems(p, g));
  }

  void run() {
    const Geometry& g = geometry_;
    run_forward(
        p_, executor_,
        {.pairs = g.pairs,
         .key_blocks = g.keys / kBlockKeys,
         .row_blocks = g.tasks.count(),
         .workers = g.workers,
         .pack = [&](auto pair, auto at, auto block,
                     int slot) { pack(pair, at, block, scratch(slot)); },
         .attend = [&](auto pair, auto at, auto head, auto block,
                       int slot) { attend(pair, at, head, g.tasks.at(block), scratch(slot)); }});
    clear_rows_past_the_end(p_);
  }

 private:
  Scratch scratch(int slot) const {
    const Geometry& g = geometry_;
    float* at = scratch_ + slot * Scratch::elems(p_, g);
    const auto take = [&](std::int64_t elems) { return std::exchange(at, at + elems); };
    return {.q = take(kTaskRows * g.ld_q),
            .o = take(kTaskRows * g.ld_v),
            .s = take(std::int64_t{kGroupRows} * kBlockKeys),
            .sums = take(std::int64_t{kGroupRows} * g.lanes),
            .m = take(kTaskRows),
            .l = take(kTaskRows),
            .alpha = take(kTaskRows),
            .rows = at};
  }

  /// Keys of one block of pair `pair` into slot `at` of the packed buffers.
  void pack(std::int64_t pair, std::int64_t at, std::int64_t block, const Scratch& scratch) const {
    const std::int64_t b = pair / p_.heads_k;
    const std::int64_t h = pair % p_.heads_k;
    const Sequence sequence = p_.sequence(b);
    const std::int64_t j0 = block * kBlockKeys;
    if (j0 >= sequence.k_length) return;  // never looked at
    const int count = static_cast<int>(std::min<std::int64_t>(kBlockKeys, sequence.k_length - j0));
    const int d = static_cast<int>(p_.head_dim);
    float* k = packed_k_ + at * geometry_.k_elems + j0 * d;
    if (p_.k.dtype == DType::float32 && p_.k.strides[3] == 1 && !p_.paged) {
      const auto* rows = static_cast<const float*>(p_.k.data);
      pack_transposed(micro_, count, d, rows + offset_of(p_.k, b, h, sequence.k_begin + j0),
                      p_.k.strides[2], k, k_factor());
    } else {
      load_keys(p_, p_.k, b, sequence, h, j0, count, d, scratch.rows, d);
      pack_transposed(micro_, count, d, scratch.rows, d, k, k_factor());
    }
    if (geometry_.v_in_place) return;
    const std::int64_t ld_v = geometry_.ld_v;
    float* v = packed_v_ + at * geometry_.v_elems + j0 * ld_v;
    load_keys(p_, p_.v, b, sequence, h, j0, count, static_cast<int>(p_.head_dim_v), v, ld_v);
  }

  /// Query rows of one head against all keys.
  void attend(std::int64_t pair, std::int64_t at, std::int64_t head, KeyRange query_rows,
              const Scratch& scratch) const {
    const std::int64_t b = pair / p_.heads_k;
    const std::int64_t h = pair % p_.heads_k * p_.group() + head;
    const Sequence sequence = p_.sequence(b);
    const std::int64_t i0 = query_rows.begin;
    if (i0 >= sequence.q_length) return;
    const int rows = static_cast<int>(std::min(query_rows.end, sequence.q_length) - i0);
    const float* q = dense_rows(p_.q, 1, b, h, sequence.q_begin + i0);
    if (q == nullptr) {
      load_rows(p_.q, b, h, sequence.q_begin + i0, rows, static_cast<int>(p_.head_dim), scratch.q,
                geometry_.ld_q);
      q = scratch.q;
    }
    const Task task{{sequence, b, h, i0, rows}, at, q};
    if (!log2_ || !attend_at_known_maxima(task, scratch)) attend_online(task, scratch);
    for (int r = 0; log2_ && r < rows; ++r) scratch.m[r] *= std::numbers::ln2_v<float>;
    finish_rows(p_, task.block, scratch.m, scratch.l, scratch.o, geometry_.ld_v);
  }

  /// Query rows of one head, slot `at` of the packed buffers, the rows of Q.
  struct Task {
    RowBlock block;
    std::int64_t at;
    const float* q;
  };

  /// A strip of scores: row r of the task first. `begun` when O of its rows is defined.
  struct Strip {
    TilePlace place;
    int r;
    Visibility seen;
    bool begun;
  };

  /// add(strip) for the strips of a task that some row sees. O of rows that see nothing becomes 0.
  template <class Add>
  void for_strips(const Task& task, const Scratch& scratch, const Add& add) const {
    const auto& [sequence, b, h, i0, rows] = task.block;
    bool begun[kTaskRows] = {};  // of a group: its first row's
    const std::int64_t end = p_.visible_keys(sequence, i0 + rows - 1).end;
    const QueryRows block{b, h, i0, rows};
    const auto block_of = [&](std::int64_t j) {
      return first_listed(p_, block, {j, end}) / kBlockKeys * kBlockKeys;
    };
    for (std::int64_t j0 = block_of(p_.visible_keys(sequence, i0).begin); j0 < end;
         j0 = block_of(j0 + kBlockKeys)) {
      for (int r = 0, count = 0; r < rows; r += count) {
        count = group_rows(i0 + r, rows - r);
        const KeyRange seen = seen_keys(sequence, i0 + r, count, j0);
        for (KeyRange run{0, seen.begin}; run.end < seen.end;) {
          run = next_listed(p_, {b, h, i0 + r, count}, {run.end, seen.end}, micro_.lanes);
          if (run.empty()) continue;
          const auto keys = static_cast<int>(run.end - run.begin);
          const TilePlace place{sequence, b, h, i0 + r, run.begin, count, keys, kBlockKeys};
          const Visibility visible = tile_visibility(p_, place);
          if (visible == Visibility::none) continue;
          add(Strip{place, r, visible, std::exchange(begun[r], true)});
        }
      }
    }
    for (int r = 0, count = 0; r < rows; r += count) {
      count = group_rows(i0 + r, rows - r);
      if (!begun[r]) std::fill_n(scratch.o + r * geometry_.ld_v, count * geometry_.ld_v, 0.0F);
    }
  }

  /// Rows of the next group: at most `left` of the task's rows, from row i on.
  int group_rows(std::int64_t i, int left) const {
    const std::int64_t block = p_.block_list.block_q;
    const int most = std::min(kGroupRows, left);
    if (block < kLeastGroup) return most;
    return static_cast<int>(std::min<std::int64_t>(most, block - i % block));
  }

  /// m of a row is the largest score of the first keys that it sees, and stays: scores become P in
  /// registers. False where that was too far below later scores: the task is to be done online.
  bool attend_at_known_maxima(const Task& task, const Scratch& scratch) const {
    const int rows = task.block.rows;
    std::fill_n(scratch.m, rows, kNothing);
    std::fill_n(scratch.l, rows, 0.0F);
    std::fill_n(scratch.sums, kGroupRows * geometry_.lanes, 0.0F);
    // A difference to m is rounded as a float32 of its size, and so relatively is P: at 64 and
    // more, to 2^-18.
    const auto keys = static_cast<float>(task.block.sequence.k_length);
    const float most = keys * std::clamp(keys / 16.0F, kMostOfFewKeys, kMostOfAKey);
    bool near = true;
    for_strips(task, scratch, [&](const Strip& strip) {
      if (!near) return;
      weigh(strip, task, scratch);
      const float* l = scratch.l + strip.r;
      near = std::all_of(l, l + strip.place.rows, [&](float sum) { return sum <= most; });
      steps_.drop(strip.place, scratch.s);
      add_values(strip, task, scratch);
    });
    return near && micro_.all_finite(rows * geometry_.ld_v, scratch.o);
  }

  void attend_online(const Task& task, const Scratch& scratch) const {
    std::fill_n(scratch.m, task.block.rows, kNothing);
    std::fill_n(scratch.l, task.block.rows, 0.0F);
    for_strips(task, scratch, [&](const Strip& strip) { step(strip, task, scratch); });
  }

  /// The keys of the block at j0 that some row of a group sees, from a whole panel on.
  KeyRange seen_keys(const Sequence& sequence, std::int64_t i0, int rows, std::int64_t j0) const {
    // Both ends of the visible range move to the right with i.
    const KeyRange first = p_.visible_keys(sequence, i0);
    const KeyRange last = p_.visible_keys(sequence, i0 + rows - 1);
    const std::int64_t begin = std::max(j0, first.begin / kKeyStep * kKeyStep);
    return {begin, std::min({j0 + kBlockKeys, last.end, sequence.k_length})};
  }

  /// V's rows from key j on, for all query rows of key head h_k; ld is their distance.
  const float* value_rows(const TilePlace& place, std::int64_t at, std::int64_t& ld) const {
    if (!geometry_.v_in_place) {
      ld = geometry_.ld_v;
      return packed_v_ + at * geometry_.v_elems + place.j0 * ld;
    }
    ld = p_.v.strides[2];
    return static_cast<const float*>(p_.v.data) +
           offset_of(p_.v, place.b, place.h / p_.group(), place.sequence.k_begin + place.j0);
  }

  /// Columns of s past the last key, up to a whole vector, are no keys.
  void hide_padding(const TilePlace& place, float* s) const {
    const std::int64_t padded = round_up(place.cols, micro_.lanes);
    for (std::int64_t row = 0; padded > place.cols && row < place.rows; ++row) {
      std::fill(s + row * kBlockKeys + place.cols, s + row * kBlockKeys + padded, kNothing);
    }
  }

  /// use(panel, k, s) for the panels of keys of a strip, of which the first may be a part.
  template <class Use>
  void for_panels(const TilePlace& place, const Task& task, float* s, const Use& use) const {
    const std::int64_t d = p_.head_dim;
    const int wide = micro_.panel_cols;
    auto skipped = static_cast<int>(place.j0 % wide);
    const float* k = packed_k_ + task.at * geometry_.k_elems + (place.j0 - skipped) * d;
    TilePlace panel = place;
    for (int n = 0; n < place.cols; n += panel.cols, k += d * wide, skipped = 0) {
      panel.j0 = place.j0 + n;
      panel.cols = std::min(wide - skipped, place.cols - n);
      use(panel, k + skipped, s + n);
    }
  }

  /// (F1) S = Q (scale K)^T of a panel, row r of the task first.
  PanelProduct scores(const TilePlace& panel, const Task& task, int r, const float* k,
                      float* s) const {
    const int cols = static_cast<int>(round_up(panel.cols, micro_.lanes));
    return {.rows = panel.rows,
            .cols = cols,
            .k = static_cast<int>(p_.head_dim),
            .a = task.q + r * geometry_.ld_q,
            .lda = geometry_.ld_q,
            .panel = k,
            .c = s,
            .ldc = kBlockKeys};
  }

  /// P of a strip and its sum, added to l; m first where it is not known. A strip is summed by
  /// itself: one sum over all keys would lose of 2^20 small P what a float32 cannot hold of each.
  void weigh(const Strip& strip, const Task& task, const Scratch& scratch) const {
    const auto& [place, r, seen, begun] = strip;
    float* m = scratch.m + r;
    bool known = std::find(m, m + place.rows, kNothing) == m + place.rows;
    for_panels(place, task, scratch.s, [&](const TilePlace& panel, const float* k, float* s) {
      const PanelProduct product = scores(panel, task, strip.r, k, s);
      const int cols = product.cols;
      const bool all = cols == panel.cols && (strip.seen == Visibility::all ||
                                              tile_visibility(p_, panel) == Visibility::all);
      if (all && known) return micro_.score_weights(product, m, scratch.sums);
      micro_.scores(product);
      if (!all) steps_.hide(panel, s);
      hide_padding(panel, s);
      if (!known) known = micro_.first_maxima(panel.rows, cols, s, kBlockKeys, m);
      micro_.weights(panel.rows, cols, s, kBlockKeys, m, scratch.sums);
    });
    micro_.take_sums(place.rows, scratch.sums, scratch.l + r);
  }

  /// O += P V, or O = P V.
  void add_values(const Strip& strip, const Task& task, const Scratch& scratch) const {
    const TilePlace& place = strip.place;
    const auto ld_v = geometry_.ld_v;
    std::int64_t v_row = 0;
    const float* v = value_rows(place, task.at, v_row);
    micro_.gemm(place.rows, static_cast<int>(ld_v), place.cols, scratch.s, kBlockKeys, 1, v, v_row,
                scratch.o + strip.r * ld_v, ld_v, strip.begun);
  }

  /// One block of keys for one group of rows, online.
  void step(const Strip& strip, const Task& task, const Scratch& scratch) const {
    const auto& [place, r, seen, begun] = strip;
    const auto ld_v = geometry_.ld_v;
    float* s = scratch.s;
    float* o = scratch.o + r * ld_v;
    for_panels(place, task, s, [&](const TilePlace& panel, const float* k, float* out) {
      micro_.scores(scores(panel, task, strip.r, k, out));
    });
    if (steps_.elementwise()) steps_.apply(place, s);
    if (seen == Visibility::some) steps_.hide(place, s);
    hide_padding(place, s);
    // (F7)-(F9) m, P, l; (F10) O = diag(alpha) O + P V
    const auto softmax_step = log2_ ? micro_.softmax_step_log2 : micro_.softmax_step;
    const int padded = static_cast<int>(round_up(place.cols, micro_.lanes));
    softmax_step(place.rows, padded, s, kBlockKeys, scratch.m + r, scratch.l + r, scratch.alpha);
    if (begun) micro_.scale_rows(place.rows, static_cast<int>(ld_v), o, ld_v, scratch.alpha);
    steps_.drop(place, s);
    add_values(strip, task, scratch);
  }

  /// What K is multiplied by, so that its products with Q are logits, over ln 2 if `log2_`.
  float k_factor() const { return log2_ ? p_.scale * std::numbers::log2e_v<float> : p_.scale; }

  const Problem& p_;
  const Micro& micro_;
  Geometry geometry_;
  ScoreSteps steps_;
  bool log2_;  ///< scores become P without another step on the way: logits are over ln 2
  Executor& executor_;
  float *packed_k_, *packed_v_, *scratch_;
};

}  // namespace

void flash_forward(const KernelRow& row, const Problem& problem, const Context& context) {
  if (few_query_rows(problem)) return flash_decode(row, problem, context);
  const Micro& m = micro(*static_cast<const Isa*>(row.config));
  Forward(problem, m, context).run();
}

Prepared flash_forward_prepared(const KernelRow& row, const Problem& problem,
                                const Hardware& machine) {
  if (few_query_rows(problem)) return flash_decode_prepared(row, problem, machine);
  const Isa isa = *static_cast<const Isa*>(row.config);
  const Form form =
      form_of(problem, {kTaskRows, kBlockKeys, 1, threads_with_work(problem, machine)},
              cpu_forms(machine, {kTaskRows, kTaskRows / 2, kTaskRows / 4}, {kBlockKeys}));
  const Geometry g(problem, micro(isa), form.block_m, form.threads);
  Cost cost;
  set_form(cost, form);
  cost.memory = workspace_items(problem, g);
  predict_flash_time(problem, machine, isa, cost);
  return {std::move(cost), remember(g)};
}

}  // namespace tilewise::cpu
