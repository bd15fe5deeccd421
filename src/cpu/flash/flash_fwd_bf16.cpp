/// FlashAttention-2 forward (Dao 2023, Algorithm 1) with products of bfloat16 factors, on AMX tiles
/// or vdpbf16ps. Schedule, memory and numbers: flash_fwd_bf16.md.
///
/// As flash_fwd.cpp, but nothing is widened: K^T and V are packed as pairs of bfloat16 for one
/// product each, P is rounded to bfloat16 by the softmax step, and scale enters the exponent.
#include <algorithm>
#include <bit>
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
#include "cpu/micro/bf16_rows.h"
#include "cpu/micro/elements.h"

namespace tilewise::cpu {
namespace {

constexpr int kTaskRows = 128;  // query rows of a task: a block of keys in cache is used by these
constexpr int kGroupRows = 32;  // rows whose strip of scores stays near the first-level cache
constexpr int kPanelKeys = 32;  // of packed K^T
// Keys of a block: what is read between two products with V, of which each reads and writes O.
constexpr int kStripKeys = 512;     // by strips of scores, which should stay in cache
constexpr int kOnePassKeys = 1024;  // where only P is kept
constexpr int kRowStep = 16;        // rows of a tile of products
constexpr int kLanes = 16;          // partial sums of a row of P
static_assert(kGroupRows == kAttendRows);
constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr auto kLog2E = std::numbers::log2e_v<float>;
constexpr auto kKeptBits = static_cast<Bf16>(std::bit_cast<std::uint32_t>(kKeptValue) >> 16);

/// True when scale is part of the exponent.
bool scales_in_exponent(const Problem& p, const ScoreSteps& steps) {
  return !steps.elementwise() && p.scale > 0.0F && std::isfinite(p.scale * kLog2E);
}

/// True when products_.attend() takes blocks of keys: in most, position alone hides keys.
bool takes_one_pass(const Problem& p, const Bf16Micro& products) {
  const ScoreSteps steps(p);
  return products.attend != nullptr && scales_in_exponent(p, steps) && !steps.has_dropout() &&
         (!has_element_mask(p) || p.block_list.block_q > 0);
}

/// Padded sizes and the layout of the workspace.
struct Geometry {
  bool one_pass;
  int block_keys;
  // A row of scores and of P: a cache line more than a power of two, or rows would share few sets
  // of the cache.
  std::int64_t ld_s, ld_p;
  std::int64_t ld_q, ld_v;  ///< padded head dims: whole inner lengths of Q K^T, columns of P V
  std::int64_t keys;        ///< longest key sequence, padded to blocks
  std::int64_t pairs, pairs_at_a_time;  ///< (sequence, key head)
  Cuts tasks;                           ///< blocks of query rows of the longest sequence
  int workers;

  Geometry(const Problem& p, const Bf16Micro& products, const Form& form)
      : one_pass(takes_one_pass(p, products)),
        block_keys(form.block_n),
        tasks(p.seq_q, form.block_m, p.block_list.block_q, kTaskRows, kRowStep) {
    ld_s = block_keys + 16;
    ld_p = block_keys + 32;
    ld_q = round_up(p.head_dim, 32);
    ld_v = round_up(p.head_dim_v, 16);
    keys = round_up(std::max<std::int64_t>(p.seq_k, 1), block_keys);
    pairs = p.batch * p.heads_k;
    workers = form.threads;
    pairs_at_a_time = cpu::pairs_at_a_time(p, tasks.count() * p.group(), workers);
  }
};

/// Scratch of one worker.
struct Scratch {
  Bf16* q;               ///< kTaskRows x ld_q
  Bf16* p;               ///< kGroupRows x ld_p
  Bf16* rows;            ///< block_keys x max(ld_q, ld_v): keys before they are packed
  float* o;              ///< kTaskRows x ld_v
  float* s;              ///< kGroupRows x ld_s
  float *m, *l, *alpha;  ///< kTaskRows each
  float* sums;           ///< kTaskRows x kLanes: what is not yet in l

