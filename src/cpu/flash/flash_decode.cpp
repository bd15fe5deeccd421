/// Flash-decoding (Dao, Haziza, Massa, Sizov 2023) on the CPU: few query rows against long keys.
/// Schedule, memory and numbers: flash_decode.md.
///
/// Tasks of (sequence, key head, split of the keys, some query heads), whose query rows share the
/// keys that they read; then the splits' O, m and l are joined in order. Up to kReadingRows rows a
/// key head, K and V are read once, where they lie; of more, K is packed and tiles of rows share
/// it.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "cpu/flash/decode_geometry.h"
#include "cpu/flash/decode_join.h"
#include "cpu/flash/score_steps.h"
#include "cpu/flash/visible.h"
#include "cpu/key_run.h"
#include "cpu/micro/bf16_rows.h"
#include "cpu/micro/elements.h"

namespace tilewise::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

class Decode {
 public:
  Decode(const Problem& p, Isa isa, const Context& context)
      : p_(p),
        micro_(micro(isa)),
        g_(context.decided<DecodeGeometry>()),
        products_(g_.bf16 ? &bf16_micro(isa) : nullptr),
        steps_(p),
        executor_(context.executor) {
    WorkspaceCutter cut(context.workspace);
    const std::int64_t partial_rows = g_.partials * g_.rows;
    o_ = cut.take<float>(partial_rows * g_.ld_v);
    m_ = cut.take<float>(2 * partial_rows);
    l_ = m_ + partial_rows;
    scratch_ = cut.take<float>(g_.workers * DecodeScratch::elems(g_));
  }

  void run() {
    const bool even = g_.splits == 1 && is_even(p_);
    const auto run = even ? run_even_tasks : run_tasks;
    run(executor_, g_.workers, g_.pairs / g_.together * g_.splits * g_.chunks,
        [&](std::int64_t task, int slot) {
          attend(task, {g_, scratch_, slot});
        });
    if (g_.splits > 1) {
      run_tasks(executor_, g_.workers, g_.pairs * g_.chunks, [&](std::int64_t task, int) {
        const std::int64_t pair = task / g_.chunks;
        join(pair, chunk(task % g_.chunks), partial(pair * g_.splits));
      });
    }
    clear_rows_past_the_end(p_);
  }

 private:
  /// Rows of K or V of a block: one behind the other, or where a list has them.
  struct Rows {
    const void* data;        ///< listed: a head's row 0
    const std::int64_t* at;  ///< null: one behind the other
    std::int64_t ld;
    int storage;
  };

  /// Rows of K and of V that are asked for.
  struct Asked {
    Ahead k, v;
  };

  /// The keys of a block: K's rows or, where it is packed, its panels.
  struct Block {
    const TilePlace& place;
    Rows k, v;
    float* panels;
    Asked& asked;
  };

  /// Where the rows of some keys begin in K and V, from a head's row 0 on.
  struct Listing {
    std::array<std::int64_t, kMostBlockKeys> k, v;
    int keys = 0;
  };

  void list_rows(std::int64_t b, const Sequence& sequence, KeyRange run, Listing& to) const {
    to.keys = static_cast<int>(run.end - run.begin);
    list_key_rows(p_, b, sequence, run,
                  {g_.lists_k ? to.k.data() : nullptr, g_.lists_v ? to.v.data() : nullptr});
  }

  /// Query heads of a chunk, counted in their group.
  struct Heads {
    std::int64_t begin, end;
  };
  Heads chunk(std::int64_t index) const {
    return {index * g_.chunk_heads, std::min((index + 1) * g_.chunk_heads, p_.group())};
  }

  /// The query rows of a chunk of heads, or those of some key heads, against one split of their
  /// keys.
  struct Task {
    Sequence sequence;
    Heads heads;
    std::int64_t b, pair, split;  ///< pair: that of the first key head
    std::int64_t h, count;        ///< first query head, and how many each key head has
    int q_rows;                   ///< queries of a head
    KeyRange keys;                ///< of the split, that some row sees
    std::int64_t rows() const { return q_rows * count; }
  };

