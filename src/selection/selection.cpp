#include "tilewise/selection.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "cuda/kernels/rows/select.h"
#include "problem/apart.h"
#include "problem/arguments.h"
#include "problem/blocks.h"
#include "selection/shape.h"
#include "tilewise/error.h"

namespace tilewise {
namespace selection {
namespace {

using arguments::fail;
using arguments::fail_value;

bool is_float(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16 ||
         dtype == DType::float64;
}

void check_rule(const BlockSelection& by) {
  for (const auto& [name, size] : {std::pair{"block_q", by.block_q}, {"block_k", by.block_k}}) {
    if (size < 1) fail_value(name, std::to_string(size), "it must be >= 1");
    if (size > Tensor::kMaxElems)
      fail_value(name, std::to_string(size), "a block may have at most 2^56 tokens");
  }
  const PoolWeights& w = by.weights;
  bool any = false;
  for (const double x : {w.mean, w.maximum, w.minimum, w.variance}) {
    if (!std::isfinite(x)) fail_value("weights", arguments::number_text(x), "each must be finite");
    any = any || x != 0.0;
  }
  if (!any && by.scorer == BlockScorer::pooled)
    fail_value("weights", "0", "one of them must not be 0");
  if (by.scorer == BlockScorer::antidiagonal &&
      (by.stride < 1 || by.block_q % by.stride != 0 || by.block_k % by.stride != 0)) {
    fail_value("stride", std::to_string(by.stride), "it must divide block_q and block_k");
  }
  if (by.scale.has_value() && !std::isfinite(*by.scale))
    fail_value("scale", arguments::number_text(*by.scale), "it must be finite");
  if (by.rule == BlockRule::top_k && by.count < 0)
    fail_value("count", std::to_string(by.count), "it must be >= 0");
  if (by.rule == BlockRule::mass && !(by.mass >= 0.0))
    fail_value("mass", arguments::number_text(by.mass), "it must be >= 0");
  if (by.rule == BlockRule::above && std::isnan(by.threshold))
    fail_value("threshold", "NaN", "expected a number");
}

void require_contiguous(const char* name, const Tensor& t) {
  arguments::require_countable(name, t);
  if (t.numel() == 0) return;
  std::int64_t stride = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    if (t.sizes[axis] > 1 && t.strides[axis] != stride) fail(name, t, "it must be contiguous");
    stride *= t.sizes[axis];
  }
}

void require_mask(const Tensor& mask, const Shape& s) {
  const bool bytes = mask.dtype == DType::boolean || mask.dtype == DType::uint8;
  if (!bytes || mask.rank != 4 || mask.sizes[0] != s.batch || mask.sizes[1] != s.heads_q ||
      mask.sizes[2] != s.rows || mask.sizes[3] != s.columns) {
    fail("mask", mask, "expected bool or uint8 (B, Hq, query blocks, key blocks)");
  }
  arguments::require_device("mask", mask, s.q.device);
  require_contiguous("mask", mask);
}

std::int64_t bound(const Shape& s, const BlockSelection& by) {
  std::int64_t most = s.columns;
  if (by.rule == BlockRule::top_k) {
    // A block of queries lies beside at most so many blocks of keys of the diagonal.
    const std::int64_t beside = by.keep_diagonal ? (by.block_q - 1) / by.block_k + 2 : 0;
    // A distance touches so many blocks of a row, and a row's blocks of keys come beside them.
    const bool lines = by.scorer == BlockScorer::vertical_slash;
    const std::int64_t touched = (by.block_q + by.block_k - 2) / by.block_k + 1;
    const std::int64_t each = lines ? 1 + touched : 1;
    if (by.count <= most / each)
      most = std::min(most, by.count * each + beside + (by.keep_first ? 1 : 0));
  }
  const std::int64_t rows = s.all_rows();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return rows > 0 && most > kMost / rows ? kMost : rows * most;
}

/// A call writes `outputs` and reads `inputs`.
void require_memory(std::initializer_list<Named> outputs, std::initializer_list<Named> inputs) {
  for (const auto& tensors : {outputs, inputs}) {
    for (const Named& t : tensors) arguments::require_data(t.name, *t.tensor);
  }
  require_apart(std::span(outputs.begin(), outputs.size()),
                std::span(inputs.begin(), inputs.size()));
}

void run(const Shape& s, const BlockSelection& by, const Target& to, const Launch& launch) {
  if (s.all_rows() == 0) return;
  if (s.q.device.type == DeviceType::cuda) return cuda::select_on_gpu(s, by, to, launch);
  select_on_cpu(s, by, to, launch.executor != nullptr ? *launch.executor : default_executor());
}

}  // namespace

Shape make_shape(const Tensor& q, const Tensor& k, const BlockSelection& by) {
  check_rule(by);
  Shape s;
  s.q = arguments::canonical("q", q);
  s.k = arguments::canonical("k", k);
  if (!is_float(q.dtype)) fail("q", q, "expected a float type");
  if (k.dtype != q.dtype) fail("k", k, "expected the type of q");
  arguments::require_device("k", k, q.device);
  s.batch = s.q.sizes[0];
  s.heads_q = s.q.sizes[1];
  s.seq_q = s.q.sizes[2];
  s.head_dim = s.q.sizes[3];
  s.heads_k = s.k.sizes[1];
  s.seq_k = s.k.sizes[2];
  if (s.k.sizes[0] != s.batch || s.k.sizes[3] != s.head_dim)
    fail("k", k, "expected the batch and the head dim of q");
  if (s.heads_q > 0 && (s.heads_k == 0 || s.heads_q % s.heads_k != 0))
    fail("k", k, "expected heads that divide those of q");
  if (by.key_lengths.defined()) {
    arguments::require_shape("key_lengths", by.key_lengths, DType::int32, {s.batch}, "(B)");
    arguments::require_device("key_lengths", by.key_lengths, q.device);
  }
  s.rows = ceil_div(s.seq_q, by.block_q);
  s.columns = ceil_div(s.seq_k, by.block_k);
  s.scale = by.scale.value_or(
      1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, s.head_dim))));
  if (bound(s, by) > std::numeric_limits<std::int32_t>::max())
    fail_value("block_k", std::to_string(by.block_k), "expected at most 2^31 selected blocks");
  return s;
}

}  // namespace selection