  /// In floats.
  static std::int64_t elems(const Geometry& g) {
    const std::int64_t half = kTaskRows * g.ld_q + kGroupRows * g.ld_p + g.block_keys * widest(g);
    return own_pages(half / 2 + kTaskRows * (g.ld_v + 3 + kLanes) + kGroupRows * g.ld_s);
  }
  static std::int64_t widest(const Geometry& g) { return std::max(g.ld_q, g.ld_v); }
};

std::vector<MemoryPart> workspace_items(const Problem& p, const Geometry& g) {
  using Role = MemoryItem::Role;
  const auto item = [](const char* name, DType dtype, std::initializer_list<std::int64_t> shape) {
    return memory_part(name, Role::workspace, dtype, shape);
  };
  const DType half = p.dtype;
  const DType full = DType::float32;
  return {item("packed K", half, {g.pairs_at_a_time, g.keys, g.ld_q}),
          item("packed V", half, {g.pairs_at_a_time, g.keys, g.ld_v}),
          item("blocks of small V", DType::int32, {g.pairs_at_a_time, g.keys / g.block_keys}),
          item("workers' scratch", full, {g.workers, Scratch::elems(g)})};
}

class Forward {
 public:
  Forward(const Problem& p, const Micro& micro, const Bf16Micro& products, const Context& context)
      : p_(p),
        micro_(micro),
        products_(products),
        geometry_(context.decided<Geometry>()),
        steps_(p),
        scale_in_exponent_(scales_in_exponent(p, steps_)),
        executor_(context.executor) {
    WorkspaceCutter cut(context.workspace);
    const Geometry& g = geometry_;
    packed_k_ = cut.take<Bf16>(g.pairs_at_a_time * g.keys * g.ld_q);
    packed_v_ = cut.take<Bf16>(g.pairs_at_a_time * g.keys * g.ld_v);
    keep_m_ = cut.take<std::int32_t>(g.pairs_at_a_time * (g.keys / g.block_keys));
    scratch_ = cut.take<float>(g.workers * Scratch::elems(g));
  }

