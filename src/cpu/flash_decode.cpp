/// Flash-decoding (Dao, Haziza, Massa, Sizov 2023) on the CPU: few query rows against long keys.
/// Schedule, memory and numbers: flash_decode.md.
///
/// K and V are read once, where they lie: tasks of (sequence, key head, split of the keys), each of
/// all the query rows that share the key head; then the splits' O, m and l are joined in order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/elements.h"
#include "cpu/flash.h"
#include "cpu/score_steps.h"
#include "cpu/tiles.h"
#include "plan/accounting.h"
#include "plan/decisive.h"

namespace tilewise::cpu {
namespace {

constexpr int kMaxRows = 16;               // query rows of a key head: more are worth packed keys
constexpr std::int64_t kBlockKeys = 1024;  // read where they lie: long runs of one address
constexpr std::int64_t kCopiedBlockKeys = 128;  // copied first: float32 in the second-level cache
constexpr int kSplitKeys = 2048;  // fixed: the result depends neither on threads nor on the batch
constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// True when rows can be read as whole vectors where they lie.
bool in_place(const Problem& p, const Tensor& t, const Micro& micro) {
  return t.strides[3] == 1 && t.sizes[3] % micro.lanes == 0 && !p.paged;
}

/// Padded sizes and the layout of the workspace.
struct Geometry {
  std::int64_t ld_q, ld_v;  ///< padded head dims
  std::int64_t rows;        ///< query rows of a key head
  std::int64_t pairs;       ///< (sequence, key head)
  std::int64_t splits;
  std::int64_t block_keys;
  bool k_in_place, v_in_place;
  int workers;

  Geometry(const Problem& p, const Micro& micro, int threads)
      : ld_q(round_up(p.head_dim, micro.lanes)),
        ld_v(round_up(p.head_dim_v, micro.lanes)),
        rows(p.group() * p.seq_q),
        pairs(p.batch * p.heads_k),
        splits(std::max<std::int64_t>(1, ceil_div(p.seq_k, kSplitKeys))),
        k_in_place(in_place(p, p.k, micro)),
        v_in_place(in_place(p, p.v, micro)),
        workers(threads) {
    block_keys = k_in_place && v_in_place ? kBlockKeys : kCopiedBlockKeys;
  }
};

std::vector<MemoryPart> workspace_items(const Geometry& g) {
  using Role = MemoryItem::Role;
  const auto item = [](const char* name, std::initializer_list<std::int64_t> shape) {
    return memory_part(name, Role::workspace, DType::float32, shape);
  };
  return {item("O of splits", {g.pairs, g.splits, g.rows, g.ld_v}),
          item("m, l of splits", {2, g.pairs, g.splits, g.rows}),
          item("Q rows", {g.workers, g.rows, g.ld_q}),
          item("S strip, alpha", {g.workers, g.rows, g.block_keys + 1}),
          item("K rows", {g.workers, g.k_in_place ? 0 : g.block_keys, g.ld_q}),
          item("V rows", {g.workers, g.v_in_place ? 0 : g.block_keys, g.ld_v})};
}

class Decode {
 public:
  Decode(const Problem& p, const Micro& micro, const Context& context)
      : p_(p),
        micro_(micro),
        g_(context.decided<Geometry>()),
        steps_(p),
        executor_(context.executor) {
    WorkspaceCutter cut(context.workspace);
    const std::int64_t partial_rows = g_.pairs * g_.splits * g_.rows;
    o_ = cut.take<float>(partial_rows * g_.ld_v);
    m_ = cut.take<float>(2 * partial_rows);
    l_ = m_ + partial_rows;
    q_ = cut.take<float>(g_.workers * g_.rows * g_.ld_q);
    s_ = cut.take<float>(g_.workers * g_.rows * (g_.block_keys + 1));
    k_ = cut.take<float>(g_.k_in_place ? 0 : g_.workers * g_.block_keys * g_.ld_q);
    v_ = cut.take<float>(g_.v_in_place ? 0 : g_.workers * g_.block_keys * g_.ld_v);
  }

