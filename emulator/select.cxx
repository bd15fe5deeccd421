/// select on the emulator, against the selection of the CPU: rules, statistics, causal rows,
/// lengths, ragged blocks, grouped heads; a list and a mask.
#include "cuda/kernels/rows/select.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/kernels/rows/select_tokens.cuh"

namespace tilewise::select {
alignas(1024) unsigned char memory[256 * 1024];
}

namespace {

using namespace tilewise;

int failures = 0;

struct Case {
  const char* name;
  BlockSelection by;
  std::int64_t heads_q = 4, heads_k = 2, seq_q = 300, seq_k = 330, dim = 40;
  bool lengths = false;
  bool infinite = false;  ///< scores of two keys
};

template <class Kernel>
void run_grid(std::int64_t blocks, int threads, Kernel kernel) {
  emulator::shared_base = select::memory;
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::memset(select::memory, 0xff, sizeof(select::memory));
    emulator::run_block(static_cast<unsigned>(b), static_cast<unsigned>(threads), kernel);
  }
}

void check(Case c) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.5F, 1.0F);
  constexpr std::int64_t kBatch = 2;
  std::vector<float> q(static_cast<std::size_t>(kBatch * c.heads_q * c.seq_q * c.dim));
  std::vector<float> k(static_cast<std::size_t>(kBatch * c.heads_k * c.seq_k * c.dim));
  for (std::vector<float>* x : {&q, &k}) {
    for (float& value : *x) value = normal(random);
  }
  for (std::int64_t head = 0; c.infinite && head < kBatch * c.heads_k; ++head) {
    for (const std::int64_t key : {40, 200}) {
      k[static_cast<std::size_t>((head * c.seq_k + key) * c.dim)] = INFINITY;
    }
  }
  std::vector<int> lengths = {static_cast<int>(c.seq_k), 77};
  if (c.lengths) c.by.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {kBatch});
  const Tensor tq =
      Tensor::contiguous(q.data(), DType::float32, {kBatch, c.heads_q, c.seq_q, c.dim});
  const Tensor tk =
      Tensor::contiguous(k.data(), DType::float32, {kBatch, c.heads_k, c.seq_k, c.dim});
  const selection::Shape s = selection::make_shape(tq, tk, c.by);
  const auto count = static_cast<std::size_t>(s.all_rows() * s.columns);
  std::vector<unsigned char> expected(count, 7), mask(count, 7);
  selection::select_on_cpu(s, c.by, {.mask = expected.data()}, default_executor());
  std::vector<int> offsets(static_cast<std::size_t>(s.batch * s.heads_q * (s.rows + 1)), -1);
  std::vector<int> index(static_cast<std::size_t>(selected_blocks_bound(tq, tk, c.by)), -1);
  for (const bool list : {false, true}) {
    const selection::Target to = {.row_offsets = list ? offsets.data() : nullptr,
                                  .block_index = list ? index.data() : nullptr,
                                  .mask = list ? nullptr : mask.data()};
    std::vector<unsigned char> workspace(
        static_cast<std::size_t>(cuda::select_workspace(s, c.by, to)), 0xff);
    const cuda::SelectSteps steps = cuda::select_steps(s, c.by, to, workspace.data());
    constexpr select::Config kConfig = {select::Type::float32};
    if (c.by.scorer == BlockScorer::pooled) {
      run_grid(steps.rows, select::kThreads, [&] { select::pool<kConfig>(steps.of_q); });
      run_grid(steps.key_blocks, select::kThreads, [&] { select::pool<kConfig>(steps.of_k); });
      run_grid(steps.rows, select::kThreads, [&] { select::kernel<kConfig>(steps.choice); });
    } else if (c.by.scorer == BlockScorer::antidiagonal) {
      run_grid(steps.scorer_blocks, select::kThreads,
               [&] { select::antidiagonals<kConfig>(steps.scorer); });
      run_grid(steps.rows, select::kThreads, [&] { select::scored<kConfig>(steps.choice); });
    } else {
      run_grid(steps.scorer_blocks, select::kThreads,
               [&] { select::lines<kConfig>(steps.scorer); });
      run_grid(s.batch * s.heads_q, select::kThreads,
               [&] { select::pick_lines<kConfig>(steps.choice); });
      run_grid(steps.rows, select::kThreads, [&] { select::scored<kConfig>(steps.choice); });
    }
    if (!list) continue;
    run_grid(1, select::kScanThreads, [&] { select::scan<kConfig>(steps.list); });
    run_grid(steps.list_blocks, select::kThreads, [&] { select::scatter<kConfig>(steps.list); });
  }
  std::size_t off = 0, taken = 0;
  std::vector<unsigned char> listed(count, 0);
  for (std::int64_t pair = 0; pair < s.batch * s.heads_q; ++pair) {
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const int* at = offsets.data() + pair * (s.rows + 1) + row;
      for (int n = at[0]; n < at[1]; ++n) listed[(pair * s.rows + row) * s.columns + index[n]] = 1;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    off += mask[i] != expected[i] || listed[i] != expected[i] ? 1 : 0;
    taken += expected[i];
  }
  const bool good = off == 0 && taken > 0 && taken < count;
  std::printf("%s %s: %zu of %zu taken, %zu differ\n", good ? "ok" : "FAILED", c.name, taken, count,
              off);
  failures += good ? 0 : 1;
}

