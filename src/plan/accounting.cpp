#include "plan/accounting.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "plan/kernel_row.h"

namespace tilewise {
namespace {

/// Sum of max(0, first + slope * i) over i = 0 .. n - 1, for a slope of -1, 0 or 1.
double ramp_sum(std::int64_t first, int slope, std::int64_t n) {
  if (slope == 0)
    return static_cast<double>(std::max<std::int64_t>(0, first)) * static_cast<double>(n);
  const std::int64_t last = first + slope * (n - 1);
  const std::int64_t high = std::max(first, last);
  if (high <= 0) return 0.0;
  const std::int64_t low = std::max<std::int64_t>(1, std::min(first, last));
  return 0.5 * static_cast<double>(low + high) * static_cast<double>(high - low + 1);
}

/// Sum over rows of one sequence of the visible keys, as Problem::visible_keys counts them: the end
/// of a row's keys grows with it up to the length, the beginning grows once it has left 0, so that
/// the count is linear in at most three stretches of rows.
double sequence_pairs(const Problem& p, const Sequence& s) {
  if (!p.has_positional_mask())
    return static_cast<double>(s.q_length) * static_cast<double>(s.k_length);
  const std::int64_t rows = s.q_length;
  if (rows <= 0) return 0.0;
  std::int64_t end_ahead = s.shift() + p.right + 1;  // row i ends at i + end_ahead
  if (p.causal == Causal::top_left) end_ahead = std::min<std::int64_t>(end_ahead, 1);
  const std::int64_t begin_ahead = s.shift() - p.left;
  const std::int64_t ends_fixed = std::clamp<std::int64_t>(s.k_length - end_ahead, 0, rows);
  const std::int64_t begins_move = std::clamp<std::int64_t>(-begin_ahead, 0, rows);
  const std::int64_t cuts[] = {0, std::min(ends_fixed, begins_move),
                               std::max(ends_fixed, begins_move), rows};
  double pairs = 0.0;
  for (int part = 0; part < 3; ++part) {
    const std::int64_t from = cuts[part], to = cuts[part + 1];
    if (from == to) continue;
    const bool grows = from < ends_fixed, shrinks = from >= begins_move;
    const std::int64_t end = std::min(s.k_length, from + end_ahead);
    const std::int64_t begin = std::max<std::int64_t>(0, from + begin_ahead);
    pairs += ramp_sum(end - begin, (grows ? 1 : 0) - (shrinks ? 1 : 0), to - from);
  }
  return pairs;
}

bool lengths_on_host(const Problem& p) {
  const auto readable = [](const Tensor& t) { return !t.defined() || t.data != nullptr; };
  return p.device.type == DeviceType::cpu && readable(p.key_lengths) && readable(p.cu_seqlens_q) &&
         readable(p.cu_seqlens_k);
}

std::string shape_of(std::span<const std::int64_t> sizes) {
  std::string text = "(";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

std::int64_t count_of(std::string_view name, std::span<const std::int64_t> sizes) {
  std::int64_t elems = 1;
  for (const std::int64_t size : sizes) {
    if (size > 0 && elems > Tensor::kMaxElems / size) {
      throw OutOfMemory(std::string(name) + " " + shape_of(sizes) + " has more than 2^56 elements");
    }
    elems *= size;
  }
  return elems;
}

/// visit(part) for each tensor of the call that takes memory, in the order of the plan's list.
template <class Visit>
void for_tensors(const Problem& p, const Visit& visit) {
  using Role = MemoryItem::Role;
  const auto add = [&](const char* name, const Tensor& t, Role role, bool captured = false) {
    if (!t.defined()) return;
    std::array<std::int64_t, Tensor::kMaxRank> shape = t.sizes;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (t.strides[axis] == 0 && role == Role::input) shape[axis] = 1;  // it broadcasts
    }
    // The batch axis of packed tensors is the sequences', not memory.
    const bool pool = p.paged && (&t == &p.k || &t == &p.v);
    if (p.packed && t.rank >= 3 && !pool && !captured) shape[0] = 1;
    visit(memory_part(name, role, t.dtype, {shape.data(), static_cast<std::size_t>(t.rank)}));
  };
  add("Q", p.q, Role::input);
  add("K", p.k, Role::input);
  add("V", p.v, Role::input);
  add("bias", p.bias, Role::input);
  add("mask", p.mask, Role::input);
  for (const Tensor& t : p.score_function.captures) add("captured", t, Role::input, true);
  for (const Tensor& t : p.mask_function.captures) {
    // One that both read is there once.
    const auto& others = p.score_function.captures;
    const bool same = std::any_of(others.begin(), others.end(), [&](const Tensor& other) {
      return t.data != nullptr && t.data == other.data && t.sizes == other.sizes;
    });
    if (!same) add("captured", t, Role::input, true);
  }
  add("O", p.o, Role::output);
  add("LSE", p.lse, Role::output);
  add("dO", p.d_o, Role::gradient);
  add("dQ", p.dq, Role::gradient);
  add("dK", p.dk, Role::gradient);
  add("dV", p.dv, Role::gradient);
  add("dbias", p.dbias, Role::gradient);
  add("dsinks", p.dsinks, Role::gradient);
  for (const Tensor& t : p.dcaptures) add("dcaptured", t, Role::gradient, true);
}

}  // namespace

double positional_pairs(const Problem& p) {
  const auto heads = static_cast<double>(p.heads_q);
  const bool dense = !p.packed && !p.key_lengths.defined();
  const auto batch = static_cast<double>(p.batch);
  if (dense) return batch * heads * sequence_pairs(p, {0, p.seq_q, 0, p.seq_k});
  if (!lengths_on_host(p)) {
    const Sequence whole = {0, p.seq_q, 0, p.seq_k};
    if (!p.packed) return batch * heads * sequence_pairs(p, whole);
    // One sequence is as long as the longest, where that is told; the others share the rest.
    const std::int64_t others = p.batch - 1;
    const std::int64_t total_k = p.paged ? p.batch * p.seq_k : p.total_k;
    if (others < 1 || p.seq_q >= p.total_q || p.seq_k >= total_k) {
      const std::int64_t n = std::max<std::int64_t>(p.batch, 1);
      return batch * heads * sequence_pairs(p, {0, p.total_q / n, 0, total_k / n});
    }
    const Sequence other = {0, (p.total_q - p.seq_q) / others, 0, (total_k - p.seq_k) / others};
    return heads *
           (sequence_pairs(p, whole) + static_cast<double>(others) * sequence_pairs(p, other));
  }
  double pairs = 0.0;
  for (std::int64_t b = 0; b < p.batch; ++b) pairs += heads * sequence_pairs(p, p.sequence(b));
  return pairs;
}

namespace {

/// Entries of the batch, each as the share that it has of the longest one's pairs.
double whole_entries(const Problem& p) {
  const double whole = static_cast<double>(p.heads_q * p.seq_q) * static_cast<double>(p.seq_k);
  if ((!p.packed && !p.key_lengths.defined()) || whole <= 0.0) return static_cast<double>(p.batch);
  Problem all = p;
  all.causal = Causal::none;
  all.left = all.right = Problem::kUnbounded;
  return positional_pairs(all) / whole;
}

/// At most so many pairs are listed. Of a list that entries share each takes what its length has.
double listed_bound(const Problem& p) {
  const BlockList& list = p.block_list;
  if (p.listed_pairs >= 0.0) return p.listed_pairs;
  double pairs = static_cast<double>(list.block_index.sizes[0]);
  pairs *= static_cast<double>(list.block_q) * static_cast<double>(list.block_k);
  const Tensor& offsets = list.row_offsets;
  if (offsets.strides[0] == 0) pairs *= whole_entries(p);
  return offsets.strides[1] == 0 ? pairs * static_cast<double>(p.heads_q) : pairs;
}

}  // namespace

double visible_pairs(const Problem& p) {
  const double pairs = positional_pairs(p);
  const bool listed = p.block_list.defined() || p.listed_pairs >= 0.0;
  return listed ? std::min(pairs, listed_bound(p)) : pairs;
}

double attention_flops(const Problem& p) { return attention_flops(p, visible_pairs(p)); }

double attention_flops(const Problem& p, double pairs) {
  const auto d = static_cast<double>(p.head_dim);
  const auto dv = static_cast<double>(p.head_dim_v);
  const double per_pair = p.pass == Pass::forward ? 2.0 * (d + dv) : 2.0 * (3.0 * d + 2.0 * dv);
  return pairs * per_pair;
}

MemoryPart memory_part(const char* name, MemoryItem::Role role, DType dtype,
                       std::span<const std::int64_t> shape) {
  MemoryPart part{.name = name, .role = role, .dtype = dtype};
  part.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), part.sizes.begin());
  part.bytes = count_of(name, shape) * dtype_bytes(dtype);
  return part;
}

