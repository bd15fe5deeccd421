#include "cpu/flash/tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/flash/flash.h"
#include "cpu/key_run.h"
#include "cpu/micro/bf16_micro.h"
#include "cpu/micro/elements.h"
#include "cpu/textbook/row_passes.h"
#include "plan/accounting.h"

namespace tilewise::cpu {

namespace {

/// Of a worker between two times when all wait for each other: idle ends stay short.
constexpr int kTasksPerWorker = 16;
/// Of a worker that takes pairs whole: cores that are not equally fast still share the work.
constexpr int kPairsPerWorker = 2;

/// The first `pairs`. A worker packs the keys of a pair that it attends to alone: they stay in its
/// cache, and nobody waits for anybody.
void run_pairs(Executor& executor, const ForwardTasks& tasks, std::int64_t pairs,
               std::int64_t per_pair,
               const std::function<void(std::int64_t pair, std::int64_t at, std::int64_t task,
                                        int slot)>& attend) {
  run_even_tasks(executor, tasks.workers, pairs, [&](std::int64_t pair, int slot) {
    for (std::int64_t block = 0; block < tasks.key_blocks; ++block)
      tasks.pack(pair, slot, block, slot);
    for (std::int64_t task = 0; task < per_pair; ++task) attend(pair, slot, task, slot);
  });
}

/// How many pairs workers take whole. All of few would leave workers idle at the end.
std::int64_t whole_pairs(const Problem& p, const ForwardTasks& tasks, std::int64_t at_a_time) {
  // Pairs that differ would leave a worker alone with the longest.
  if (!is_even(p) || at_a_time < tasks.workers) return 0;
  if (tasks.pairs < std::int64_t{kPairsPerWorker} * tasks.workers) return 0;
  const bool many = tasks.pairs >= std::int64_t{kTasksPerWorker} * tasks.workers;
  return many ? tasks.pairs : tasks.pairs / tasks.workers * tasks.workers;
}

}  // namespace

std::int64_t pairs_at_a_time(const Problem& p, std::int64_t tasks_per_pair, int workers) {
  const std::int64_t wanted = workers == 1 ? 1 : std::int64_t{kTasksPerWorker} * workers;
  return std::clamp<std::int64_t>(ceil_div(wanted, std::max<std::int64_t>(tasks_per_pair, 1)), 1,
                                  std::max<std::int64_t>(p.batch * p.heads_k, 1));
}

void run_tasks(Executor& executor, int workers, std::int64_t tasks,
               const std::function<void(std::int64_t task, int slot)>& body) {
  std::atomic<std::int64_t> next{0};
  const std::int64_t bodies = std::min<std::int64_t>(workers, tasks);
  executor.parallel_for(bodies, [&](std::int64_t slot, int /*worker*/) {
    for (std::int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
         task = next.fetch_add(1, std::memory_order_relaxed)) {
      body(task, static_cast<int>(slot));
    }
  });
}

bool is_even(const Problem& p) {
  return !p.packed && !p.key_lengths.defined() && !p.block_list.defined();
}

void run_even_tasks(Executor& executor, int workers, std::int64_t tasks,
                    const std::function<void(std::int64_t task, int slot)>& body) {
  constexpr std::int64_t kLeastOfRun = 4;
  const std::int64_t runs = std::int64_t{kTasksPerWorker} * workers;
  if (tasks < kLeastOfRun * runs) return run_tasks(executor, workers, tasks, body);
  run_tasks(executor, workers, runs, [&](std::int64_t run, int slot) {
    const std::int64_t end = (run + 1) * tasks / runs;
    for (std::int64_t task = run * tasks / runs; task < end; ++task) body(task, slot);
  });
}

void run_forward(const Problem& p, Executor& executor, const ForwardTasks& tasks) {
  // A caller's executor may have fewer threads than the plan: then fewer pairs stay in cache.
  const std::int64_t per_pair = p.group() * tasks.row_blocks;
  const std::int64_t at_a_time =
      pairs_at_a_time(p, per_pair, std::min(tasks.workers, executor.concurrency()));
  const auto attend = [&](std::int64_t pair, std::int64_t at, std::int64_t task, int slot) {
    const std::int64_t block = tasks.row_blocks - 1 - task % tasks.row_blocks;
    tasks.attend(pair, at, task / tasks.row_blocks, block, slot);
  };
  const std::int64_t whole = whole_pairs(p, tasks, at_a_time);
  run_pairs(executor, tasks, whole, per_pair, attend);
  for (std::int64_t first = whole; first < tasks.pairs; first += at_a_time) {
    const std::int64_t count = std::min(at_a_time, tasks.pairs - first);
    run_tasks(executor, tasks.workers, count * tasks.key_blocks, [&](std::int64_t task, int slot) {
      const std::int64_t at = task / tasks.key_blocks;
      tasks.pack(first + at, at, task % tasks.key_blocks, slot);
    });
    run_tasks(executor, tasks.workers, count * per_pair, [&](std::int64_t task, int slot) {
      const std::int64_t at = task / per_pair;
      attend(first + at, at, task % per_pair, slot);
    });
  }
}

void load_rows(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t first, int count,
               int cols, float* out, std::int64_t ld, float factor) {
  const RowPasses& passes = row_passes(best_isa());
  const std::int64_t at = offset_of(t, b, h, first);
  const bool floats = t.dtype == DType::float32 && t.strides[3] == 1;
  if (floats) {
    passes.scale_rows(count, cols, nullptr, factor, static_cast<const float*>(t.data) + at,
                      t.strides[2], out, ld);
  }
  for (int r = 0; r < count; ++r, out += ld) {
    if (!floats) {
      load_row(t, at + r * t.strides[2], t.strides[3], cols, out);
      if (factor != 1.0F) passes.scale(cols, factor, out, out);
    }
    std::fill(out + cols, out + ld, 0.0F);
  }
}

void store_rows(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t first, int count,
                int cols, float* in, std::int64_t ld, const float* row_factor, float factor) {
  const RowPasses& passes = row_passes(best_isa());
  const std::int64_t at = offset_of(t, b, h, first);
  if (t.dtype == DType::float32 && t.strides[3] == 1) {
    passes.scale_rows(count, cols, row_factor, factor, in, ld, static_cast<float*>(t.data) + at,
                      t.strides[2]);
    return;
  }
  for (int r = 0; r < count; ++r, in += ld) {
    const float f = row_factor != nullptr ? row_factor[r] * factor : factor;
    if (f != 1.0F) passes.scale(cols, f, in, in);
    store_row(t, at + r * t.strides[2], t.strides[3], cols, in);
  }
}

void load_keys(const Problem& p, const Tensor& pool, std::int64_t b, const Sequence& s,
               std::int64_t h, std::int64_t first, int count, int cols, float* out,
               std::int64_t ld) {
  for (int r = 0; r < count;) {
    const Problem::KeyRow at = p.key_row(b, s, first + r);
    const int run = key_run(p, first + r, count - r);
    load_rows(pool, at.batch, h, at.row, run, cols, out + r * ld, ld);
    r += run;
  }
}

bool whole_vectors(const Tensor& t, const Micro& micro) {
  return t.dtype == DType::float32 && t.strides[3] == 1 && t.sizes[3] % micro.lanes == 0;
}

const float* dense_rows(const Tensor& t, int lanes, std::int64_t b, std::int64_t h,
                        std::int64_t row) {
  const bool dense = t.strides[3] == 1 && t.strides[2] == t.sizes[3] && t.sizes[3] % lanes == 0;
  if (t.dtype != DType::float32 || !dense) return nullptr;
  return static_cast<const float*>(t.data) + offset_of(t, b, h, row);
}

void finish_statistics(const Problem& p, const RowBlock& block, const float* m, float* l) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const std::int64_t first = block.sequence.q_begin + block.i0;
  for (int r = 0; r < block.rows; ++r) {
    float high = m[r];
    float factor = 1.0F;
    if (p.sinks.defined()) {
      const float sink = static_cast<const float*>(p.sinks.data)[block.h * p.sinks.strides[0]];
      high = std::max(high, sink);
      if (high != kNothing) {
        factor = std::exp(m[r] - high);
        l[r] = l[r] * factor + std::exp(sink - high);
      }
    }
    if (p.lse.defined()) {
      static_cast<float*>(p.lse.data)[offset_of(p.lse, block.b, block.h, first + r)] =
          l[r] == 0.0F ? kNothing : high + std::log(l[r]);
    }
    l[r] = l[r] == 0.0F ? 0.0F : factor / l[r];  // nothing visible: O = 0
  }
}

