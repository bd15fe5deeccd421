#include "cuda/kernels/rows/select.h"

#include <string>

#include "cuda/driver/device.h"
#include "cuda/driver/launch.h"
#include "cuda/host/common.h"
#include "cuda/kernels/rows/select_args.h"
#include "plan/kernel_row.h"
#include "problem/blocks.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

using select::Args;
using select::Config;
using select::ListArgs;
using select::PoolArgs;
using selection::Shape;

select::Type type_of(DType dtype) {
  return dtype == DType::bfloat16  ? select::Type::bf16
         : dtype == DType::float16 ? select::Type::fp16
                                   : select::Type::float32;
}

}  // namespace

KernelUnit select_unit(const Config& config, const char* entry, const char* args, int threads,
                       int shared_bytes, const char* file) {
  return {
      .stem = "select",
      .file = file,
      .config = ".type = static_cast<Type>(" + std::to_string(static_cast<int>(config.type)) + ")",
      .threads = threads,
      .shared_bytes = shared_bytes,
      .entry = entry,
      .args = args};
}

namespace {

void check(const Shape& s, const BlockSelection& by) {
  const auto refuse = [](const std::string& what) {
    throw Unsupported("select_blocks on a GPU: " + what + " are not supported");
  };
  if (s.q.dtype == DType::float64) refuse("float64 tensors");
  if (s.head_dim > select::kMostDim) refuse("head dims above " + std::to_string(select::kMostDim));
  if (s.columns > select::kMostColumns)
    refuse("more than " + std::to_string(select::kMostColumns) + " blocks of keys");
  if (by.scorer == BlockScorer::antidiagonal) {
    if (ceil_div(s.seq_k, by.stride) > select::kMostTiles)
      refuse("more than " + std::to_string(select::kMostTiles) + " strides of keys");
    if (by.stride * s.head_dim > select::kMostTileElems)
      refuse("strides of more than " + std::to_string(select::kMostTileElems) + " elements");
  }
  if (s.all_rows() > std::int64_t{1} << 30 || s.batch * s.heads_k * s.columns > std::int64_t{1}
                                                                                    << 30)
    refuse("more than 2^30 blocks");
}

/// Memory of a call, given back behind it on the stream.
class Scratch {
 public:
  Scratch(std::int64_t bytes, Device device, const Launch& launch)
      : launch_(launch), device_(device), bytes_(bytes) {
    if (launch.workspace != nullptr && launch.workspace_bytes >= bytes) {
      data_ = launch.workspace;
      return;
    }
    allocator_ = launch.allocator != nullptr ? launch.allocator : &default_allocator();
    data_ = allocator_->allocate(bytes, device, launch.stream);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (allocator_ != nullptr) allocator_->release(data_, bytes_, device_, launch_.stream);
  }
  void* data() const { return data_; }

