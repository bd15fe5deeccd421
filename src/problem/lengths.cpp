#include "problem/lengths.h"

#include <algorithm>
#include <string>

#include "problem/arguments.h"

namespace tilewise {
namespace {

using arguments::fail;
using arguments::require_countable;
using arguments::require_device;

}  // namespace

std::int64_t integer_at(const Tensor& t, std::int64_t i) {
  if (t.dtype == DType::int64) return static_cast<const std::int64_t*>(t.data)[i * t.strides[0]];
  return static_cast<const std::int32_t*>(t.data)[i * t.strides[0]];
}

bool host_readable(const Tensor& t) {
  return t.device.type == DeviceType::cpu && t.data != nullptr;
}

namespace {

/// Walks host-visible offsets; returns the longest sequence.
std::int64_t longest_sequence(const char* name, const Tensor& t, std::int64_t total) {
  std::int64_t longest = 0;
  std::int64_t previous = integer_at(t, 0);
  if (previous != 0) fail(name, t, "the first offset must be 0, it is " + std::to_string(previous));
  for (std::int64_t i = 1; i < t.sizes[0]; ++i) {
    const std::int64_t offset = integer_at(t, i);
    if (offset < previous || offset > total) {
      fail(name, t,
           "offset " + std::to_string(i) + " is " + std::to_string(offset) + "; expected " +
               std::to_string(previous) + " (the previous offset) to " + std::to_string(total) +
               " (rows of the tensor)");
    }
    longest = std::max(longest, offset - previous);
    previous = offset;
  }
  return longest;
}

/// The rows that a bound allows; one that is not given allows none.
std::int64_t rows_of_bound(const char* name, std::int64_t bound) {
  if (bound < kNoRows) {
    arguments::fail_value(name, std::to_string(bound),
                          "it must be >= 0, or -1 where no sequence has a row");
  }
  return std::max<std::int64_t>(bound, 0);
}

}  // namespace

void check_offsets(const char* name, const Tensor& t, Device device) {
  require_device(name, t, device);
  if (t.rank != 1 || t.sizes[0] < 1 || (t.dtype != DType::int32 && t.dtype != DType::int64)) {
    fail(name, t, "expected int32 or int64 with shape (sequences + 1)");
  }
  require_countable(name, t);
}

std::int64_t packed_bound(const char* offsets_name, const char* bound_name, const Tensor& offsets,
                          std::int64_t bound, std::int64_t total) {
  const std::int64_t most = rows_of_bound(bound_name, bound);
  if (!host_readable(offsets)) {
    if (bound == 0 && total > 0) {
      arguments::fail_value(bound_name, "0",
                            std::string("it must be given when ") + offsets_name +
                                " cannot be read on the host; -1 says that no sequence has a row");
    }
    return std::min(most, total);
  }
  const std::int64_t longest = longest_sequence(offsets_name, offsets, total);
  if (bound != 0 && most < longest) {
    arguments::fail_value(bound_name, std::to_string(bound),
                          "the longest sequence has " + std::to_string(longest) + " rows");
  }
  return bound != 0 ? std::min(most, total) : longest;
}

namespace {

void check_key_offsets(const Problem& p, const AttentionSpec& spec) {
  check_offsets("cu_seqlens_k", spec.cu_seqlens_k, p.device);
  if (spec.cu_seqlens_k.sizes[0] != spec.cu_seqlens_q.sizes[0]) {
    fail("cu_seqlens_k", spec.cu_seqlens_k,
         "it must have as many offsets as cu_seqlens_q, " +
             std::to_string(spec.cu_seqlens_q.sizes[0]));
  }
}

/// Whether a packed bias or mask has a column for each of the `max_k` keys that the caller named.
bool has_columns(const Tensor& t, std::int64_t max_k) {
  return t.rank >= 1 && t.rank <= Tensor::kMaxRank &&
         t.sizes[static_cast<std::size_t>(t.rank - 1)] == max_k;
}

void check_page(const Problem& p, std::int64_t b, std::int64_t page) {
  const auto* table = static_cast<const std::int32_t*>(p.block_table.data);
  const std::int64_t entry = table[b * p.block_table.strides[0] + page * p.block_table.strides[1]];
  if (entry < 0 || entry >= p.k.sizes[0]) {
    fail("block_table", p.block_table,
         "entry (" + std::to_string(b) + ", " + std::to_string(page) + ") is " +
             std::to_string(entry) + "; the pool has pages 0 to " +
             std::to_string(p.k.sizes[0] - 1));
  }
}

}  // namespace

void take_packed(Problem& p, const AttentionSpec& spec) {
  if (!spec.cu_seqlens_q.defined())
    fail("cu_seqlens_q", spec.cu_seqlens_q, "cu_seqlens_k requires it");
  if (p.paged && spec.cu_seqlens_k.defined()) {
    fail("cu_seqlens_k", spec.cu_seqlens_k,
         "it cannot be combined with block_table, which uses key_lengths");
  }
  if (!p.paged && !spec.cu_seqlens_k.defined())
    fail("cu_seqlens_k", spec.cu_seqlens_k, "cu_seqlens_q requires it");
  check_offsets("cu_seqlens_q", spec.cu_seqlens_q, p.device);
  if (!p.paged) check_key_offsets(p, spec);
  if (p.batch != 1) fail("q", p.q, "packed tensors must have batch 1: (1, Hq, total_q, D)");
  p.cu_seqlens_q = spec.cu_seqlens_q;
  p.batch = spec.cu_seqlens_q.sizes[0] - 1;
  p.seq_q =
      packed_bound("cu_seqlens_q", "max_seqlen_q", p.cu_seqlens_q, spec.max_seqlen_q, p.total_q);
  p.q.strides[0] = 0;
  if (p.paged) return;
  if (spec.key_lengths.defined())
    fail("key_lengths", spec.key_lengths,
         "it cannot be combined with packed sequences, except with block_table");
  p.cu_seqlens_k = spec.cu_seqlens_k;
  p.seq_k =
      packed_bound("cu_seqlens_k", "max_seqlen_k", p.cu_seqlens_k, spec.max_seqlen_k, p.total_k);
  if (has_columns(spec.bias, spec.max_seqlen_k) || has_columns(spec.mask, spec.max_seqlen_k))
    p.seq_k = std::max(p.seq_k, spec.max_seqlen_k);
  for (Tensor* t : {&p.k, &p.v}) t->strides[0] = 0;
}

void take_paged(Problem& p, const AttentionSpec& spec) {
  const Tensor& table = spec.block_table;
  require_device("block_table", table, p.device);
  if (table.rank != 2 || table.dtype != DType::int32 || table.sizes[0] != p.batch) {
    fail("block_table", table, "expected int32 (B, max_pages) with B = " + std::to_string(p.batch));
  }
  if (!spec.key_lengths.defined()) fail("key_lengths", spec.key_lengths, "block_table requires it");
  if (p.pass == Pass::backward)
    fail("block_table", table, "backward does not support a paged cache");
  p.block_table = table;
  p.page_size = p.k.sizes[2];
  if (p.page_size < 1) fail("k", p.k, "the page size (third axis) must be at least 1");
  require_countable("block_table", table);
  if (table.sizes[1] > Tensor::kMaxElems / p.page_size) {
    fail("block_table", table, "its pages may hold at most 2^56 keys");
  }
  p.seq_k = table.sizes[1] * p.page_size;
  const std::int64_t most = rows_of_bound("max_seqlen_k", spec.max_seqlen_k);
  if (spec.max_seqlen_k != 0) p.seq_k = std::min(p.seq_k, most);
}

void take_key_lengths(Problem& p, const AttentionSpec& spec) {
  const Tensor& lengths = spec.key_lengths;
  require_device("key_lengths", lengths, p.device);
  if (lengths.rank != 1 || lengths.dtype != DType::int32 || lengths.sizes[0] != p.batch) {
    fail("key_lengths", lengths, "expected int32 (B) with B = " + std::to_string(p.batch));
  }
  require_countable("key_lengths", lengths);
  p.key_lengths = lengths;
  if (!host_readable(lengths)) return;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t length = integer_at(lengths, b);
    if (length < 0 || length > p.seq_k) {
      fail("key_lengths", lengths,
           "entry " + std::to_string(b) + " is " + std::to_string(length) + "; expected 0 to " +
               std::to_string(p.seq_k));
    }
    if (!p.paged || !host_readable(p.block_table)) continue;
    for (std::int64_t page = 0; page * p.page_size < length; ++page) check_page(p, b, page);
  }
}

Sequence Problem::sequence(std::int64_t b) const {
  Sequence s{.q_begin = 0, .q_length = seq_q, .k_begin = 0, .k_length = seq_k};
  if (packed) {
    s.q_begin = integer_at(cu_seqlens_q, b);
    s.q_length = integer_at(cu_seqlens_q, b + 1) - s.q_begin;
  }
  if (packed_keys()) {
    s.k_begin = integer_at(cu_seqlens_k, b);
    s.k_length = integer_at(cu_seqlens_k, b + 1) - s.k_begin;
  } else if (key_lengths.defined()) {
    s.k_length = integer_at(key_lengths, b);
  }
  return s;
}

Problem::KeyRow Problem::key_row(std::int64_t b, const Sequence& s, std::int64_t j) const {
  if (!paged) return {b, s.k_begin + j};
  const auto* table = static_cast<const std::int32_t*>(block_table.data);
  const std::int64_t page =
      table[b * block_table.strides[0] + (j / page_size) * block_table.strides[1]];
  return {page, j % page_size};
}

}  // namespace tilewise