  void run() {
    run_tasks(executor_, g_.workers, g_.pairs * g_.splits,
              [&](std::int64_t task, int slot) { attend(task, slot); });
    run_tasks(executor_, g_.workers, g_.pairs, [&](std::int64_t pair, int) { join(pair); });
    clear_rows_past_the_end(p_);
  }

 private:
  /// All query rows of a key head against one split of its keys.
  void attend(std::int64_t task, int slot) const {
    const std::int64_t pair = task / g_.splits;
    const std::int64_t b = pair / p_.heads_k;
    const Sequence sequence = p_.sequence(b);
    const std::int64_t h = pair % p_.heads_k * p_.group();
    const auto q_rows = static_cast<int>(sequence.q_length);
    if (q_rows == 0) return;
    const int rows = q_rows * static_cast<int>(p_.group());
    float* o = o_ + task * g_.rows * g_.ld_v;
    float* m = m_ + task * g_.rows;
    float* l = l_ + task * g_.rows;
    std::fill_n(o, rows * g_.ld_v, 0.0F);
    std::fill_n(m, rows, kNothing);
    std::fill_n(l, rows, 0.0F);
    // Both ends of the visible range move to the right with i.
    const std::int64_t first = task % g_.splits * kSplitKeys;
    const std::int64_t begin = std::max(first, p_.visible_keys(sequence, 0).begin);
    const std::int64_t end = std::min(
        {first + kSplitKeys, sequence.k_length, p_.visible_keys(sequence, q_rows - 1).end});
    if (begin >= end) return;
    float* q = q_ + slot * g_.rows * g_.ld_q;
    for (std::int64_t head = 0; head < p_.group(); ++head) {
      load_rows(p_.q, b, h + head, sequence.q_begin, q_rows, static_cast<int>(p_.head_dim),
                q + head * q_rows * g_.ld_q, g_.ld_q, p_.scale);
    }
    for (std::int64_t j0 = begin / 4 * 4; j0 < end; j0 += g_.block_keys) {
      const auto keys = static_cast<int>(std::min(g_.block_keys, end - j0));
      step({sequence, b, h, 0, j0, q_rows, keys, g_.block_keys}, slot, rows, q, {o, m, l});
    }
  }

  struct State {
    float *o, *m, *l;
  };

  /// One block of keys; `place` is that of the first head.
  void step(TilePlace place, int slot, int rows, const float* q, const State& state) const {
    float* s = s_ + slot * g_.rows * (g_.block_keys + 1);
    float* alpha = s + g_.rows * g_.block_keys;
    const Rows k = keys_of(p_.k, g_.k_in_place, place, k_ + slot * g_.block_keys * g_.ld_q,
                           p_.head_dim, g_.ld_q);
    micro_.row_products[k.storage](rows, place.cols, static_cast<int>(g_.ld_q), q, g_.ld_q, k.data,
                                   k.ld, s, g_.block_keys);  // (F1) S
    const int padded = static_cast<int>(round_up(place.cols, micro_.lanes));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::fill(s + r * g_.block_keys + place.cols, s + r * g_.block_keys + padded, kNothing);
    }
    const Visibility seen =
        tile_visibility(p_, place.sequence, 0, place.rows, place.j0, place.cols);
    for_heads(place, s, [&](const TilePlace& head, float* scores) {
      if (steps_.elementwise()) {
        steps_.apply(head, scores);
      } else if (seen != Visibility::all) {
        steps_.mask_position(head, scores);
      }
    });
    micro_.softmax_step(rows, padded, s, g_.block_keys, state.m, state.l, alpha);  // (F7)-(F9)
    const auto ld_v = static_cast<int>(g_.ld_v);
    micro_.scale_rows(rows, ld_v, state.o, g_.ld_v, alpha);
    if (steps_.has_dropout()) {
      for_heads(place, s, [&](const TilePlace& head, float* p) { steps_.drop(head, p); });
    }
    const Rows v = keys_of(p_.v, g_.v_in_place, place, v_ + slot * g_.block_keys * g_.ld_v,
                           p_.head_dim_v, g_.ld_v);
    micro_.add_weighted_rows[v.storage](rows, ld_v, place.cols, s, g_.block_keys, v.data, v.ld,
                                        state.o, g_.ld_v);  // (F10) O
  }