  Task task_of(std::int64_t index) const {
    const std::int64_t part = index / g_.chunks;
    Task task{.heads = chunk(index % g_.chunks),
              .pair = part / g_.splits * g_.together,
              .split = part % g_.splits};
    task.b = task.pair / p_.heads_k;
    task.sequence = p_.sequence(task.b);
    task.h = task.pair % p_.heads_k * p_.group() + task.heads.begin;
    task.count = task.heads.end - task.heads.begin;
    task.q_rows = static_cast<int>(task.sequence.q_length);
    if (task.rows() <= 0) return task;
    // Both ends of the visible range move to the right with i.
    const std::int64_t first = task.split * kSplitKeys;
    task.keys = {std::max(first, p_.visible_keys(task.sequence, 0).begin),
                 std::min({first + kSplitKeys, task.sequence.k_length,
                           p_.visible_keys(task.sequence, task.q_rows - 1).end})};
    return task;
  }

  void attend(std::int64_t index, const DecodeScratch& scratch) const {
    const Task task = task_of(index);
    if (task.rows() <= 0) return;  // no queries, or no query heads: their key head cannot be told
    attend_keys(task, scratch);
    for (std::int64_t n = 0; n < g_.together; ++n) {
      const State state = state_of(scratch, n);
      if (g_.splits == 1) {
        join(task.pair + n, task.heads, state);
      } else {
        keep(task, state, partial((task.pair + n) * g_.splits + task.split));
      }
    }
  }

  void attend_keys(const Task& task, const DecodeScratch& scratch) const {
    for (std::int64_t n = 0; n < g_.together; ++n) {
      const State state = state_of(scratch, n).from(first_row(task), g_.ld_v);
      std::fill_n(state.o, task.rows() * g_.ld_v, 0.0F);
      std::fill_n(state.m, task.rows(), kNothing);
      std::fill_n(state.l, task.rows(), 0.0F);
    }
    if (task.keys.empty()) return;
    for (std::int64_t n = 0; n < g_.together; ++n) {
      for_strips(place_of(task, n, {0, 0}), task.count,
                 [&](const Strip& strip) { load_queries(strip, n, scratch); });
    }
    products_enter();
    Listing listings[2];
    Listing* now = &listings[0];
    Listing* next = &listings[1];
    KeyRange run = next_run(task, task.keys.begin / 4 * 4);
    list_rows(task.b, task.sequence, run, *now);
    while (!run.empty()) {
      const KeyRange after = next_run(task, run.end);
      list_rows(task.b, task.sequence, after, *next);
      attend_block(task, run, *now, *next, scratch);
      run = after;
      std::swap(now, next);
    }
    products_leave();
  }

  /// The next keys from j on that are a block; empty at the end.
  KeyRange next_run(const Task& task, std::int64_t j) const {
    const QueryRows listing{task.b, task.h, 0, task.q_rows, task.count};  // lists: heads come alone
    KeyRange run{j, j};
    while (run.empty() && run.end < task.keys.end) {
      const std::int64_t most = std::min(task.keys.end, run.end / 4 * 4 + g_.block_keys);
      run = next_listed(p_, listing, {run.end, most}, 4);
    }
    return run;
  }

  /// One block of keys, listed in `now`, for all key heads of a task. `next` has those after it.
  void attend_block(const Task& task, KeyRange run, const Listing& now, const Listing& next,
                    const DecodeScratch& scratch) const {
    const std::int64_t first_head = task.pair % p_.heads_k;
    Asked asked = asked_for(first_head, g_.together, next);
    for (std::int64_t n = 0; n < g_.together; ++n) {
      const TilePlace place = place_of(task, n, run);
      if (g_.asks_by_head) {
        const bool last = n + 1 == g_.together;
        asked = asked_for(last ? first_head : first_head + n + 1, 1, last ? next : now);
      }
      const Block block = load_block(place, scratch, now, asked);
      const State state = state_of(scratch, n).from(first_row(task), g_.ld_v);
      for_strips(place, task.count,
                 [&](const Strip& strip) { step(strip, block, n, state, scratch); });
    }
  }

  /// The first query head of a task's key head n, at some keys.
  TilePlace place_of(const Task& task, std::int64_t n, KeyRange keys) const {
    return {task.sequence,
            task.b,
            task.h + n * task.count,
            0,
            keys.begin,
            task.q_rows,
            static_cast<int>(keys.end - keys.begin),
            g_.block_keys};
  }
  /// Of a task, among the rows of a key head.
  static std::int64_t first_row(const Task& task) { return task.heads.begin * task.q_rows; }

