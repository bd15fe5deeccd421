/// FlashAttention-2 backward (Dao 2023, Algorithm 2) on the CPU. Schedule, memory and numbers:
/// flash_bwd.md.
///
/// delta = rowsum(dO * O) first; then tasks of (sequence, key head, split): for each of its blocks
/// of keys, over all query heads of the group and all blocks of query rows, P is recomputed from
/// LSE and the five products update dV, dK (owned by the task) and dQ (one float32 partial a split,
/// summed in order). Every sum has a fixed order, so the result is the same from run to run.
#include "cpu/flash/flash_bwd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/flash/bias_gradient.h"
#include "cpu/flash/flash.h"
#include "cpu/micro/elements.h"
#include "plan/batch_invariance.h"

namespace tilewise::cpu {
namespace {

constexpr int kMaxSplits = 16;
// Of a block of a list that has tiles of its own: a tile of two short blocks has their rows' union,
// of random lists nearly twice the pairs.
constexpr int kLeastKeys = 16;
constexpr int kCutKeys = 32;  // long blocks are cut at multiples of it
/// What parts of `deterministic` problems are made for, however many threads there are: parts
/// decide in which order dQ is summed. More threads than 2 kPlannedThreads may find no work where
/// a sequence has few key heads.
constexpr int kPlannedThreads = 16;

/// Parts of each pair's keys: two tasks a thread where there are fewer pairs than threads, else as
/// few as leave no quarter of the threads without work in the end.
int parts(std::int64_t pairs, std::int64_t most, int threads) {
  if (pairs < threads) {
    const std::int64_t wanted =
        ceil_div(std::int64_t{2} * threads, std::max<std::int64_t>(pairs, 1));
    return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, most));
  }
  for (int count = 1; count < most; ++count) {
    const std::int64_t tasks = pairs * count;
    if (4 * tasks >= 3 * round_up(tasks, threads)) return count;
  }
  return static_cast<int>(most);
}

}  // namespace

BackwardGeometry::BackwardGeometry(const Problem& p, const Micro& micro, int least_keys,
                                   int threads, int wanted)
    : keys(p.seq_k, kTileKeys, p.block_list.block_k, least_keys, kCutKeys) {
  ld_q = round_up(p.head_dim, micro.lanes);
  ld_v = round_up(p.head_dim_v, micro.lanes);
  pairs = p.batch * p.heads_k;
  workers = threads;
  // Packed: whatever the longest sequence has.
  const std::int64_t planned_pairs = p.deterministic ? p.heads_k : pairs;
  const std::int64_t most =
      takes_first_kernel(p) ? kMaxSplits : std::clamp<std::int64_t>(keys.count(), 1, kMaxSplits);
  // Those beyond the blocks there are would add zeros.
  const int planned_threads = p.deterministic ? kPlannedThreads : threads;
  splits = static_cast<int>(
      std::min<std::int64_t>(wanted > 0 ? wanted : parts(planned_pairs, most, planned_threads),
                             std::max<std::int64_t>(keys.count(), 1)));
  dq_elems = p.query_rows() * ld_q;
  capture_parts = CaptureGradients(p).parts(p.deterministic ? kPlannedThreads : threads);
}

Form backward_form(const Problem& p, const Micro& micro, int least_keys, const Hardware& machine) {
  const int threads = threads_with_work(p, machine);
  const BackwardGeometry g(p, micro, least_keys, threads);
  std::vector<Form> others;
  for (const int count : thread_counts(machine)) {
    for (int parts = 1; parts <= std::min<std::int64_t>(kMaxSplits, g.keys.count()); parts *= 2) {
      others.push_back({kTileRows, kTileKeys, parts, count});
    }
  }
  return form_of(p, {kTileRows, kTileKeys, g.splits, threads}, others);
}

Backward::Backward(const Problem& p, const Micro& micro, const Context& context,
                   WorkspaceCutter& cut)
    : p_(p),
      geometry_(context.decided<BackwardGeometry>()),
      tile_(p, micro),
      columns_(p),
      executor_(context.executor) {
  const BackwardGeometry& g = geometry_;
  delta_ = cut.take<float>(p.query_rows());
  lse_low_ = cut.take<float>(p.query_rows());
  dq_ = cut.take<float>(g.splits * g.dq_elems);
  gradients_ = cut.take<float>(g.workers * ((g.ld_q + g.ld_v) * kTileKeys));
  scratch_ = cut.take<float>(g.workers * tile_.scratch_elems());
  capture_sums_ = cut.take<double>(g.capture_parts * tile_.capture_gradients().elems());
  part_of_.assign(static_cast<std::size_t>(g.workers), 0);
}