  void run() {
    const Geometry& g = geometry_;
    run_forward(
        p_, executor_,
        {.pairs = g.pairs,
         .key_blocks = g.keys / g.block_keys,
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
    float* at = scratch_ + slot * Scratch::elems(g);
    const auto take = [&](std::int64_t elems) { return std::exchange(at, at + elems); };
    const auto take_half = [&](std::int64_t elems) {
      return reinterpret_cast<Bf16*>(take(elems / 2));
    };
    return {.q = take_half(kTaskRows * g.ld_q),
            .p = take_half(kGroupRows * g.ld_p),
            .rows = take_half(g.block_keys * Scratch::widest(g)),
            .o = take(kTaskRows * g.ld_v),
            .s = take(kGroupRows * g.ld_s),
            .m = take(kTaskRows),
            .l = take(kTaskRows),
            .alpha = take(kTaskRows),
            .sums = take(std::int64_t{kTaskRows} * kLanes)};
  }

  /// Keys of one block of pair `pair` into slot `at` of the packed buffers: K^T as pairs along D in
  /// panels, V as pairs of keys. Keys past the length are 0 up to a whole inner length.
  void pack(std::int64_t pair, std::int64_t at, std::int64_t block, const Scratch& scratch) const {
    const Geometry& g = geometry_;
    const std::int64_t b = pair / p_.heads_k;
    const std::int64_t h = pair % p_.heads_k;
    const Sequence sequence = p_.sequence(b);
    const std::int64_t j0 = block * g.block_keys;
    if (j0 >= sequence.k_length) return;  // never looked at
    const int count =
        static_cast<int>(std::min<std::int64_t>(g.block_keys, sequence.k_length - j0));
    const int padded = static_cast<int>(round_up(count, kPanelKeys));
    const auto ld_q = static_cast<int>(g.ld_q);
    const auto ld_v = static_cast<int>(g.ld_v);
    const RowSpan span{j0, count, padded};
    const Bf16Rows keys = bf16_key_view(p_, p_.k, b, sequence, h, span, scratch.rows, g.ld_q);
    Bf16* k = packed_k_ + (at * g.keys + j0) * g.ld_q;
    for (int n = 0; n < padded; n += kPanelKeys) {
      products_.pack_transposed_pairs(kPanelKeys, ld_q, keys.data + n * keys.ld, keys.ld,
                                      k + n * g.ld_q, std::int64_t{2} * kPanelKeys);
    }
    const Bf16Rows values = bf16_key_view(p_, p_.v, b, sequence, h, span, scratch.rows, g.ld_v);
    const Bf16 largest = products_.pack_pairs(padded, ld_v, values.data, values.ld,
                                              packed_v_ + (at * g.keys + j0) * g.ld_v, 2 * g.ld_v);
    keep_m(at, j0) = largest <= kKeptBits ? 1 : 0;
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
    const RowSpan span{sequence.q_begin + i0, rows, static_cast<int>(round_up(rows, 16))};
    const Bf16Rows q = bf16_view(p_.q, b, h, span, scratch.q, geometry_.ld_q);
    std::fill_n(scratch.o, rows * geometry_.ld_v, 0.0F);
    std::fill_n(scratch.m, rows, kNothing);
    std::fill_n(scratch.l, rows, 0.0F);
    std::fill_n(scratch.sums, rows * kLanes, 0.0F);

    products_.enter();
    const int block_keys = geometry_.block_keys;
    const std::int64_t end = p_.visible_keys(sequence, i0 + rows - 1).end;
    const auto block_of = [&](std::int64_t j) {
      return first_listed(p_, {b, h, i0, rows}, {j, end}) / block_keys * block_keys;
    };
    for (std::int64_t j0 = block_of(p_.visible_keys(sequence, i0).begin); j0 < end;
         j0 = block_of(j0 + block_keys)) {
      for (int r = 0, count = 0; r < rows; r += count) {
        count = group_rows(i0 + r, rows - r);
        const KeyRange seen = seen_keys(sequence, i0 + r, count, j0);
        for (KeyRange run{0, seen.begin}; run.end < seen.end;) {
          run = next_listed(p_, {b, h, i0 + r, count}, {run.end, seen.end}, kPanelKeys);
          if (run.empty()) continue;
          const auto keys = static_cast<int>(run.end - run.begin);
          step({sequence, b, h, i0 + r, run.begin, count, keys, geometry_.ld_s}, at, r, q, scratch);
        }
      }
    }
    products_.leave();
    add_sums(0, rows, scratch);
    finish({sequence, b, h, i0, rows}, scratch);
  }

  /// Rows of the next group: at most `left` of the task's rows, from row i on. Tiles have 16.
  int group_rows(std::int64_t i, int left) const {
    const std::int64_t block = p_.block_list.block_q;
    const int most = std::min(kGroupRows, left);
    if (block == 0 || block % kRowStep != 0) return most;
    return static_cast<int>(std::min<std::int64_t>(most, block - i % block));
  }

  /// l of rows from r on is whole again.
  static void add_sums(int r, int rows, const Scratch& scratch) {
    float* sums = scratch.sums + std::ptrdiff_t{r} * kLanes;
    for (int i = r; i < r + rows; ++i, sums += kLanes) {
      scratch.l[i] = std::accumulate(sums, sums + kLanes, scratch.l[i]);
    }
    std::fill_n(scratch.sums + std::ptrdiff_t{r} * kLanes, rows * kLanes, 0.0F);
  }

  /// For slot `at` and the block of key j: 1 if V allows P relative to an earlier maximum,
  /// else 0.
  std::int32_t& keep_m(std::int64_t at, std::int64_t j) const {
    const Geometry& g = geometry_;
    return keep_m_[at * (g.keys / g.block_keys) + j / g.block_keys];
  }

  /// The keys of the block at j0 that some row of a group sees, from a whole panel on.
  KeyRange seen_keys(const Sequence& sequence, std::int64_t i0, int rows, std::int64_t j0) const {
    // Both ends of the visible range move to the right with i.
    const KeyRange first = p_.visible_keys(sequence, i0);
    const KeyRange last = p_.visible_keys(sequence, i0 + rows - 1);
    const std::int64_t begin = std::max(j0, first.begin / kPanelKeys * kPanelKeys);
    return {begin, std::min({j0 + geometry_.block_keys, last.end, sequence.k_length})};
  }

  /// One block of keys for one group of rows.
  void step(const TilePlace& place, std::int64_t at, int r, const Bf16Rows& q,
            const Scratch& scratch) const {
    const Visibility seen = tile_visibility(p_, place);
    if (seen == Visibility::none || attend_block(place, seen, at, r, q, scratch)) return;
    add_sums(r, place.rows, scratch);
    const Geometry& g = geometry_;
    const auto ld_q = static_cast<int>(g.ld_q);
    const auto ld_v = static_cast<int>(g.ld_v);
    const int padded = static_cast<int>(round_up(place.cols, 32));
    float* s = scratch.s;
    float* o = scratch.o + r * g.ld_v;

    // (F1) S = Q K^T, one panel of keys at a time
    const Bf16* k = packed_k_ + (at * g.keys + place.j0) * g.ld_q;
    for (int n = 0; n < padded; n += kPanelKeys, k += kPanelKeys * g.ld_q) {
      products_.gemm(place.rows, std::min(kPanelKeys, padded - n), ld_q, q.data + r * q.ld, q.ld, k,
                     std::int64_t{2} * kPanelKeys, s + n, geometry_.ld_s, false);
    }
    logits(place, seen, s);
    for (std::int64_t row = 0; padded > place.cols && row < place.rows; ++row) {
      std::fill(s + row * geometry_.ld_s + place.cols, s + row * geometry_.ld_s + padded, kNothing);
    }
    // (F7)-(F9) m, P, l; (F10) O = diag(alpha) O + P V
    products_.softmax_step(place.rows, padded, s, geometry_.ld_s, to_log2(),
                           keep_m(at, place.j0) != 0, scratch.m + r, scratch.l + r, scratch.alpha,
                           scratch.p, geometry_.ld_p);
    micro_.scale_rows(place.rows, ld_v, o, g.ld_v, scratch.alpha);
    if (steps_.has_dropout()) drop(place, padded, scratch);
    products_.gemm(place.rows, ld_v, padded, scratch.p, geometry_.ld_p,
                   packed_v_ + (at * g.keys + place.j0) * g.ld_v, 2 * g.ld_v, o, g.ld_v, true);
  }

  /// One block of keys in one pass, where position alone decides what is seen. False, with O and l
  /// as they were, when it cannot; m, if nothing was seen before, may then be that of some keys.
  bool attend_block(const TilePlace& place, Visibility seen, std::int64_t at, int r,
                    const Bf16Rows& q, const Scratch& scratch) const {
    constexpr int kTile = 32;
    // Q has rows up to a multiple of 16.
    if (!geometry_.one_pass || place.rows <= kTile / 2 || keep_m(at, place.j0) == 0) return false;
    if (seen == Visibility::some && !position_alone_hides(p_, place)) return false;
    int begin[kAttendRows];
    int end[kAttendRows];
    for (int i = 0; i < place.rows; ++i) {
      KeyRange keys = p_.visible_keys(place.sequence, place.i0 + i);
      if (seen == Visibility::all) keys = {place.j0, place.j0 + place.cols};
      begin[i] = static_cast<int>(std::clamp<std::int64_t>(keys.begin - place.j0, 0, place.cols));
      end[i] = static_cast<int>(std::clamp<std::int64_t>(keys.end - place.j0, 0, place.cols));
    }
    // Both ends move to the right with the row.
    const int last = place.rows - 1;
    const Geometry& g = geometry_;
    const std::int64_t key = at * g.keys + place.j0;
    return products_.attend({.rows = place.rows,
                             .keys = static_cast<int>(round_up(place.cols, kTile)),
                             .dim = static_cast<int>(g.ld_q),
                             .dim_v = static_cast<int>(g.ld_v),
                             .q = q.data + r * q.ld,
                             .ld_q = q.ld,
                             .k = packed_k_ + key * g.ld_q,
                             .v = packed_v_ + key * g.ld_v,
                             .ld_v = 2 * g.ld_v,
                             .to_log2 = to_log2(),
                             .seen_begin = begin,
                             .seen_end = end,
                             .all_begin = static_cast<int>(ceil_div(begin[last], kTile)),
                             .all_end = end[0] / kTile,
                             .m = scratch.m + r,
                             .sums = scratch.sums + std::ptrdiff_t{r} * kLanes,
                             .p = scratch.p,
                             .ld_p = geometry_.ld_p,
                             .o = scratch.o + r * g.ld_v,
                             .ld_o = g.ld_v});
  }

  /// From scores to logits over to_log2() ln 2.
  void logits(const TilePlace& place, Visibility seen, float* s) const {
    if (!scale_in_exponent_) {
      products_.scale(place.rows, static_cast<int>(round_up(place.cols, 32)), s, geometry_.ld_s,
                      p_.scale);
    }
    if (steps_.elementwise()) steps_.apply(place, s);
    if (seen == Visibility::some) steps_.hide(place, s);
  }
  float to_log2() const { return scale_in_exponent_ ? p_.scale * kLog2E : kLog2E; }

  /// Dropped entries of P become 0; 1 / (1 - p) waits for finish().
  void drop(const TilePlace& place, int padded, const Scratch& scratch) const {
    for (std::int64_t row = 0; row < place.rows; ++row) {
      std::fill_n(scratch.s + row * geometry_.ld_s, padded, 1.0F);
    }
    steps_.drop(place, scratch.s);
    products_.keep(place.rows, padded, scratch.s, geometry_.ld_s, scratch.p, geometry_.ld_p);
  }

  void finish(const RowBlock& block, const Scratch& scratch) const {
    if (scale_in_exponent_) {
      for (int r = 0; r < block.rows; ++r) scratch.m[r] *= p_.scale;
    }
    if (steps_.has_dropout()) {
      products_.scale(block.rows, static_cast<int>(geometry_.ld_v), scratch.o, geometry_.ld_v,
                      steps_.dropout_scale());
    }
    const Tensor& o = p_.o;
    if (o.strides[3] != 1 || p_.head_dim_v != geometry_.ld_v) {
      return finish_rows(p_, block, scratch.m, scratch.l, scratch.o, geometry_.ld_v);
    }
    finish_statistics(p_, block, scratch.m, scratch.l);
    Bf16* out = static_cast<Bf16*>(o.data) +
                offset_of(o, block.b, block.h, block.sequence.q_begin + block.i0);
    products_.store_rows(block.rows, static_cast<int>(geometry_.ld_v), scratch.o, geometry_.ld_v,
                         scratch.l, out, o.strides[2]);
  }

  const Problem& p_;
  const Micro& micro_;
  const Bf16Micro& products_;
  Geometry geometry_;
  ScoreSteps steps_;
  bool scale_in_exponent_;
  Executor& executor_;
  Bf16 *packed_k_, *packed_v_;
  std::int32_t* keep_m_;
  float* scratch_;
};

std::int64_t tasks_of(const Problem& p, int rows) {
  return p.batch * p.heads_q * ceil_div(p.seq_q, rows);
}

}  // namespace

void flash_forward_bf16(const KernelRow& row, const Problem& problem, const Context& context) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  Forward(problem, micro(isa), bf16_micro(isa), context).run();
}

std::int64_t smallest_tasks_bf16(const Problem& p) { return tasks_of(p, kGroupRows); }

Prepared flash_forward_bf16_prepared(const KernelRow& row, const Problem& problem,
                                     const Hardware& machine) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  const int keys = takes_one_pass(problem, bf16_micro(isa)) ? kOnePassKeys : kStripKeys;
  const int threads = threads_with_work(problem, machine);
  // Where threads would find no task: smaller ones, of whole groups of rows, whose bits are the
  // same.
  int task_rows = kTaskRows;
  while (task_rows > kGroupRows && tasks_of(problem, task_rows) < threads) task_rows /= 2;
  const Form form = form_of(
      problem, {task_rows, keys, 1, threads},
      cpu_forms(machine, {kTaskRows, kTaskRows / 2, kTaskRows / 4}, {256, 512, 1024, 2048}));
  const Geometry g(problem, bf16_micro(isa), form);
  Cost cost;
  set_form(cost, form);
  cost.memory = workspace_items(problem, g);
  predict_flash_time(problem, machine, isa, cost);
  return {std::move(cost), remember(g)};
}

}  // namespace tilewise::cpu