  /// body(place, scores) for each query head of the group.
  template <class Body>
  void for_heads(TilePlace place, float* s, const Body& body) const {
    for (std::int64_t head = 0; head < p_.group(); ++head, ++place.h) {
      body(place, s + head * place.rows * g_.block_keys);
    }
  }

  /// Rows of K or V of a block.
  struct Rows {
    const void* data;
    std::int64_t ld;
    int storage;
  };

  /// Where they lie, or as float32 in `scratch`.
  Rows keys_of(const Tensor& t, bool in_place, const TilePlace& place, float* scratch,
               std::int64_t dim, std::int64_t padded) const {
    const std::int64_t h = place.h / p_.group();
    if (in_place) {
      const std::int64_t at = offset_of(t, place.b, h, place.sequence.k_begin + place.j0);
      const auto* data = static_cast<const std::byte*>(t.data);
      return {data + at * dtype_bytes(t.dtype), t.strides[2], storage_of(t.dtype)};
    }
    load_keys(p_, t, place.b, place.sequence, h, place.j0, place.cols, static_cast<int>(dim),
              scratch, padded);
    return {scratch, padded, storage_of(DType::float32)};
  }

  /// O, m and l of a pair's splits into those of the first, in order; then the end of a forward.
  void join(std::int64_t pair) const {
    const std::int64_t b = pair / p_.heads_k;
    const Sequence sequence = p_.sequence(b);
    const std::int64_t rows = sequence.q_length * p_.group();
    if (rows == 0) return;
    const std::int64_t at = pair * g_.splits * g_.rows;
    float* o = o_ + at * g_.ld_v;
    float* m = m_ + at;
    float* l = l_ + at;
    for (std::int64_t row = 0; row < rows; ++row) join_row(row, m, l, o);
    for (std::int64_t head = 0; head < p_.group(); ++head) {
      const std::int64_t first = head * sequence.q_length;
      finish_rows(p_,
                  {sequence, b, pair % p_.heads_k * p_.group() + head, 0,
                   static_cast<int>(sequence.q_length)},
                  m + first, l + first, o + first * g_.ld_v, g_.ld_v);
    }
  }

  void join_row(std::int64_t row, float* m, float* l, float* o) const {
    float high = kNothing;
    for (std::int64_t split = 0; split < g_.splits; ++split) {
      high = std::max(high, m[split * g_.rows + row]);
    }
    const float shift = high == kNothing ? 0.0F : high;  // -inf - -inf would be NaN
    float* sum = o + row * g_.ld_v;
    for (std::int64_t split = 0; split < g_.splits; ++split) {
      const std::int64_t at = split * g_.rows + row;
      const float factor = std::exp(m[at] - shift);
      const float* part = o + at * g_.ld_v;
      const bool first = split == 0;
      l[row] = first ? factor * l[row] : l[row] + factor * l[at];
      for (std::int64_t c = 0; c < g_.ld_v; ++c) {
        sum[c] = first ? factor * sum[c] : sum[c] + factor * part[c];
      }
    }
    m[row] = high;
  }

  const Problem& p_;
  const Micro& micro_;
  Geometry g_;
  ScoreSteps steps_;
  Executor& executor_;
  float *o_, *m_, *l_, *q_, *s_, *k_, *v_;
};

}  // namespace

bool few_query_rows(const Problem& p) {
  return p.group() * p.seq_q <= kMaxRows && !takes_the_first(p);
}

void flash_decode(const KernelRow& row, const Problem& problem, const Context& context) {
  const Micro& m = micro(*static_cast<const Isa*>(row.config));
  Decode(problem, m, context).run();
}

Prepared flash_decode_prepared(const KernelRow& row, const Problem& problem,
                               const Hardware& machine) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  const Geometry g(problem, micro(isa), machine.threads);
  Cost cost;
  cost.block_m = static_cast<int>(g.rows);
  cost.block_n = static_cast<int>(g.block_keys);
  cost.splits = static_cast<int>(g.splits);
  cost.threads = machine.threads;
  cost.memory = workspace_items(g);
  predict_flash_time(problem, machine, isa, cost, CpuForm::decode);
  return {std::move(cost), remember(g)};
}

}  // namespace tilewise::cpu