void check_pooled() {
  check({"top 2", {.block_q = 32, .block_k = 32, .count = 2}});
  check({"top 3, causal, lengths, grouped",
         {.block_q = 32, .block_k = 16, .causal = true, .count = 3},
         4,
         1,
         200,
         260,
         64,
         true});
  check({"half of the mass, all statistics",
         {.block_q = 64,
          .block_k = 16,
          .weights = {.mean = 0.5, .maximum = 0.2, .minimum = 0.1, .variance = 0.3},
          .rule = BlockRule::mass,
          .mass = 0.5,
          .keep_diagonal = false,
          .keep_first = false}});
  check(
      {"above a threshold, causal",
       {.block_q = 20, .block_k = 30, .causal = true, .rule = BlockRule::above, .threshold = 0.1}});
  check({"infinite scores share the mass",
         {.block_q = 64, .block_k = 16, .rule = BlockRule::mass, .mass = 0.7},
         4,
         2,
         300,
         330,
         40,
         false,
         true});
  check({"infinite scores above a threshold",
         {.block_q = 64, .block_k = 16, .rule = BlockRule::above, .threshold = 0.1},
         4,
         2,
         300,
         330,
         40,
         false,
         true});
  check({"more columns than a word",
         {.block_q = 100, .block_k = 8, .count = 5, .keep_diagonal = false},
         2,
         2,
         300,
         700,
         24,
         true});
}

void check_other_scorers() {
  check({"antidiagonals, top 2, causal, lengths, grouped",
         {.block_q = 32,
          .block_k = 16,
          .causal = true,
          .count = 2,
          .scorer = BlockScorer::antidiagonal,
          .stride = 8},
         2,
         1,
         70,
         90,
         16,
         true});
  check({"antidiagonals, half of the mass",
         {.block_q = 16,
          .block_k = 24,
          .rule = BlockRule::mass,
          .mass = 0.5,
          .keep_first = false,
          .scorer = BlockScorer::antidiagonal,
          .stride = 4},
         2,
         2,
         50,
         90,
         16});
  check({"lines, top 1, causal, lengths, grouped",
         {.block_q = 32,
          .block_k = 16,
          .causal = true,
          .count = 1,
          .scorer = BlockScorer::vertical_slash},
         2,
         1,
         70,
         90,
         16,
         true});
  check({"lines, some of the mass",
         {.block_q = 16,
          .block_k = 24,
          .rule = BlockRule::mass,
          .mass = 0.25,
          .keep_diagonal = false,
          .keep_first = false,
          .scorer = BlockScorer::vertical_slash},
         2,
         2,
         50,
         130,
         16});
}

}  // namespace

int main() {
  check_pooled();
  check_other_scorers();
  return failures == 0 ? 0 : 1;
}