 private:
  const Launch& launch_;
  Device device_;
  std::int64_t bytes_;
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace

namespace {

/// Floats and bytes of a scorer that looks at tokens.
std::int64_t scores_of(const Shape& s, const BlockSelection& by) {
  if (by.scorer == BlockScorer::antidiagonal) return s.all_rows() * s.columns;
  const selection::Lines lines(s, by);
  return s.batch * s.heads_q * lines.queries * lines.all();
}
std::int64_t flags_of(const Shape& s, const BlockSelection& by) {
  return s.batch * s.heads_q * selection::Lines(s, by).all();
}
int power_from(std::int64_t bytes) {
  int power = 4096;  // kernels are told apart by it
  while (power < bytes) power *= 2;
  return power;
}

/// Columns of all statistics whose weight is not 0.
std::int64_t features_of(const Shape& s, const BlockSelection& by) {
  const PoolWeights& w = by.weights;
  std::int64_t statistics = 0;
  for (const double weight : {w.mean, w.maximum, w.minimum, w.variance})
    statistics += weight != 0.0 ? 1 : 0;
  return statistics * s.head_dim;
}

}  // namespace

std::int64_t select_workspace(const Shape& s, const BlockSelection& by,
                              const selection::Target& to) {
  const std::int64_t features = features_of(s, by), rows = s.all_rows();
  std::int64_t bytes =
      by.scorer == BlockScorer::pooled
          ? align_workspace(rows * features * 4) +
                align_workspace(s.batch * s.heads_k * s.columns * features * 4)
          : align_workspace(scores_of(s, by) * 4) + align_workspace(flags_of(s, by));
  if (to.mask == nullptr)
    bytes += align_workspace(rows * ceil_div(s.columns, 32) * 4) + align_workspace(rows * 4);
  return std::max<std::int64_t>(bytes, 256);
}

namespace {

void add_scorer(const Shape& s, const BlockSelection& by, WorkspaceCutter& cutter,
                SelectSteps& steps) {
  const selection::Lines lines(s, by);
  select::ScorerArgs& scorer = steps.scorer;
  Args& args = steps.choice;
  scorer.q = steps.of_q.from;
  scorer.k = steps.of_k.from;
  scorer.scale = static_cast<float>(s.scale);
  scorer.heads_q = args.heads_q;
  scorer.group = args.group;
  scorer.rows = args.rows;
  scorer.columns = args.columns;
  scorer.head_dim = static_cast<int>(s.head_dim);
  scorer.seq_q = args.seq_q;
  scorer.seq_k = args.seq_k;
  scorer.block_q = args.block_q;
  scorer.block_k = args.block_k;
  scorer.lengths = args.lengths;
  scorer.lengths_b = args.lengths_b;
  scorer.causal = args.causal;
  constexpr int kWarps = select::kThreads / 32;
  scorer.to = cutter.take<float>(scores_of(s, by));
  if (by.scorer == BlockScorer::antidiagonal) {
    scorer.stride = static_cast<int>(by.stride);
    args.scores = scorer.to;
    steps.scorer_blocks = steps.rows;
    steps.scorer_shared_bytes = power_from(
        4 * (ceil_div(s.seq_k, by.stride) + by.stride * s.head_dim + s.columns + kWarps));
    return;
  }
  scorer.queries = args.queries = static_cast<int>(lines.queries);
  args.lines = scorer.to;
  args.line = cutter.take<unsigned char>(flags_of(s, by));
  steps.scorer_blocks = s.batch * s.heads_q * lines.queries;
  steps.scorer_shared_bytes = power_from(4 * (lines.all() + s.head_dim + kWarps));
}

}  // namespace

SelectSteps select_steps(const Shape& s, const BlockSelection& by, const selection::Target& to,
                         void* workspace) {
  SelectSteps steps;
  steps.config = {type_of(s.q.dtype)};
  const std::int64_t features = features_of(s, by), words = ceil_div(s.columns, 32);
  steps.rows = s.all_rows();
  steps.key_blocks = s.batch * s.heads_k * s.columns;
  WorkspaceCutter cutter(workspace);
  PoolArgs &of_q = steps.of_q, &of_k = steps.of_k;
  const PoolWeights& w = by.weights;
  const double weights[select::kStatistics] = {w.mean, w.maximum, w.minimum, w.variance};
  for (int n = 0; n < select::kStatistics; ++n) {
    if (weights[n] == 0.0) continue;
    of_q.factor[n] = static_cast<float>(weights[n] * s.scale);
    of_k.factor[n] = 1.0F;
    // NOTE: a factor of 0 says that there is no such feature.
    if (of_q.factor[n] == 0.0F) of_q.factor[n] = 1e-38F;
  }
  of_q.from = host::view4(s.q);
  of_k.from = host::view4(s.k);
  for (PoolArgs* args : {&of_q, &of_k}) {
    args->head_dim = static_cast<int>(s.head_dim);
    args->features = static_cast<int>(features);
  }
  const bool pools = by.scorer == BlockScorer::pooled;
  if (pools) of_q.to = cutter.take<float>(steps.rows * features);
  of_q.heads = static_cast<int>(s.heads_q);
  of_q.tokens = static_cast<int>(s.seq_q);
  of_q.block = static_cast<int>(by.block_q);
  of_q.blocks = static_cast<int>(s.rows);
  if (pools) of_k.to = cutter.take<float>(steps.key_blocks * features);
  of_k.heads = static_cast<int>(s.heads_k);
  of_k.tokens = static_cast<int>(s.seq_k);
  of_k.block = static_cast<int>(by.block_k);
  of_k.blocks = static_cast<int>(s.columns);
  Args& args = steps.choice;
  if (by.key_lengths.defined()) {
    args.lengths = of_k.lengths = static_cast<const int*>(by.key_lengths.data);
    args.lengths_b = of_k.lengths_b = by.key_lengths.strides[0];
  }
  args.q = of_q.to;
  args.k = of_k.to;
  args.heads_q = static_cast<int>(s.heads_q);
  args.group = static_cast<int>(s.heads_q / s.heads_k);
  args.rows = static_cast<int>(s.rows);
  args.columns = static_cast<int>(s.columns);
  args.features = static_cast<int>(features);
  args.seq_q = static_cast<int>(s.seq_q);
  args.seq_k = static_cast<int>(s.seq_k);
  args.block_q = static_cast<int>(by.block_q);
  args.block_k = static_cast<int>(by.block_k);
  args.causal = by.causal;
  args.keep_diagonal = by.keep_diagonal;
  args.keep_first = by.keep_first;
  args.rule = static_cast<select::Rule>(by.rule);
  args.count = static_cast<int>(std::min(by.count, s.columns));
  args.mass = static_cast<float>(by.mass);
  args.threshold = static_cast<float>(by.threshold);
  args.words = static_cast<int>(words);
  args.mask = to.mask;
  constexpr int kWarps = select::kThreads / 32;
  steps.shared_bytes = power_from(4 * (s.columns + (pools ? features : 0) + kWarps));
  if (!pools) add_scorer(s, by, cutter, steps);
  if (to.mask != nullptr) return steps;
  args.bits = cutter.take<unsigned>(steps.rows * words);
  args.counts = cutter.take<int>(steps.rows);
  ListArgs& list = steps.list;
  list.bits = args.bits;
  list.counts = args.counts;
  list.row_offsets = to.row_offsets;
  list.block_index = to.block_index;
  list.heads = static_cast<int>(s.batch * s.heads_q);
  list.rows = args.rows;
  list.words = args.words;
  steps.list_blocks = ceil_div(steps.rows, select::kThreads / 32);
  return steps;
}

void select_on_gpu(const Shape& s, const BlockSelection& by, const selection::Target& to,
                   const Launch& launch) {
  check(s, by);
  const Scratch scratch(select_workspace(s, by, to), s.q.device, launch);
  const SelectSteps steps = select_steps(s, by, to, scratch.data());
  const bool pools = by.scorer == BlockScorer::pooled;
  const auto start = [&](const char* entry, const char* args, int threads, int shared,
                         std::int64_t blocks, const void* given) {
    const KernelUnit what = select_unit(steps.config, entry, args, threads, shared,
                                        pools ? "rows/select" : "rows/select_tokens");
    const Kernel kernel = load(what, s.q.device.index);
    launch_kernel(kernel, {.x = blocks}, launch.stream, given);
  };
  constexpr int kThreads = select::kThreads;
  if (pools) {
    start("pool", "PoolArgs", kThreads, select::kPoolBytes, steps.rows, &steps.of_q);
    start("pool", "PoolArgs", kThreads, select::kPoolBytes, steps.key_blocks, &steps.of_k);
    start("kernel", "Args", kThreads, steps.shared_bytes, steps.rows, &steps.choice);
  } else {
    const bool lines = by.scorer == BlockScorer::vertical_slash;
    const int shared = steps.scorer_shared_bytes;
    start(lines ? "lines" : "antidiagonals", "ScorerArgs", kThreads, shared, steps.scorer_blocks,
          &steps.scorer);
    if (lines) {
      start("pick_lines", "Args", kThreads, shared, s.batch * s.heads_q, &steps.choice);
    }
    start("scored", "Args", kThreads, steps.shared_bytes, steps.rows, &steps.choice);
  }
  if (to.mask != nullptr) return;
  start("scan", "ListArgs", select::kScanThreads, select::kScanBytes, 1, &steps.list);
  start("scatter", "ListArgs", kThreads, 0, steps.list_blocks, &steps.list);
}

}  // namespace tilewise::cuda
