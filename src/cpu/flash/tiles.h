/// What the tiled CPU kernels share: padded sizes, workers with scratch, packing of rows into
/// float32.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "cpu/micro/micro.h"
#include "plan/forms.h"
#include "plan/kernel_row.h"
#include "plan/time_model.h"
#include "problem/blocks.h"

namespace tilewise::cpu {

/// Floats of one worker's scratch, so that what the prefetchers fetch past its end is not the next
/// worker's: between cores without a common cache, writing what another has a copy of waits 0.3 us.
constexpr std::int64_t own_pages(std::int64_t elems) {
  constexpr std::int64_t kPageElems = 4096 / sizeof(float);
  return round_up(elems, kPageElems) + kPageElems;
}

/// How many (sequence, key head) pairs a forward packs before it attends to them: as few as keep
/// every worker busy, so that what is packed is read while it is in cache.
std::int64_t pairs_at_a_time(const Problem& p, std::int64_t tasks_per_pair, int workers);

/// Runs `tasks` on at most `workers` bodies at a time; `slot` in [0, workers) names the body's
/// scratch. Lower tasks start first.
void run_tasks(Executor& executor, int workers, std::int64_t tasks,
               const std::function<void(std::int64_t task, int slot)>& body);

/// True when pairs of a sequence and a key head take about as long each.
bool is_even(const Problem& p);

/// The same for tasks that take about as long each: where there are many, a worker takes runs of
/// tasks that lie behind each other, whose memory comes faster.
void run_even_tasks(Executor& executor, int workers, std::int64_t tasks,
                    const std::function<void(std::int64_t task, int slot)>& body);

/// A forward's tasks. `at` counts the pairs (sequence, key head) that are packed at a time, `head`
/// the query heads of a pair.
struct ForwardTasks {
  std::int64_t pairs, key_blocks;  ///< blocks of keys of a pair
  std::int64_t row_blocks;         ///< blocks of queries of a head
  int workers;
  std::function<void(std::int64_t pair, std::int64_t at, std::int64_t block, int slot)> pack;
  std::function<void(std::int64_t pair, std::int64_t at, std::int64_t head, std::int64_t block,
                     int slot)>
      attend;
};

/// Packs the keys of as many pairs as stay in cache, then lets their queries attend, and so on.
/// Causal rows near the end see most keys: last blocks first, so that the longest tasks are.
void run_forward(const Problem& p, Executor& executor, const ForwardTasks& tasks);

/// Rows first .. first + count - 1 of (b, h) of `t` along its S axis, as float32 with `cols`
/// columns padded with zeros to `ld`; times `factor`.
void load_rows(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t first, int count,
               int cols, float* out, std::int64_t ld, float factor = 1.0F);

/// The way back: row r of `in` times row_factor[r] (null = 1) times `factor`.
void store_rows(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t first, int count,
                int cols, float* in, std::int64_t ld, const float* row_factor, float factor = 1.0F);

/// Keys first .. first + count - 1 of a sequence for key head h: like load_rows, through the page
/// table when there is one.
void load_keys(const Problem& p, const Tensor& pool, std::int64_t b, const Sequence& s,
               std::int64_t h, std::int64_t first, int count, int cols, float* out,
               std::int64_t ld);

/// True when rows of `t` can be read as whole vectors where they lie.
bool whole_vectors(const Tensor& t, const Micro& micro);

/// Row `row` of (b, h) of `t` and those after it where they lie, if they are float32 without gaps
/// and `lanes` divides their length; else null.
const float* dense_rows(const Tensor& t, int lanes, std::int64_t b, std::int64_t h,
                        std::int64_t row);

/// Query rows i0 .. i0 + rows - 1 of head h of sequence b.
struct RowBlock {
  const Sequence& sequence;
  std::int64_t b, h, i0;
  int rows;
};

/// LSE = m + log l; a sink adds its share to l. (F11) l becomes what O's rows are multiplied by.
void finish_statistics(const Problem& p, const RowBlock& block, const float* m, float* l);

/// End of a forward: finish_statistics(), and O = diag(1 / l) O.
void finish_rows(const Problem& p, const RowBlock& block, const float* m, float* l, float* o,
                 std::int64_t ld);

/// K^T or V^T times `factor` in column panels: panel n of `micro.panel_cols` keys holds dim x
/// panel_cols floats. Keys past `count` are zero up to a whole vector.
void pack_transposed(const Micro& micro, int count, int dim, const float* rows, std::int64_t ld,
                     float* panels, float factor = 1.0F);

/// Rows of O, LSE or gradients that belong to no sequence of a packed batch: O = 0, LSE = -inf,
/// gradients 0.
void clear_rows_past_the_end(const Problem& p);

/// Reason of a refusal that all tiled CPU kernels share; empty when there is none.
std::string tiled_refusal(const Problem& p, Isa isa, const Hardware& machine);

/// Threads of the machine that a tiled kernel has work for: waking one costs microseconds, and a
/// call that takes few is done sooner without.
int threads_with_work(const Problem& p, const Hardware& machine);

/// Numbers of threads that are worth measuring: powers of two, and all.
std::vector<int> thread_counts(const Hardware& machine);
/// Forms of all combinations, each with every one of thread_counts().
std::vector<Form> cpu_forms(const Hardware& machine, std::initializer_list<int> blocks_m,
                            std::initializer_list<int> blocks_n);
void set_form(Cost& cost, const Form& form);

/// Fills cost.ms and cost.bytes_moved of a tiled kernel: arithmetic at the set's rate beside one
/// reading of the tensors, and the cost of starting the parallel regions.
void predict_flash_time(const Problem& p, const Hardware& machine, Isa isa, Cost& cost);

}  // namespace tilewise::cpu