  /// Rows of some heads at the same queries, row `first` of the chunk's and those after it;
  /// `place` is that of the first head.
  struct Strip {
    TilePlace place;
    std::int64_t heads, first;
    std::int64_t q;  ///< first row of Q in the workspace, of its key head's
    int rows() const { return static_cast<int>(heads) * place.rows; }
  };

  /// A strip's, of a task's key head n: times scale, but for products of bfloat16 as these take
  /// them.
  void load_queries(const Strip& strip, std::int64_t n, const DecodeScratch& scratch) const {
    const TilePlace& place = strip.place;
    const auto dim = static_cast<int>(p_.head_dim);
    const std::int64_t first = place.sequence.q_begin + place.i0;
    const bool packs = g_.row_unit > 1;
    const std::int64_t at = (n * g_.q_rows + strip.q) * g_.ld_q;
    const std::int64_t head_elems = place.rows * g_.ld_q;
    if (!g_.bf16) {
      for (std::int64_t head = 0; head < strip.heads; ++head) {
        load_rows(p_.q, place.b, place.h + head, first, place.rows, dim,
                  scratch.q + at + head * head_elems, g_.ld_q, p_.scale);
      }
      return;
    }
    Bf16* q = reinterpret_cast<Bf16*>(scratch.q) + at;
    Bf16* rows = packs ? scratch.unpacked_q : q;
    for (std::int64_t head = 0; head < strip.heads; ++head) {
      bf16_rows(p_.q, place.b, place.h + head, {first, place.rows, place.rows},
                rows + head * head_elems, g_.ld_q);
    }
    if (!packs) return;
    const std::int64_t padded = round_up(strip.rows(), g_.row_unit);
    std::fill_n(rows + strip.rows() * g_.ld_q, (padded - strip.rows()) * g_.ld_q, Bf16{0});
    for (std::int64_t r = 0; r < padded; r += g_.row_unit) {
      products_->pack_transposed_pairs(static_cast<int>(g_.row_unit), static_cast<int>(g_.ld_q),
                                       rows + r * g_.ld_q, g_.ld_q, q + r * g_.ld_q,
                                       2 * g_.row_unit);
    }
  }

  void products_enter() const {
    if (products_ != nullptr) products_->enter();
  }
  void products_leave() const {
    if (products_ != nullptr) products_->leave();
  }

  /// Of rows of a key head.
  struct State {
    float *o, *m, *l;
    State from(std::int64_t row, std::int64_t ld_v) const {
      return {o + row * ld_v, m + row, l + row};
    }
  };
  /// Of a task's key head n.
  State state_of(const DecodeScratch& scratch, std::int64_t n) const {
    return State{scratch.o, scratch.m, scratch.l}.from(n * g_.rows, g_.ld_v);
  }
  /// Those of a key head that wait for those of its other splits.
  State partial(std::int64_t index) const {
    return State{o_, m_, l_}.from(index * g_.rows, g_.ld_v);
  }

  void keep(const Task& task, const State& state, const State& partial) const {
    const std::int64_t row = first_row(task);
    std::copy_n(state.o + row * g_.ld_v, task.rows() * g_.ld_v, partial.o + row * g_.ld_v);
    std::copy_n(state.m + row, task.rows(), partial.m + row);
    std::copy_n(state.l + row, task.rows(), partial.l + row);
  }

  /// use(strip) for all rows of `heads` heads: whole heads where several share a strip.
  template <class Use>
  void for_strips(const TilePlace& place, std::int64_t heads, const Use& use) const {
    const std::int64_t queries = place.rows;
    std::int64_t q = 0;
    for (std::int64_t head = 0; head < heads; head += g_.strip_heads) {
      const std::int64_t count = std::min(g_.strip_heads, heads - head);
      const std::int64_t most = g_.strip_heads > 1 || !g_.packs ? queries : kStripRows;
      for (std::int64_t i0 = 0; i0 < queries; i0 += most) {
        Strip strip{place, count, head * queries + i0, q};
        strip.place.h += head;
        strip.place.i0 = i0;
        strip.place.rows = static_cast<int>(std::min(most, queries - i0));
        use(strip);
        q += round_up(strip.rows(), g_.row_unit);
      }
    }
  }

  /// What the heads of a strip see, one with another.
  Visibility visibility(const Strip& strip) const {
    TilePlace place = strip.place;
    const Visibility first = tile_visibility(p_, place);
    if (!p_.block_list.defined()) return first;
    for (std::int64_t head = 1; head < strip.heads; ++head) {
      ++place.h;
      if (tile_visibility(p_, place) != first) return Visibility::some;
    }
    return first;
  }