std::int64_t selected_blocks_bound(const Tensor& q, const Tensor& k, const BlockSelection& by) {
  return selection::bound(selection::make_shape(q, k, by), by);
}

void select_blocks(const Tensor& q, const Tensor& k, const BlockSelection& by,
                   const BlockList& list, const Launch& launch) {
  using arguments::fail;
  const selection::Shape s = selection::make_shape(q, k, by);
  arguments::require_shape("row_offsets", list.row_offsets, DType::int32,
                           {s.batch, s.heads_q, s.rows + 1}, "(B, Hq, query blocks + 1)");
  const std::int64_t room = selection::bound(s, by);
  const Tensor& index = list.block_index;
  if (index.dtype != DType::int32 || index.rank != 1 || index.sizes[0] < room)
    fail("block_index", index, "expected int32 with room for " + std::to_string(room));
  arguments::require_device("row_offsets", list.row_offsets, q.device);
  arguments::require_device("block_index", index, q.device);
  selection::require_contiguous("row_offsets", list.row_offsets);
  selection::require_contiguous("block_index", index);
  selection::require_memory({{"row_offsets", &list.row_offsets}, {"block_index", &index}},
                            {{"q", &q}, {"k", &k}, {"key_lengths", &by.key_lengths}});
  selection::run(s, by,
                 {.row_offsets = static_cast<std::int32_t*>(list.row_offsets.data),
                  .block_index = static_cast<std::int32_t*>(index.data)},
                 launch);
}

void select_block_mask(const Tensor& q, const Tensor& k, const BlockSelection& by,
                       const Tensor& mask, const Launch& launch) {
  const selection::Shape s = selection::make_shape(q, k, by);
  selection::require_mask(mask, s);
  selection::require_memory({{"mask", &mask}},
                            {{"q", &q}, {"k", &k}, {"key_lengths", &by.key_lengths}});
  if (mask.numel() == 0) return;
  selection::run(s, by, {.mask = static_cast<std::uint8_t*>(mask.data)}, launch);
}

namespace {

using selection::Shape;

Executor& executor_of(const Launch& launch) {
  return launch.executor != nullptr ? *launch.executor : default_executor();
}

void require_cpu(const char* what, const Tensor& q) {
  if (q.device.type == DeviceType::cpu) return;
  throw Unsupported(std::string(what) + " is not supported on " + device_name(q.device));
}

/// float32, contiguous, of a row for each block of queries.
void require_scores(const char* name, const Tensor& t, const Shape& s) {
  arguments::require_shape(name, t, DType::float32, {s.batch, s.heads_q, s.rows, s.columns},
                           "(B, Hq, query blocks, key blocks)");
  arguments::require_device(name, t, s.q.device);
  selection::require_contiguous(name, t);
}

void set_zero(const Tensor& t) {
  const auto& n = t.sizes;
  const std::int64_t count = t.numel();
  for (std::int64_t at = 0; at < count; ++at) {
    const std::int64_t e = at % n[3], i = at / n[3] % n[2], h = at / n[3] / n[2] % n[1];
    static_cast<float*>(t.data)[at / n[3] / n[2] / n[1] * t.strides[0] + h * t.strides[1] +
                                i * t.strides[2] + e * t.strides[3]] = 0.0F;
  }
}

void require_order(const char* name, const Tensor& t, const Tensor& of) {
  arguments::require_shape(name, t, DType::int32, {of.sizes[0], of.sizes[1], of.sizes[2]},
                           "(B, H, S)");
  arguments::require_device(name, t, of.device);
  selection::require_contiguous(name, t);
}

}  // namespace

