#include "problem/problem.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "expression/block_map.h"
#include "problem/apart.h"
#include "problem/arguments.h"
#include "problem/blocks.h"
#include "problem/expressions.h"
#include "problem/lengths.h"
#include "problem/listed_blocks.h"
#include "problem/named_tensors.h"

namespace tilewise {
namespace {

using arguments::canonical;
using arguments::expand;
using arguments::fail;
using arguments::require_countable;
using arguments::require_data;
using arguments::require_device;
using arguments::require_shape;

/// Sizes of q, k, v against each other. Sets batch, heads, dims and dense lengths.
void take_sizes(Problem& p, const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionSpec& spec) {
  p.q = canonical("q", q);
  p.k = canonical("k", k);
  p.v = canonical("v", v);
  p.dtype = q.dtype;
  p.device = q.device;
  if (q.dtype != DType::float64 && q.dtype != DType::float32 && q.dtype != DType::bfloat16 &&
      q.dtype != DType::float16) {
    fail("q", q, "its type must be float64, float32, bfloat16 or float16");
  }
  if (k.dtype != q.dtype)
    fail("k", k, "q, k and v must have one type; q is " + std::string(dtype_name(q.dtype)));
  if (v.dtype != q.dtype)
    fail("v", v, "q, k and v must have one type; q is " + std::string(dtype_name(q.dtype)));
  require_device("k", k, p.device);
  require_device("v", v, p.device);
  p.packed = spec.cu_seqlens_q.defined() || spec.cu_seqlens_k.defined();
  p.paged = spec.block_table.defined();
  p.batch = p.q.sizes[0];
  p.heads_q = p.q.sizes[1];
  p.seq_q = p.total_q = p.q.sizes[2];
  p.head_dim = p.q.sizes[3];
  p.heads_k = p.k.sizes[1];
  p.seq_k = p.total_k = p.k.sizes[2];
  p.head_dim_v = p.v.sizes[3];
  if (p.head_dim < 1) fail("q", q, "the head dim (last axis) must be at least 1");
  if (p.head_dim_v < 1) fail("v", v, "the head dim (last axis) must be at least 1");
  if (p.k.sizes[3] != p.head_dim) {
    fail("k", k, "its head dim must equal q's, " + std::to_string(p.head_dim));
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (p.v.sizes[axis] != p.k.sizes[axis])
      fail("v", v, "batch, heads and length must equal those of k, " + k.describe());
  }
  if (!p.paged && p.k.sizes[0] != p.batch) {
    fail("k", k, "its batch must equal q's, " + std::to_string(p.batch));
  }
  if (p.heads_k == 0 ? p.heads_q != 0 : p.heads_q % p.heads_k != 0) {
    fail("q", q,
         "the query heads (" + std::to_string(p.heads_q) +
             ") must be a multiple of the key heads (" + std::to_string(p.heads_k) + ")");
  }
}

/// Bias, mask: broadcast to (B, Hq, Sq, Sk), packed to (1|Hq, total_q, max_k).
Tensor take_pairs(const Problem& p, const char* name, const Tensor& t) {
  require_device(name, t, p.device);
  if (!p.packed) return expand(name, t, {p.batch, p.heads_q, p.seq_q, p.seq_k}, "(B, Hq, Sq, Sk)");
  Tensor expanded = expand(name, t, {1, p.heads_q, p.total_q, p.seq_k}, "(1|Hq, total_q, max_k)");
  expanded.sizes[0] = p.batch;
  expanded.strides[0] = 0;
  return expanded;
}

void take_dropout_counter(Problem& p, const Tensor& counter) {
  require_device("dropout_counter", counter, p.device);
  require_shape("dropout_counter", counter, DType::int64, {1}, "(1)");
  if (p.device.type != DeviceType::cpu) {
    p.dropout_counter = counter;
  } else if (counter.data != nullptr) {
    p.dropout.offset += static_cast<std::uint64_t>(integer_at(counter, 0));
  }
}

void take_scores(Problem& p, const AttentionSpec& spec) {
  p.scale64 = spec.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  p.scale = static_cast<float>(p.scale64);
  if (!std::isfinite(p.scale))
    arguments::fail_value("scale", arguments::number_text(p.scale64),
                          "it must be finite in float32");
  p.softcap = spec.softcap;
  const auto cap = static_cast<float>(p.softcap);
  if (!std::isfinite(cap) || p.softcap < 0) {
    arguments::fail_value("softcap", arguments::number_text(p.softcap),
                          "it must be finite in float32 and >= 0 (0 = off)");
  }
  if (p.softcap > 0 && !arguments::is_softcap(p.softcap)) {
    arguments::fail_value("softcap", arguments::number_text(p.softcap),
                          "it must be 0 (off) or from 1.18e-38, the least normal float32, to 2e38");
  }
  if (spec.bias.defined()) {
    if (!is_floating(spec.bias.dtype)) fail("bias", spec.bias, "its type must be a float type");
    p.bias = take_pairs(p, "bias", spec.bias);
  }
  if (spec.alibi_slopes.defined()) {
    const Tensor& slopes = spec.alibi_slopes;
    require_device("alibi_slopes", slopes, p.device);
    if (slopes.dtype != DType::float32) fail("alibi_slopes", slopes, "its type must be float32");
    p.alibi_slopes = expand("alibi_slopes", slopes, {p.batch, p.heads_q}, "(Hq) or (B, Hq)");
  }
  if (spec.sinks.defined()) {
    require_device("sinks", spec.sinks, p.device);
    require_shape("sinks", spec.sinks, DType::float32, {p.heads_q}, "(Hq)");
    p.sinks = spec.sinks;
  }
  p.score_mod = spec.score_mod;
  if (p.score_mod != nullptr && !p.score_mod->apply) {
    arguments::fail_value("score_mod", "without apply", "apply must be callable");
  }
  if (p.score_mod != nullptr && p.pass == Pass::backward && !p.score_mod->derivative) {
    arguments::fail_value("score_mod", "without derivative", "backward needs it");
  }
  p.dropout = spec.dropout;
  if (!(p.dropout.p >= 0.0 && p.dropout.p <= 1.0)) {
    arguments::fail_value("dropout.p", arguments::number_text(p.dropout.p), "it must be in [0, 1]");
  }
  if (spec.dropout_counter.defined()) take_dropout_counter(p, spec.dropout_counter);
}

std::int64_t bounded(std::int64_t value) {
  return std::clamp(value, -Problem::kUnbounded, Problem::kUnbounded);
}

void take_block_list(Problem& p, const BlockList& list) {
  if (list.block_q < 1)
    arguments::fail_value("block_list.block_q", std::to_string(list.block_q), "it must be >= 1");
  if (list.block_k < 1)
    arguments::fail_value("block_list.block_k", std::to_string(list.block_k), "it must be >= 1");
  require_device("block_list.row_offsets", list.row_offsets, p.device);
  require_device("block_list.block_index", list.block_index, p.device);
  const std::int64_t rows = ceil_div(p.seq_q, list.block_q);
  const Tensor& offsets = list.row_offsets;
  const bool batch_ok = offsets.sizes[0] == 1 || offsets.sizes[0] == p.batch;
  const bool heads_ok = offsets.sizes[1] == 1 || offsets.sizes[1] == p.heads_q;
  if (offsets.rank != 3 || offsets.dtype != DType::int32 || !batch_ok || !heads_ok ||
      offsets.sizes[2] != rows + 1) {
    fail("block_list.row_offsets", offsets,
         "expected int32 (B|1, Hq|1, " + std::to_string(rows + 1) + ")");
  }
  require_countable("block_list.row_offsets", offsets);
  if (list.block_index.rank != 1 || list.block_index.sizes[0] < 0 ||
      list.block_index.dtype != DType::int32) {
    fail("block_list.block_index", list.block_index, "expected int32 (pairs)");
  }
  require_countable("block_list.block_index", list.block_index);
  const Tensor& full = list.block_full;
  if (full.defined()) {
    require_device("block_list.block_full", full, p.device);
    if (full.rank != 1 || full.sizes[0] != list.block_index.sizes[0] ||
        (full.dtype != DType::boolean && full.dtype != DType::uint8)) {
      fail("block_list.block_full", full, "expected bool or uint8 with the shape of block_index");
    }
    require_countable("block_list.block_full", full);
  }
  p.block_list = list;
  if (offsets.sizes[0] == 1) p.block_list.row_offsets.strides[0] = 0;
  if (offsets.sizes[1] == 1) p.block_list.row_offsets.strides[1] = 0;
  arguments::check_block_list(p.block_list, offsets, ceil_div(p.seq_k, list.block_k));
  p.listed_pairs = count_listed_pairs(p);
}

void take_masks(Problem& p, const AttentionSpec& spec) {
  p.causal = spec.causal;
  p.left = bounded(spec.window.left.value_or(Problem::kUnbounded));
  p.right = bounded(spec.window.right.value_or(Problem::kUnbounded));
  if (p.causal == Causal::bottom_right) p.right = std::min<std::int64_t>(p.right, 0);
  if (spec.mask.defined()) {
    if (spec.mask.dtype != DType::boolean)
      fail("mask", spec.mask, "its type must be bool (true = visible)");
    p.mask = take_pairs(p, "mask", spec.mask);
  }
  if (spec.block_list.defined()) take_block_list(p, spec.block_list);
}

/// Row statistics: float32 (B, Hq, Sq), packed (Hq, total_q). Returns canonical (B, Hq, Sq).
Tensor take_statistics(const Problem& p, const char* name, const Tensor& t) {
  require_device(name, t, p.device);
  if (p.packed) {
    require_shape(name, t, DType::float32, {p.heads_q, p.total_q}, "(Hq, total_q)");
    Tensor s = t;
    s.rank = 3;
    s.sizes = {p.batch, p.heads_q, p.total_q, 0};
    s.strides = {0, t.strides[0], t.strides[1], 0};
    return s;
  }
  if (t.rank == 2 && p.heads_q == 1) {  // rank-3 q: (B, S)
    require_shape(name, t, DType::float32, {p.batch, p.seq_q}, "(B, Sq)");
    Tensor s = t;
    s.rank = 3;
    s.sizes = {p.batch, 1, p.seq_q, 0};
    s.strides = {t.strides[0], 0, t.strides[1], 0};
    return s;
  }
  require_shape(name, t, DType::float32, {p.batch, p.heads_q, p.seq_q}, "(B, Hq, Sq)");
  return t;
}

enum class Access : std::uint8_t { read, write };

/// o, d_o, dq, dk, dv: shape of `like` with last axis `dim`.
Tensor take_values(const Problem& p, const char* name, const Tensor& t, const Tensor& like,
                   std::int64_t dim, Access access) {
  if (!t.defined()) fail(name, t, "required");
  require_device(name, t, p.device);
  Tensor c = canonical(name, t);
  if (c.dtype != p.dtype)
    fail(name, t, "its type must be that of q, " + std::string(dtype_name(p.dtype)));
  const std::array<std::int64_t, 4> expected{like.sizes[0], like.sizes[1], like.sizes[2], dim};
  if (c.sizes != expected) {
    fail(name, t, "expected the shape " + arguments::shape_text(expected.data(), 4));
  }
  if (access == Access::write) arguments::require_no_overlap(name, c);
  if (p.packed) c.strides[0] = 0;
  return c;
}

/// What is read only beside another argument is not ignored without it: CONTRACT 19.
void require_beside(const char* name, std::int64_t value, const char* with) {
  if (value != 0) {
    arguments::fail_value(name, std::to_string(value), std::string("requires ") + with);
  }
}

void refuse_strays(const AttentionSpec& spec) {
  if (!spec.cu_seqlens_q.defined() && !spec.cu_seqlens_k.defined()) {
    require_beside("max_seqlen_q", spec.max_seqlen_q, "cu_seqlens_q");
    if (!spec.block_table.defined())
      require_beside("max_seqlen_k", spec.max_seqlen_k, "cu_seqlens_k or block_table");
  }
  const BlockList& list = spec.block_list;
  if (!list.defined()) {
    if (list.block_full.defined())
      fail("block_list.block_full", list.block_full, "requires block_list.row_offsets");
    require_beside("block_list.block_q", list.block_q, "block_list.row_offsets");
    require_beside("block_list.block_k", list.block_k, "block_list.row_offsets");
  }
}

void take_spec(Problem& p, const AttentionSpec& spec) {
  refuse_strays(spec);
  if (p.packed) take_packed(p, spec);
  if (p.paged) take_paged(p, spec);
  if (spec.key_lengths.defined()) take_key_lengths(p, spec);
  take_masks(p, spec);
  take_scores(p, spec);
  take_expressions(p, spec);
  p.deterministic = spec.deterministic;
  p.precision = spec.precision;
}

/// True when the blocks that a mask expression leaves can be told here, for the kernels that skip
/// the others.
bool can_map(const Problem& p) {
  if (!p.mask_function.defined() || p.device.type != DeviceType::cpu) return false;
  const auto readable = [](const Tensor& t) { return !t.defined() || t.data != nullptr; };
  return std::all_of(p.mask_function.captures.begin(), p.mask_function.captures.end(), readable) &&
         readable(p.key_lengths) && readable(p.cu_seqlens_q) && readable(p.cu_seqlens_k) &&
         readable(p.block_list.row_offsets) && readable(p.block_list.block_index);
}

template <class Tensors>
Problem begin_problem(const Tensors& t, const AttentionSpec& spec, Pass pass, Purpose purpose) {
  Problem p;
  p.pass = pass;
  if (!t.q.defined()) fail("q", t.q, "required");
  if (!t.k.defined()) fail("k", t.k, "required");
  if (!t.v.defined()) fail("v", t.v, "required");
  if (purpose == Purpose::run) {
    for_operands(t, require_data);
    for_options(spec, require_data);
    require_capture_data(spec);
  }
  take_sizes(p, t.q, t.k, t.v, spec);
  const Tensor q_rows = p.q;  // before packing changes strides; sizes are the tensors' own
  take_spec(p, spec);
  if (purpose == Purpose::plan && can_map(p)) p.listed_pairs = expression::count_mapped_pairs(p);
  const Access access = pass == Pass::forward ? Access::write : Access::read;
  p.o = take_values(p, "o", t.o, q_rows, p.head_dim_v, access);
  if (t.lse.defined()) p.lse = take_statistics(p, "lse", t.lse);
  if (t.lse.defined() && access == Access::write) arguments::require_no_overlap("lse", t.lse);
  p.saved = t.saved;
  return p;
}

}  // namespace

Problem make_problem(const ForwardTensors& t, const AttentionSpec& spec, Purpose purpose) {
  Problem p = begin_problem(t, spec, Pass::forward, purpose);
  if (purpose == Purpose::run) require_apart(t, spec);
  return p;
}

Problem make_problem(const BackwardTensors& t, const AttentionSpec& spec, Purpose purpose) {
  if (!t.lse.defined()) fail("lse", t.lse, "backward requires it");
  Problem p = begin_problem(t, spec, Pass::backward, purpose);
  p.d_o = take_values(p, "d_o", t.d_o, canonical("q", t.q), p.head_dim_v, Access::read);
  if (t.d_lse.defined()) p.d_lse = take_statistics(p, "d_lse", t.d_lse);
  p.dq = take_values(p, "dq", t.dq, canonical("q", t.q), p.head_dim, Access::write);
  p.dk = take_values(p, "dk", t.dk, canonical("k", t.k), p.head_dim, Access::write);
  p.dv = take_values(p, "dv", t.dv, canonical("v", t.v), p.head_dim_v, Access::write);
  if (t.dbias.defined()) {
    if (!spec.bias.defined()) fail("dbias", t.dbias, "requires bias");
    if (t.dbias.dtype != spec.bias.dtype || t.dbias.rank != spec.bias.rank ||
        t.dbias.sizes != spec.bias.sizes) {
      fail("dbias", t.dbias, "it must have the shape and type of bias, " + spec.bias.describe());
    }
    arguments::require_no_overlap("dbias", t.dbias);
    p.dbias = take_pairs(p, "dbias", t.dbias);
  }
  if (t.dsinks.defined()) {
    if (!spec.sinks.defined()) fail("dsinks", t.dsinks, "requires sinks");
    require_device("dsinks", t.dsinks, p.device);
    require_shape("dsinks", t.dsinks, DType::float32, {p.heads_q}, "(Hq)");
    arguments::require_no_overlap("dsinks", t.dsinks);
    p.dsinks = t.dsinks;
  }
  take_capture_gradients(p, t, spec, purpose);
  if (purpose == Purpose::run) require_apart(t, spec);
  return p;
}

}  // namespace tilewise