  /// One block of keys for a strip of rows of a task's key head n.
  void step(const Strip& strip, const Block& block, std::int64_t n, const State& state,
            const DecodeScratch& scratch) const {
    const TilePlace& place = strip.place;
    const Visibility seen = visibility(strip);
    if (seen == Visibility::none) return;
    const int rows = strip.rows();
    float* s = scratch.s;
    float* alpha = scratch.alpha;
    float* o = state.o + strip.first * g_.ld_v;
    scores(rows, block, scratch.q, n * g_.q_rows + strip.q, s);  // (F1) S
    const int padded = static_cast<int>(round_up(place.cols, g_.lanes));
    for_heads(strip, s, [&](const TilePlace& head, float* logits) {
      if (steps_.elementwise()) steps_.apply(head, logits);
      if (seen == Visibility::some) steps_.hide(head, logits);
    });
    for (std::int64_t r = 0; r < rows; ++r) {
      std::fill(s + r * g_.block_keys + place.cols, s + r * g_.block_keys + padded, kNothing);
    }
    float* m = state.m + strip.first;
    float* l = state.l + strip.first;
    const auto ld_v = static_cast<int>(g_.ld_v);
    if (g_.bf16) {
      products_->softmax_step(rows, padded, s, g_.block_keys, std::numbers::log2e_v<float>, false,
                              m, l, alpha, scratch.p, g_.block_keys);  // (F7)-(F9)
      micro_.scale_rows(rows, ld_v, o, g_.ld_v, alpha);
      products_->add_listed_rows(rows, static_cast<int>(p_.head_dim_v), place.cols, scratch.p,
                                 g_.block_keys, static_cast<const Bf16*>(block.v.data), block.v.at,
                                 o, g_.ld_v, block.asked.v);  // (F10) O
      return;
    }
    micro_.softmax_step(rows, padded, s, g_.block_keys, m, l, alpha);  // (F7)-(F9)
    micro_.scale_rows(rows, ld_v, o, g_.ld_v, alpha);
    if (steps_.has_dropout()) {
      for_heads(strip, s, [&](const TilePlace& head, float* p) { steps_.drop(head, p); });
    }
    const Rows& v = block.v;  // (F10) O
    if (v.at == nullptr) {
      micro_.add_weighted_rows[v.storage](rows, ld_v, place.cols, s, g_.block_keys, v.data, v.ld, o,
                                          g_.ld_v);
    } else {
      micro_.add_listed_rows[v.storage](rows, ld_v, place.cols, s, g_.block_keys, v.data, v.at, o,
                                        g_.ld_v, block.asked.v);
    }
  }

  /// Rows of Q by the keys of a block.
  void scores(int rows, const Block& block, const float* all_q, std::int64_t q_row,
              float* s) const {
    const Rows& k = block.k;
    if (g_.bf16) {
      return products_->row_products(rows, block.place.cols, static_cast<int>(p_.head_dim),
                                     reinterpret_cast<const Bf16*>(all_q) + q_row * g_.ld_q,
                                     g_.ld_q, static_cast<const Bf16*>(k.data), k.at, p_.scale, s,
                                     g_.block_keys, block.asked.k);
    }
    const float* q = all_q + q_row * g_.ld_q;
    if (!g_.packs) {
      const auto dim = static_cast<int>(g_.ld_q);
      if (k.at == nullptr) {
        micro_.row_products[k.storage](rows, block.place.cols, dim, q, g_.ld_q, k.data, k.ld, s,
                                       g_.block_keys);
      } else {
        micro_.listed_products[k.storage](rows, block.place.cols, dim, q, g_.ld_q, k.data, k.at, s,
                                          g_.block_keys, block.asked.k);
      }
      return;
    }
    const int dim = static_cast<int>(p_.head_dim);
    const int wide = micro_.panel_cols;
    const float* panel = block.panels;
    const int keys = block.place.cols;
    for (int n = 0; n < keys; n += wide, panel += std::int64_t{dim} * wide) {
      const auto cols = static_cast<int>(round_up(std::min(wide, keys - n), micro_.lanes));
      micro_.scores({rows, cols, dim, q, g_.ld_q, panel, s + n, g_.block_keys});
    }
  }