void Backward::run() {
  const BackwardGeometry& g = geometry_;
  if (tile_.stores_bias_gradient()) clear_packed_bias_gradient(p_);
  if (g.splits == 1 && g.capture_parts == 0) {
    run_pairs();
  } else {
    for_query_blocks([&](const RowBlock& block, int slot) { begin_rows(block, slot); });
    run_key_blocks();
    for_query_blocks([&](const RowBlock& block, int) { finish_rows(block); });
  }
  if (p_.dsinks.defined()) sink_gradient();
  if (p_.dbias.defined() && !tile_.stores_bias_gradient()) {
    bias_gradient(p_, tile_, executor_, g.workers, known(0, 0, 0), scratch_);
  }
  clear_rows_past_the_end(p_);
}

/// What is known of rows before their keys.
void Backward::begin_rows(const RowBlock& block, int slot) const {
  prepare_rows(block);
  if (tile_.stores_bias_gradient()) clear_bias_gradient(block);
  const auto& [sequence, b, h, i0, rows] = block;
  const KeyRange coarse = tile_.rows_to_refine(b, h, sequence, i0, rows);
  if (!coarse.empty()) {
    ScoreTileStep::Scratch scratch = tile_scratch(slot);
    tile_.refine(b, h, sequence, coarse.begin, static_cast<int>(coarse.end - coarse.begin), scratch,
                 known(b, h, sequence.q_begin + coarse.begin));
  }
  pack_rows(block);
}

/// Tasks of whole pairs: what a worker knows of rows and sums to dQ stays in its cache.
void Backward::run_pairs() {
  const BackwardGeometry& g = geometry_;
  const auto run = is_even(p_) ? run_even_tasks : run_tasks;
  run(executor_, g.workers, g.pairs, [&](std::int64_t pair, int slot) {
    const auto for_rows = [&](const auto& body) {
      const std::int64_t blocks = ceil_div(p_.seq_q, kTileRows);
      for (std::int64_t at = 0; at < p_.group() * blocks; ++at) {
        const std::int64_t h = pair % p_.heads_k * p_.group() + at / blocks;
        query_block(pair / p_.heads_k, h, at % blocks, body);
      }
    };
    for_rows([&](const RowBlock& block) { begin_rows(block, slot); });
    for (std::int64_t block = 0; block < g.keys.count(); ++block)
      key_block_task(pair, block, 0, slot);
    for_rows([&](const RowBlock& block) { finish_rows(block); });
  });
}

/// Tasks of a pair and a split. With gradients of captured tensors a worker takes every n-th of
/// them, so that each of the n parts of their sums has an order of its own, whoever works on it.
void Backward::run_key_blocks() {
  const BackwardGeometry& g = geometry_;
  const std::int64_t tasks = g.pairs * g.splits;
  const auto run_task = [&](std::int64_t task, int slot) {
    for (std::int64_t block = task % g.splits; block < g.keys.count(); block += g.splits) {
      key_block_task(task / g.splits, block, static_cast<int>(task % g.splits), slot);
    }
  };
  if (g.capture_parts == 0) return run_tasks(executor_, g.workers, tasks, run_task);
  tile_.capture_gradients().clear(executor_, g.workers);
  run_tasks(executor_, g.workers, g.capture_parts, [&](std::int64_t part, int slot) {
    part_of_[static_cast<std::size_t>(slot)] = static_cast<int>(part);
    std::fill_n(capture_sums(static_cast<int>(part)), tile_.capture_gradients().elems(), 0.0);
    for (std::int64_t task = part; task < tasks; task += g.capture_parts) run_task(task, slot);
  });
  tile_.capture_gradients().finish(capture_sums_, g.capture_parts, executor_, g.workers);
}