void finish_rows(const Problem& p, const RowBlock& block, const float* m, float* l, float* o,
                 std::int64_t ld) {
  finish_statistics(p, block, m, l);
  store_rows(p.o, block.b, block.h, block.sequence.q_begin + block.i0, block.rows,
             static_cast<int>(p.head_dim_v), o, ld, l);
}

void pack_transposed(const Micro& micro, int count, int dim, const float* rows, std::int64_t ld,
                     float* panels, float factor) {
  const int wide = micro.panel_cols;
  for (int n = 0; n < count; n += wide, panels += static_cast<std::int64_t>(dim) * wide) {
    const int keys = std::min(wide, count - n);
    micro.transpose(keys, dim, rows + n * ld, ld, panels, wide, factor);
  }
}

void clear_rows_past_the_end(const Problem& p) {
  if (!p.packed) return;
  const Sequence last = p.batch > 0 ? p.sequence(p.batch - 1) : Sequence{};
  const auto clear = [](const Tensor& t, std::int64_t heads, std::int64_t from, std::int64_t to) {
    if (!t.defined()) return;
    const std::vector<float> zeros(static_cast<std::size_t>(t.sizes[3]), 0.0F);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = from; r < to; ++r) {
        store_row(t, offset_of(t, 0, h, r), t.strides[3], t.sizes[3], zeros.data());
      }
    }
  };
  const std::int64_t q_end = last.q_begin + last.q_length;
  const std::int64_t k_end = last.k_begin + last.k_length;
  if (p.pass == Pass::backward) {
    clear(p.dq, p.heads_q, q_end, p.total_q);
    clear(p.dk, p.heads_k, k_end, p.total_k);
    clear(p.dv, p.heads_k, k_end, p.total_k);
    return;
  }
  clear(p.o, p.heads_q, q_end, p.total_q);
  if (!p.lse.defined()) return;
  auto* lse = static_cast<float*>(p.lse.data);
  for (std::int64_t h = 0; h < p.heads_q; ++h) {
    for (std::int64_t r = q_end; r < p.total_q; ++r) {
      lse[offset_of(p.lse, 0, h, r)] = -std::numeric_limits<float>::infinity();
    }
  }
}

