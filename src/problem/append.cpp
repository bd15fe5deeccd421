#include "problem/append.h"

#include <algorithm>
#include <string>

#include "problem/apart.h"
#include "problem/arguments.h"
#include "problem/blocks.h"
#include "problem/lengths.h"

namespace tilewise {
namespace {

using arguments::canonical;
using arguments::fail;
using arguments::require_countable;
using arguments::require_shape;

void require_given(const char* name, const Tensor& t) {
  if (!t.defined()) fail(name, t, "required");
}

void require_beside_k(const char* name, const Tensor& t, Device device) {
  if (t.device != device) fail(name, t, "it must be on k's device, " + device_name(device));
}

/// A tensor of rows with k's type and device; null data only without elements.
Tensor rows_of(const Append& a, const char* name, const Tensor& t) {
  require_given(name, t);
  Tensor c = canonical(name, t);
  require_beside_k(name, t, a.device);
  if (t.dtype != a.dtype)
    fail(name, t, "its type must be that of k, " + std::string(dtype_name(a.dtype)));
  arguments::require_data(name, t);
  return c;
}

void require_sizes(const char* name, const Tensor& t, const std::array<std::int64_t, 4>& sizes) {
  if (t.sizes != sizes) {
    fail(name, t, "expected the shape " + arguments::shape_text(sizes.data(), 4));
  }
}

/// int32 (B) and the like.
void require_vector(const Append& a, const char* name, const Tensor& t, DType dtype) {
  require_beside_k(name, t, a.device);
  require_shape(name, t, dtype, {a.batch}, "(B)");
  arguments::require_data(name, t);
}

void take_rows(Append& a, const AppendTensors& t, const AppendSpec& spec) {
  require_given("k", t.k);
  a.device = t.k.device;
  a.dtype = t.k.dtype;
  if (a.dtype != DType::float32 && a.dtype != DType::bfloat16 && a.dtype != DType::float16)
    fail("k", t.k, "its type must be float32, bfloat16 or float16");
  a.k = rows_of(a, "k", t.k);
  a.v = rows_of(a, "v", t.v);
  a.heads_k = a.k.sizes[1];
  a.head_dim = a.k.sizes[3];
  a.head_dim_v = a.v.sizes[3];
  a.batch = a.k.sizes[0];
  a.rows = a.k.sizes[2];
  require_sizes("v", a.v, {a.batch, a.heads_k, a.rows, a.head_dim_v});
  if (a.head_dim < 1) fail("k", t.k, "the head dim (last axis) must be at least 1");
  if (a.head_dim_v < 1) fail("v", t.v, "the head dim (last axis) must be at least 1");
  a.packed = spec.cu_seqlens.defined();
  if (!a.packed) {
    if (spec.max_seqlen != 0) {
      arguments::fail_value("max_seqlen", std::to_string(spec.max_seqlen), "requires cu_seqlens");
    }
    return;
  }
  require_beside_k("cu_seqlens", spec.cu_seqlens, a.device);
  check_offsets("cu_seqlens", spec.cu_seqlens, a.device);
  arguments::require_data("cu_seqlens", spec.cu_seqlens);
  if (a.batch != 1) fail("k", t.k, "packed rows must have batch 1: (1, Hk, total, D)");
  a.rows = packed_bound("cu_seqlens", "max_seqlen", spec.cu_seqlens, spec.max_seqlen, a.rows);
  a.cu_seqlens = spec.cu_seqlens;
  a.batch = spec.cu_seqlens.sizes[0] - 1;
  a.k.strides[0] = a.v.strides[0] = 0;
}

void take_queries(Append& a, const AppendTensors& t) {
  a.rows_q = a.rows;
  if (t.q.defined() != t.rotated_q.defined()) {
    fail(t.q.defined() ? "rotated_q" : "q", t.q.defined() ? t.rotated_q : t.q,
         "q and rotated_q must be given together");
  }
  if (!t.q.defined()) return;
  a.q = rows_of(a, "q", t.q);
  a.rotated_q = rows_of(a, "rotated_q", t.rotated_q);
  require_sizes("rotated_q", a.rotated_q, a.q.sizes);
  arguments::require_no_overlap("rotated_q", a.rotated_q);
  a.heads_q = a.q.sizes[1];
  if (!a.packed) a.rows_q = a.q.sizes[2];
  require_sizes(
      "q", a.q,
      {a.packed ? 1 : a.batch, a.heads_q, a.packed ? a.k.sizes[2] : a.rows_q, a.head_dim});
  if (a.packed) a.q.strides[0] = a.rotated_q.strides[0] = 0;
}

void take_caches(Append& a, const AppendTensors& t, const AppendSpec& spec) {
  a.k_cache = rows_of(a, "k_cache", t.k_cache);
  a.v_cache = rows_of(a, "v_cache", t.v_cache);
  a.pages = a.k_cache.sizes[0];
  a.page_size = a.k_cache.sizes[2];
  require_sizes("k_cache", a.k_cache, {a.pages, a.heads_k, a.page_size, a.head_dim});
  require_sizes("v_cache", a.v_cache, {a.pages, a.heads_k, a.page_size, a.head_dim_v});
  arguments::require_no_overlap("k_cache", a.k_cache);
  arguments::require_no_overlap("v_cache", a.v_cache);
  a.table_pages = 1;
  const Tensor& table = spec.block_table;
  if (!table.defined()) {
    if (a.pages < a.batch) {
      fail("k_cache", t.k_cache,
           "it must have an entry for each of the " + std::to_string(a.batch) + " of k");
    }
    return;
  }
  require_beside_k("block_table", table, a.device);
  if (table.rank != 2 || table.dtype != DType::int32 || table.sizes[0] != a.batch) {
    fail("block_table", table, "expected int32 (B, max_pages) with B = " + std::to_string(a.batch));
  }
  require_countable("block_table", table);
  arguments::require_data("block_table", table);
  a.table_pages = table.sizes[1];
  if (a.page_size > 0 && a.table_pages > Tensor::kMaxElems / a.page_size)
    fail("block_table", table, "its pages may hold at most 2^56 keys");
  a.block_table = table;
}

void take_rotary(Append& a, const Rotary& r) {
  a.rotary = r;
  if (r.cos.defined() != r.sin.defined()) {
    fail(r.cos.defined() ? "rotary.sin" : "rotary.cos", r.cos.defined() ? r.sin : r.cos,
         "cos and sin must be given together");
  }
  if (!r.cos.defined()) {
    if (r.positions.defined()) fail("rotary.positions", r.positions, "requires rotary.cos");
    return;
  }
  if (r.cos.rank != 2 || (r.cos.dtype != DType::float32 && r.cos.dtype != a.dtype))
    fail("rotary.cos", r.cos, "expected (positions, R / 2) of float32 or k's type");
  a.positions = r.cos.sizes[0];
  a.rotary_dim = 2 * r.cos.sizes[1];
  if (a.rotary_dim > a.head_dim)
    fail("rotary.cos", r.cos, "R / 2 must be at most " + std::to_string(a.head_dim / 2));
  require_shape("rotary.sin", r.sin, r.cos.dtype, {a.positions, a.rotary_dim / 2},
                "(positions, R / 2)");
  for (const auto& [name, t] : {std::pair{"rotary.cos", &r.cos}, {"rotary.sin", &r.sin}}) {
    require_beside_k(name, *t, a.device);
    require_countable(name, *t);
    arguments::require_data(name, *t);
  }
  if (r.positions.defined()) require_vector(a, "rotary.positions", r.positions, DType::int32);
}

/// Checks on host tensors that every entry has room, pages and positions. CONTRACT 19: otherwise
/// nothing is written.
void check_room(const Append& a) {
  for (std::int64_t b = 0; b < a.batch; ++b) {
    const Append::Entry e = a.entry(b);
    const std::string who = "sequence " + std::to_string(b) + " has " + std::to_string(e.length) +
                            " keys and gets " + std::to_string(e.rows) + " more; ";
    if (e.length < 0 || e.length > a.capacity() - e.rows) {
      fail("lengths", a.lengths,
           who + "its " + (a.block_table.defined() ? "pages hold " : "cache holds ") +
               std::to_string(a.capacity()));
    }
    if (e.rows == 0) continue;
    if (a.rotary_dim > 0 && (e.position < 0 || e.position > a.positions - e.rows)) {
      fail("rotary.cos", a.rotary.cos,
           who + "its last position is " + std::to_string(e.position + e.rows - 1));
    }
    const std::int64_t last = (e.length + e.rows - 1) / a.page_size;
    for (std::int64_t page = e.length / a.page_size; page <= last; ++page) {
      const std::int64_t named = a.page_of(b, page * a.page_size);
      if (named >= 0 && named < a.pages) continue;
      fail("block_table", a.block_table,
           who + "entry (" + std::to_string(b) + ", " + std::to_string(page) + ") is " +
               std::to_string(named) + " and the pool has pages 0 to " +
               std::to_string(a.pages - 1));
    }
  }
}

}  // namespace

Append::Entry Append::entry(std::int64_t b) const {
  Entry e{.begin = 0, .rows = rows, .rows_q = rows_q, .length = 0, .position = 0};
  if (packed) {
    e.begin = integer_at(cu_seqlens, b);
    e.rows = e.rows_q = integer_at(cu_seqlens, b + 1) - e.begin;
  }
  e.length = integer_at(lengths, b);
  e.position = rotary.positions.defined() ? integer_at(rotary.positions, b) : e.length;
  return e;
}

std::int64_t Append::page_of(std::int64_t b, std::int64_t j) const {
  if (!block_table.defined()) return b;
  const auto* table = static_cast<const std::int32_t*>(block_table.data);
  return table[b * block_table.strides[0] + j / page_size * block_table.strides[1]];
}

Append make_append(const AppendTensors& t, const AppendSpec& spec) {
  Append a;
  take_rows(a, t, spec);
  take_queries(a, t);
  take_caches(a, t, spec);
  require_given("lengths", t.lengths);
  require_vector(a, "lengths", t.lengths, DType::int32);
  a.lengths = t.lengths;
  if (t.new_lengths.defined()) {
    require_vector(a, "new_lengths", t.new_lengths, DType::int32);
    arguments::require_no_overlap("new_lengths", t.new_lengths);
    a.new_lengths = t.new_lengths;
  }
  if (t.skipped.defined()) {
    const DType dtype = t.skipped.dtype == DType::uint8 ? DType::uint8 : DType::boolean;
    require_vector(a, "skipped", t.skipped, dtype);
    arguments::require_no_overlap("skipped", t.skipped);
    a.skipped = t.skipped;
  }
  take_rotary(a, spec.rotary);
  require_apart(t, spec);
  if (a.device.type == DeviceType::cpu) check_room(a);
  return a;
}

}  // namespace tilewise
