#include "plan/accounting.h"

#include <algorithm>

#include "plan/kernel_row.h"

namespace tilewise {
namespace {

/// Sum over rows of one sequence of the visible keys. The count is piecewise linear in i; rows are
/// walked, since lengths are at most millions and planning is not a hot path beside them.
double sequence_pairs(const Problem& p, const Sequence& s) {
  if (!p.has_positional_mask())
    return static_cast<double>(s.q_length) * static_cast<double>(s.k_length);
  double pairs = 0.0;
  for (std::int64_t i = 0; i < s.q_length; ++i) {
    const KeyRange keys = p.visible_keys(s, i);
    pairs += static_cast<double>(keys.end - keys.begin);
  }
  return pairs;
}

bool lengths_on_host(const Problem& p) {
  const Tensor& lengths = p.packed ? p.cu_seqlens_q : p.key_lengths;
  return p.device.type == DeviceType::cpu && lengths.data != nullptr &&
         (!p.packed || p.cu_seqlens_k.data != nullptr);
}

std::string shape_of(const std::vector<std::int64_t>& sizes) {
  std::string text = "(";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

}  // namespace

double visible_pairs(const Problem& p) {
  const auto heads = static_cast<double>(p.heads_q);
  const bool dense = !p.packed && !p.key_lengths.defined();
  const auto batch = static_cast<double>(p.batch);
  if (dense) return batch * heads * sequence_pairs(p, {0, p.seq_q, 0, p.seq_k});
  if (!lengths_on_host(p)) {  // every sequence of average length
    const std::int64_t n = std::max<std::int64_t>(p.batch, 1);
    const Sequence mean =
        p.packed ? Sequence{0, p.total_q / n, 0, p.total_k / n} : Sequence{0, p.seq_q, 0, p.seq_k};
    return batch * heads * sequence_pairs(p, mean);
  }
  double pairs = 0.0;
  for (std::int64_t b = 0; b < p.batch; ++b) pairs += heads * sequence_pairs(p, p.sequence(b));
  return pairs;
}

double attention_flops(const Problem& p) {
  const auto d = static_cast<double>(p.head_dim);
  const auto dv = static_cast<double>(p.head_dim_v);
  const double per_pair = p.pass == Pass::forward ? 2.0 * (d + dv) : 2.0 * (3.0 * d + 2.0 * dv);
  return visible_pairs(p) * per_pair;
}

MemoryItem memory_item(std::string name, MemoryItem::Role role, DType dtype,
                       std::vector<std::int64_t> shape) {
  std::int64_t elems = 1;
  for (const std::int64_t size : shape) elems *= size;
  return {.name = std::move(name),
          .role = role,
          .shape = shape_of(shape),
          .dtype = dtype,
          .bytes = elems * dtype_bytes(dtype)};
}

std::vector<MemoryItem> problem_memory(const Problem& p) {
  using Role = MemoryItem::Role;
  std::vector<MemoryItem> items;
  const auto add = [&](const char* name, const Tensor& t, Role role) {
    if (!t.defined()) return;
    std::vector<std::int64_t> shape;
    for (int axis = 0; axis < t.rank; ++axis) {
      const auto a = static_cast<std::size_t>(axis);
      const bool broadcast = t.strides[a] == 0 && role == Role::input;
      shape.push_back(broadcast ? 1 : t.sizes[a]);
    }
    if (p.packed && t.rank >= 3)
      shape[0] = 1;  // the batch axis of packed tensors is the sequences', not memory
    items.push_back(memory_item(name, role, t.dtype, shape));
  };
  add("Q", p.q, Role::input);
  add("K", p.k, Role::input);
  add("V", p.v, Role::input);
  add("bias", p.bias, Role::input);
  add("mask", p.mask, Role::input);
  add("O", p.o, Role::output);
  add("LSE", p.lse, Role::output);
  add("dO", p.d_o, Role::gradient);
  add("dQ", p.dq, Role::gradient);
  add("dK", p.dk, Role::gradient);
  add("dV", p.dv, Role::gradient);
  add("dbias", p.dbias, Role::gradient);
  add("dsinks", p.dsinks, Role::gradient);
  return items;
}

std::int64_t bytes_of(const std::vector<MemoryItem>& items, MemoryItem::Role role) {
  std::int64_t bytes = 0;
  for (const MemoryItem& item : items) {
    if (item.role == role) bytes += item.bytes;
  }
  return bytes;
}

}  // namespace tilewise