std::vector<MemoryPart> Backward::workspace_items(const Problem& p, const Micro& micro,
                                                  const BackwardGeometry& g) {
  using Role = MemoryItem::Role;
  const std::initializer_list<std::int64_t> rows{p.stored_batch(), p.heads_q, p.total_q};
  return {memory_part("delta", Role::workspace, DType::float32, rows),
          memory_part("LSE, low part", Role::workspace, DType::float32, rows),
          memory_part("dQ partials", Role::workspace, DType::float32,
                      {g.splits * p.stored_batch(), p.heads_q, p.total_q, g.ld_q}),
          memory_part("dK, dV tiles", Role::workspace, DType::float32,
                      {g.workers, kTileKeys, g.ld_q + g.ld_v}),
          memory_part("tile scratch", Role::workspace, DType::float32,
                      {g.workers, ScoreTileStep(p, micro).scratch_elems()}),
          memory_part("sums of captures", Role::workspace, DType::float64,
                      {g.capture_parts, CaptureGradients(p).elems()})};
}

ScoreTileStep::Rows Backward::known(std::int64_t b, std::int64_t h, std::int64_t row) const {
  const std::int64_t at = p_.query_row(b, h, row);
  return {delta_ + at, lse_low_ + at};
}
float* Backward::dq_rows(int split, std::int64_t b, std::int64_t h, std::int64_t row) const {
  return dq_ + split * geometry_.dq_elems + p_.query_row(b, h, row) * geometry_.ld_q;
}

/// body(block) for a head's block of query rows, if its sequence is as long.
template <class Body>
void Backward::query_block(std::int64_t b, std::int64_t h, std::int64_t index,
                           const Body& body) const {
  const Sequence sequence = p_.sequence(b);
  const std::int64_t i0 = index * kTileRows;
  if (i0 >= sequence.q_length) return;
  const int rows = static_cast<int>(std::min<std::int64_t>(kTileRows, sequence.q_length - i0));
  body(RowBlock{sequence, b, h, i0, rows});
}

/// body(block, slot) for every block of query rows, in parallel.
template <class Body>
void Backward::for_query_blocks(const Body& body) const {
  const std::int64_t blocks = ceil_div(p_.seq_q, kTileRows);
  run_tasks(executor_, geometry_.workers, p_.batch * p_.heads_q * blocks,
            [&](std::int64_t task, int slot) {
              const std::int64_t head = task / blocks;
              query_block(head / p_.heads_q, head % p_.heads_q, task % blocks,
                          [&](const RowBlock& block) { body(block, slot); });
            });
}

/// (B2) delta = rowsum(dO * O), less dLSE, since dS = P * (dP - delta + dLSE); dQ partials start
/// at 0.
void Backward::prepare_rows(const RowBlock& block) const {
  const auto& [s, b, h, i0, rows] = block;
  constexpr int kChunk = 64;  // whole vectors of every set
  const Micro& micro = tile_.micro();
  const float keep = 1.0F;
  float o[kChunk];
  float d_o[kChunk];
  for (int r = 0; r < rows; ++r) {
    const std::int64_t row = s.q_begin + i0 + r;
    const std::int64_t o_at = offset_of(p_.o, b, h, row);
    const std::int64_t d_at = offset_of(p_.d_o, b, h, row);
    float sum = 0.0F;
    bool zero = true;
    for (std::int64_t c = 0; c < p_.head_dim_v; c += kChunk) {
      const std::int64_t count = std::min<std::int64_t>(kChunk, p_.head_dim_v - c);
      load_row(p_.o, o_at + c * p_.o.strides[3], p_.o.strides[3], count, o);
      load_row(p_.d_o, d_at + c * p_.d_o.strides[3], p_.d_o.strides[3], count, d_o);
      std::fill(o + count, o + kChunk, 0.0F);
      zero = zero && std::all_of(o, o + count, [](float value) { return value == 0.0F; });
      std::fill(d_o + count, d_o + kChunk, 0.0F);
      micro.add_row_dots(1, kChunk, o, d_o, kChunk, &keep, &sum);
    }
    const bool blind = zero && sees_nothing(b, h, row, std::isfinite(sum));
    if (blind) sum = 0.0F;
    if (p_.d_lse.defined() && !(blind && !p_.sinks.defined())) {
      sum -= static_cast<const float*>(p_.d_lse.data)[offset_of(p_.d_lse, b, h, row)];
    }
    delta_[p_.query_row(b, h, row)] = sum;
    lse_low_[p_.query_row(b, h, row)] = blind ? ScoreTileStep::kSeesNothing : 0.0F;
    for (int split = 0; split < geometry_.splits; ++split) {
      std::fill_n(dq_rows(split, b, h, row), geometry_.ld_q, 0.0F);
    }
  }
}