MemoryPart memory_part(const char* name, MemoryItem::Role role, DType dtype,
                       std::initializer_list<std::int64_t> shape) {
  return memory_part(name, role, dtype, std::span(shape.begin(), shape.size()));
}

MemoryItem MemoryPart::item() const {
  return {.name = name,
          .role = role,
          .shape = shape_of({sizes.data(), static_cast<std::size_t>(rank)}),
          .dtype = dtype,
          .bytes = bytes};
}

std::string refusal_of(const Preparation& preparation) {
  const std::string* reason = std::get_if<std::string>(&preparation);
  return reason != nullptr ? *reason : std::string();
}

MemoryItem memory_item(std::string name, MemoryItem::Role role, DType dtype,
                       const std::vector<std::int64_t>& shape) {
  const std::int64_t elems = count_of(name, shape);
  return {.name = std::move(name),
          .role = role,
          .shape = shape_of(shape),
          .dtype = dtype,
          .bytes = elems * dtype_bytes(dtype)};
}

std::vector<MemoryItem> problem_memory(const Problem& p) {
  std::vector<MemoryItem> items;
  items.reserve(16);
  for_tensors(p, [&](const MemoryPart& part) { items.push_back(part.item()); });
  return items;
}

double problem_bytes(const Problem& p) {
  double bytes = 0.0;
  for_tensors(p, [&](const MemoryPart& part) { bytes += static_cast<double>(part.bytes); });
  return bytes;
}

std::int64_t bytes_of(const std::vector<MemoryItem>& items, MemoryItem::Role role) {
  std::int64_t bytes = 0;
  for (const MemoryItem& item : items) {
    if (item.role == role) bytes += item.bytes;
  }
  return bytes;
}

}  // namespace tilewise