namespace {

/// Whether vdpbf16ps runs at the rate of a float32 multiply-add, not at half of it. Of a CPU that
/// is not here its maker tells: Intel's do not, with AMX or without.
bool has_fast_bf16(const Hardware& machine) {
  if (!machine.at_hand || best_isa() < Isa::avx512bf16)
    return machine.name.find("AMD") != std::string::npos;
  constexpr double kBetween = 1.5;
  static const bool fast = bf16_product_rate_avx512bf16() > kBetween;
  return fast;
}

/// q, k, v and o, in backward their gradients too.
double tensor_elements(const Problem& p) {
  const auto keys = static_cast<double>(p.packed_keys() ? p.total_k : p.batch * p.seq_k);
  const double rows = static_cast<double>(p.query_rows()) + keys * static_cast<double>(p.heads_k);
  const double passes = p.pass == Pass::backward ? 2.0 : 1.0;
  return passes * rows * static_cast<double>(p.head_dim + p.head_dim_v);
}

}  // namespace

CpuWork flash_work(const Problem& p, const Hardware& machine, Isa isa) {
  CpuWork work;
  work.pairs = visible_pairs(p);
  work.flops = attention_flops(p);
  work.rates = isa_rates(isa_name(isa), p.pass);
  // isa_rates() has those of a CPU whose vdpbf16ps is as fast as a float32 multiply-add.
  if (isa == Isa::avx512bf16 && !has_fast_bf16(machine)) work.rates = {0.5, 0.5};
  work.bytes = problem_bytes(p);
  const bool reads = flash_form(p, isa) == CpuForm::decode;
  if (!reads) work.copied = tensor_elements(p);
  if (dtype_bytes(p.dtype) == 2) work.widened = work.copied;
  work.starts = static_cast<double>(reads ? p.query_rows() : p.batch * p.heads_q);
  return work;
}

int threads_with_work(const Problem& p, const Hardware& machine) {
  // About 50 us of one thread. No rate of the machine counts, so that a plan made elsewhere for as
  // many threads has the same workspace.
  constexpr double kFlops = 3e6, kBytes = 256 << 10;
  const double flops = attention_flops(p, positional_pairs(p));
  const double parts = std::max(flops / kFlops, problem_bytes(p) / kBytes);
  const double most = std::max(1, machine.threads);
  return static_cast<int>(std::clamp(parts, 1.0, most));
}

std::vector<int> thread_counts(const Hardware& machine) {
  std::vector<int> counts;
  for (int count = 1; count < machine.threads; count *= 2) counts.push_back(count);
  counts.push_back(std::max(1, machine.threads));
  return counts;
}

std::vector<Form> cpu_forms(const Hardware& machine, std::initializer_list<int> blocks_m,
                            std::initializer_list<int> blocks_n) {
  std::vector<Form> forms;
  for (const int block_m : blocks_m) {
    for (const int block_n : blocks_n) {
      for (const int threads : thread_counts(machine)) {
        forms.push_back({block_m, block_n, 1, threads});
      }
    }
  }
  return forms;
}

void set_form(Cost& cost, const Form& form) {
  cost.block_m = form.block_m;
  cost.block_n = form.block_n;
  cost.splits = form.splits;
  cost.threads = form.threads;
}

void predict_flash_time(const Problem& p, const Hardware& machine, Isa isa, Cost& cost) {
  const CpuWork work = flash_work(p, machine, isa);
  cost.bytes_moved = work.bytes;
  cost.ms = cpu_time_ms(cpu_terms(flash_form(p, isa), p.pass), work, machine);
}

std::string tiled_refusal(const Problem& p, Isa isa, const Hardware& machine) {
  if (isa_from_name(machine.isa) < isa) return "the CPU has no " + std::string(isa_name(isa));
  if (p.dtype == DType::float64)
    return "float64 is not supported by this kernel (only by the reference)";
  if (p.head_dim > 4096 || p.head_dim_v > 4096)
    return "head dims above 4096 are not supported by this kernel";
  return "";
}

}  // namespace tilewise::cpu