/// dbias = 0 where no tile may come to a pair: outside a row's visible range, or anywhere with a
/// list. Packed rows are cleared whole.
void Backward::clear_bias_gradient(const RowBlock& block) const {
  if (p_.packed) return;
  const auto& [s, b, h, i0, rows] = block;
  const Tensor& t = p_.dbias;
  const std::int64_t stride = t.strides[3];
  const std::vector<float> zeros(static_cast<std::size_t>(p_.seq_k), 0.0F);
  for (std::int64_t i = i0; i < i0 + rows; ++i) {
    const std::int64_t row = offset_of(t, b, h, s.q_begin + i);
    const KeyRange seen =
        p_.block_list.defined() ? KeyRange{p_.seq_k, p_.seq_k} : p_.visible_keys(s, i);
    const std::int64_t begin = std::clamp<std::int64_t>(seen.begin, 0, p_.seq_k);
    const std::int64_t end = std::clamp<std::int64_t>(seen.end, begin, p_.seq_k);
    store_row(t, row, stride, begin, zeros.data());
    store_row(t, row + end * stride, stride, p_.seq_k - end, zeros.data());
  }
}

/// Of a row whose O is 0: true where LSE says that it sees no key. With a sink LSE is the sink's
/// then, as where P rounds to nothing beside it: that makes a difference to a row whose dO or Q is
/// finite, and only a row where one is not (dO: `finite`) is said to see nothing.
bool Backward::sees_nothing(std::int64_t b, std::int64_t h, std::int64_t row, bool finite) const {
  const float lse = static_cast<const float*>(p_.lse.data)[offset_of(p_.lse, b, h, row)];
  if (lse == -std::numeric_limits<float>::infinity()) return true;
  if (!p_.sinks.defined()) return false;
  if (lse != static_cast<const float*>(p_.sinks.data)[h * p_.sinks.strides[0]]) return false;
  std::vector<float> q(static_cast<std::size_t>(p_.head_dim));
  load_row(p_.q, offset_of(p_.q, b, h, row), p_.q.strides[3], p_.head_dim, q.data());
  return !finite || !tile_.micro().all_finite(p_.head_dim, q.data());
}

/// One block of keys of one (sequence, key head): dK, dV whole, dQ's share added to the split's
/// partial.
void Backward::key_block_task(std::int64_t pair, std::int64_t block, int split, int slot) const {
  const std::int64_t b = pair / p_.heads_k;
  const std::int64_t h_k = pair % p_.heads_k;
  const Sequence sequence = p_.sequence(b);
  const BackwardGeometry& g = geometry_;
  const std::int64_t j0 = g.keys.at(block).begin;
  const std::int64_t most = g.keys.at(block).end - j0;
  const std::int64_t rows = p_.key_rows(sequence);
  if (j0 >= rows) return;
  const int keys = static_cast<int>(std::clamp<std::int64_t>(sequence.k_length - j0, 0, most));
  float* dk = gradients_ + slot * ((g.ld_q + g.ld_v) * kTileKeys);
  float* dv = dk + kTileKeys * g.ld_q;
  const int stored = static_cast<int>(std::min(most, rows - j0));
  std::fill_n(dk, stored * g.ld_q, 0.0F);
  std::fill_n(dv, stored * g.ld_v, 0.0F);
  if (keys > 0) key_block({sequence, b, h_k, j0, keys, split}, slot, dk, dv);
  store_rows(p_.dk, b, h_k, sequence.k_begin + j0, stored, static_cast<int>(p_.head_dim), dk,
             g.ld_q, nullptr);
  store_rows(p_.dv, b, h_k, sequence.k_begin + j0, stored, static_cast<int>(p_.head_dim_v), dv,
             g.ld_v, nullptr);
}