  /// body(place, scores) for each query head of a strip.
  template <class Body>
  void for_heads(const Strip& strip, float* s, const Body& body) const {
    TilePlace place = strip.place;
    for (std::int64_t head = 0; head < strip.heads; ++head, ++place.h) {
      body(place, s + head * place.rows * g_.block_keys);
    }
  }

  /// Those that a list has, of `heads` key heads from h on.
  Asked asked_for(std::int64_t h, std::int64_t heads, const Listing& list) const {
    const auto rows = [&](const Tensor& t, const std::int64_t* at) -> Ahead {
      const auto bytes = static_cast<std::int64_t>(dtype_bytes(t.dtype));
      const std::int64_t ld = t.strides[1];
      const std::int64_t lowest = std::min(h * ld, (h + heads - 1) * ld);
      const std::int64_t span = (heads - 1) * std::abs(ld) + t.sizes[3];
      return {static_cast<const char*>(t.data) + lowest * bytes, at, bytes, span * bytes,
              list.keys};
    };
    return {rows(p_.k, list.k.data()), rows(p_.v, list.v.data())};
  }

  /// Rows of a block where the list `now` has them.
  Rows listed_rows(const Tensor& t, const TilePlace& place, const std::int64_t* now) const {
    const std::int64_t h = place.h / p_.group();
    const auto* data = static_cast<const std::byte*>(t.data);
    return {data + h * t.strides[1] * static_cast<std::int64_t>(dtype_bytes(t.dtype)), now,
            t.strides[2], storage_of(t.dtype)};
  }

  /// Where they lie, or as float32 in `scratch`.
  Rows keys_of(const Tensor& t, bool in_place, const TilePlace& place, float* scratch,
               std::int64_t dim, std::int64_t padded) const {
    const std::int64_t h = place.h / p_.group();
    if (in_place) {
      const std::int64_t row = offset_of(t, place.b, h, place.sequence.k_begin + place.j0);
      const auto* data = static_cast<const std::byte*>(t.data) + row * dtype_bytes(t.dtype);
      return {data, nullptr, t.strides[2], storage_of(t.dtype)};
    }
    load_keys(p_, t, place.b, place.sequence, h, place.j0, place.cols, static_cast<int>(dim),
              scratch, padded);
    return {scratch, nullptr, padded, storage_of(DType::float32)};
  }

  Block load_block(const TilePlace& place, const DecodeScratch& scratch, const Listing& now,
                   Asked& asked) const {
    const Block block{
        .place = place,
        .k = g_.lists_k ? listed_rows(p_.k, place, now.k.data())
                        : keys_of(p_.k, g_.k_in_place, place, scratch.k, p_.head_dim, g_.ld_q),
        .v = g_.lists_v ? listed_rows(p_.v, place, now.v.data())
                        : keys_of(p_.v, g_.v_in_place, place, scratch.v, p_.head_dim_v, g_.ld_v),
        .panels = scratch.panels,
        .asked = asked};
    if (g_.packs) {
      pack_transposed(micro_, place.cols, static_cast<int>(p_.head_dim),
                      static_cast<const float*>(block.k.data), block.k.ld, block.panels);
    }
    return block;
  }

  /// O, m and l of a chunk's splits, from those of the first on, into these, in order; then the end
  /// of a forward.
  void join(std::int64_t pair, Heads heads, const State& state) const {
    const std::int64_t b = pair / p_.heads_k;
    const Sequence sequence = p_.sequence(b);
    const auto& [o, m, l] = state;
    for (std::int64_t row = heads.begin * sequence.q_length; row < heads.end * sequence.q_length;
         ++row) {
      join_splits(g_, row, m, l, o);
    }
    for (std::int64_t head = heads.begin; head < heads.end && sequence.q_length > 0; ++head) {
      const std::int64_t first = head * sequence.q_length;
      finish_rows(p_,
                  {sequence, b, pair % p_.heads_k * p_.group() + head, 0,
                   static_cast<int>(sequence.q_length)},
                  m + first, l + first, o + first * g_.ld_v, g_.ld_v);
    }
  }

  const Problem& p_;
  const Micro& micro_;
  DecodeGeometry g_;
  const Bf16Micro* products_;  ///< of bfloat16 factors, or null
  ScoreSteps steps_;
  Executor& executor_;
  float *o_, *m_, *l_, *scratch_;
};

}  // namespace

void flash_decode(const KernelRow& row, const Problem& problem, const Context& context) {
  Decode(problem, *static_cast<const Isa*>(row.config), context).run();
}

}  // namespace tilewise::cpu