void score_blocks(const Tensor& q, const Tensor& k, const BlockSelection& by, const Tensor& scores,
                  const Launch& launch) {
  BlockSelection pooled = by;
  pooled.scorer = BlockScorer::pooled;
  const Shape s = selection::make_shape(q, k, pooled);
  require_cpu("score_blocks", q);
  require_scores("scores", scores, s);
  selection::require_memory({{"scores", &scores}},
                            {{"q", &q}, {"k", &k}, {"key_lengths", &by.key_lengths}});
  if (scores.numel() == 0) return;
  selection::score_on_cpu(s, pooled, static_cast<float*>(scores.data), executor_of(launch));
}

void score_blocks_backward(const Tensor& q, const Tensor& k, const BlockSelection& by,
                           const Tensor& d_scores, const Tensor& dq, const Tensor& dk,
                           const Launch& launch) {
  BlockSelection pooled = by;
  pooled.scorer = BlockScorer::pooled;
  const Shape s = selection::make_shape(q, k, pooled);
  require_cpu("score_blocks_backward", q);
  require_scores("d_scores", d_scores, s);
  selection::ScoreGradients to{.d_scores = static_cast<const float*>(d_scores.data)};
  for (const auto& [name, given, like, made] :
       {std::tuple{"dq", &dq, &s.q, &to.dq}, {"dk", &dk, &s.k, &to.dk}}) {
    *made = arguments::canonical(name, *given);
    if (given->dtype != DType::float32 || made->sizes != like->sizes)
      arguments::fail(name, *given, "expected float32 with the sizes of its tensor");
    arguments::require_device(name, *given, q.device);
    arguments::require_no_overlap(name, *made);
  }
  selection::require_memory(
      {{"dq", &dq}, {"dk", &dk}},
      {{"q", &q}, {"k", &k}, {"key_lengths", &by.key_lengths}, {"d_scores", &d_scores}});
  for (const Tensor* made : {&to.dq, &to.dk}) set_zero(*made);
  if (d_scores.numel() == 0) return;
  selection::score_backward_on_cpu(s, pooled, to, executor_of(launch));
}

void cluster_route(const Tensor& q, const Tensor& k, const Tensor& centroids,
                   const ClusterRouting& by, const Tensor& query_order, const Tensor& key_order,
                   const Tensor& mask, const Launch& launch) {
  using arguments::fail;
  using arguments::fail_value;
  selection::Routing r;
  r.shape = selection::make_shape(
      q, k, {.block_q = by.block_q, .block_k = by.block_k, .key_lengths = by.key_lengths});
  require_cpu("cluster_route", q);
  const Shape& s = r.shape;
  if (centroids.rank != 3 || centroids.dtype != q.dtype || centroids.sizes[0] != s.heads_k ||
      centroids.sizes[1] < 1 || centroids.sizes[2] != s.head_dim || centroids.device != q.device) {
    fail("centroids", centroids, "expected (Hk, C, D) of q's type and device, C >= 1");
  }
  arguments::require_countable("centroids", centroids);
  if (by.top < 1 || by.top > centroids.sizes[1])
    fail_value("top", std::to_string(by.top), "expected 1 to the number of clusters");
  if (!(by.threshold >= 0.0))
    fail_value("threshold", arguments::number_text(by.threshold), "it must be >= 0");
  require_order("query_order", query_order, s.q);
  require_order("key_order", key_order, s.k);
  selection::require_mask(mask, s);
  selection::require_memory(
      {{"query_order", &query_order}, {"key_order", &key_order}, {"mask", &mask}},
      {{"q", &q}, {"k", &k}, {"key_lengths", &by.key_lengths}, {"centroids", &centroids}});
  if (s.heads_k == 0) return;
  r.by = by;
  r.centroids = centroids;
  r.query_order = static_cast<std::int32_t*>(query_order.data);
  r.key_order = static_cast<std::int32_t*>(key_order.data);
  r.mask = static_cast<std::uint8_t*>(mask.data);
  selection::route_on_cpu(r, executor_of(launch));
}

}  // namespace tilewise