/// Query rows that may see one of the block's keys.
KeyRange Backward::rows_that_see(const KeyBlock& block) const {
  // Both ends of a row's visible range move to the right with the row.
  const auto first_row = [&](const auto& reached) {
    std::int64_t low = 0;
    std::int64_t high = block.sequence.q_length;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (reached(p_.visible_keys(block.sequence, middle))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  return {first_row([&, first = block.j0](const KeyRange& seen) { return seen.end > first; }),
          first_row([&, end = block.j0 + block.keys](const KeyRange& seen) {
            return seen.begin >= end;
          })};
}

/// dQ = sum of the partials, in their order.
void Backward::finish_rows(const RowBlock& block) const {
  const auto& [s, b, h, i0, rows] = block;
  float* sum = dq_rows(0, b, h, s.q_begin + i0);
  for (int split = 1; split < geometry_.splits; ++split) {
    const float* partial = dq_rows(split, b, h, s.q_begin + i0);
    for (std::int64_t i = 0; i < rows * geometry_.ld_q; ++i) sum[i] += partial[i];
  }
  store_rows(p_.dq, b, h, s.q_begin + i0, rows, static_cast<int>(p_.head_dim), sum, geometry_.ld_q,
             nullptr);
}

/// (B10) dsink_h = -sum over rows of exp(sink - LSE) * delta.
void Backward::sink_gradient() const {
  const auto* sinks = static_cast<const float*>(p_.sinks.data);
  const auto* lse = static_cast<const float*>(p_.lse.data);
  for (std::int64_t h = 0; h < p_.heads_q; ++h) {
    const float sink = sinks[h * p_.sinks.strides[0]];
    const bool takes_nothing = sink == -std::numeric_limits<float>::infinity();
    double sum = 0.0;
    for (std::int64_t b = 0; b < p_.batch && !takes_nothing; ++b) {
      const Sequence s = p_.sequence(b);
      for (std::int64_t row = s.q_begin; row < s.q_begin + s.q_length; ++row) {
        const float x = sink - lse[offset_of(p_.lse, b, h, row)];
        const float low = lse_low_[p_.query_row(b, h, row)];
        const float rest = low == ScoreTileStep::kSeesNothing ? 0.0F : low;
        sum -= std::exp(std::min(x - rest, 0.0F)) * delta_[p_.query_row(b, h, row)];
      }
    }
    static_cast<float*>(p_.dsinks.data)[h * p_.dsinks.strides[0]] = static_cast<float>(sum);
  }
}

namespace {

/// Tiles in float32: every product and sum.
class Float32Backward final : public Backward {
 public:
  Float32Backward(const Problem& p, const Micro& micro, const Context& context,
                  WorkspaceCutter& cut)
      : Backward(p, micro, context, cut) {}

 private:
  void key_block(const KeyBlock& block, int slot, float* dk, float* dv) const override {
    const Micro& micro = tile_.micro();
    const auto ld_q = static_cast<int>(geometry_.ld_q);
    const auto ld_v = static_cast<int>(geometry_.ld_v);
    ScoreTileStep::Scratch scratch = tile_scratch(slot);
    tile_.load_keys_of(block.b, block.sequence, block.h_k, block.j0, block.keys, scratch);
    for (std::int64_t head = 0; head < p_.group(); ++head) {
      for_tiles(block, head, kBoundaryRows, false, [&](const TilePlace& at) {
        const std::int64_t row = at.sequence.q_begin + at.i0;
        if (!tile_.gradient(at, known(at.b, at.h, row), scratch)) return;
        // (B3) dV += P^T dO; (B9) dK += dS^T Q; (B8) dQ += dS K. Scale is in dS.
        micro.gemm(at.cols, ld_v, at.rows, scratch.dropped, 1, kTileKeys, scratch.d_o, ld_v, dv,
                   ld_v, true);
        micro.gemm(at.cols, ld_q, at.rows, scratch.ds, 1, kTileKeys, scratch.q, ld_q, dk, ld_q,
                   true);
        micro.gemm(at.rows, ld_q, at.cols, scratch.ds, kTileKeys, 1, scratch.k, ld_q,
                   dq_rows(block.split, at.b, at.h, row), ld_q, true);
      });
    }
  }
};

}  // namespace

void flash_backward(const KernelRow& row, const Problem& problem, const Context& context) {
  const Micro& m = micro(*static_cast<const Isa*>(row.config));
  WorkspaceCutter cut(context.workspace);
  Float32Backward(problem, m, context, cut).run();
}

Prepared flash_backward_prepared(const KernelRow& row, const Problem& problem,
                                 const Hardware& machine) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  const Form form = backward_form(problem, micro(isa), kLeastKeys, machine);
  const BackwardGeometry g(problem, micro(isa), kLeastKeys, form.threads, form.splits);
  Cost cost;
  set_form(cost, form);
  cost.memory = Backward::workspace_items(problem, micro(isa), g);
  predict_flash_time(problem, machine, isa, cost);
  return {std::move(cost), remember(g)};
}

}  // namespace tilewise::cpu
