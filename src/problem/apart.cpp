#include "problem/apart.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "problem/arguments.h"

namespace tilewise {
namespace {

struct Named {
  const char* name;
  const Tensor* tensor;
};

/// Where a tensor's elements lie. `whole`: nothing lies between them.
struct Place {
  std::uintptr_t begin = 0, end = 0;
  std::uintptr_t bytes = 0;  ///< of an element
  bool whole = false;

  explicit Place(const Tensor& t) {
    const std::int64_t elements = t.defined() && t.data != nullptr ? t.numel() : 0;
    if (elements == 0) return;
    std::int64_t low = 0, high = 0, distinct = 1;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(t.rank); ++axis) {
      const std::int64_t reach = (t.sizes[axis] - 1) * t.strides[axis];
      (reach < 0 ? low : high) += reach;
      if (t.strides[axis] != 0) distinct *= t.sizes[axis];
    }
    bytes = static_cast<std::uintptr_t>(dtype_bytes(t.dtype));
    begin = reinterpret_cast<std::uintptr_t>(t.data) + static_cast<std::uintptr_t>(low) * bytes;
    end = begin + static_cast<std::uintptr_t>(high - low + 1) * bytes;
    whole = distinct == high - low + 1;
  }
  bool holds(std::uintptr_t at) const { return whole && at >= begin && at < end; }
  /// The first and the last byte of memory are an element's.
  bool reaches_into(const Place& other) const { return other.holds(begin) || other.holds(end - 1); }
};

bool share_memory(const Tensor& a, const Place& in_a, const Tensor& b) {
  const Place in_b(b);
  if (in_a.end <= in_b.begin || in_b.end <= in_a.begin || a.device != b.device) return false;
  return a.data == b.data || in_a.reaches_into(in_b) || in_b.reaches_into(in_a);
}

void require_apart(const Named& output, std::span<const Named> others) {
  const Place place(*output.tensor);
  if (place.end == 0) return;
  for (const Named& other : others) {
    if (!share_memory(*output.tensor, place, *other.tensor)) continue;
    arguments::fail(
        output.name, *output.tensor,
        std::string("it shares memory with ") + other.name + "; an output needs its own memory");
  }
}

/// Each output against the inputs and the outputs before it.
void require_apart(std::initializer_list<Named> outputs, std::initializer_list<Named> inputs,
                   const AttentionSpec& s) {
  const std::array<Named, 12> of_spec = {{{"mask", &s.mask},
                                          {"bias", &s.bias},
                                          {"alibi_slopes", &s.alibi_slopes},
                                          {"sinks", &s.sinks},
                                          {"key_lengths", &s.key_lengths},
                                          {"block_table", &s.block_table},
                                          {"cu_seqlens_q", &s.cu_seqlens_q},
                                          {"cu_seqlens_k", &s.cu_seqlens_k},
                                          {"dropout_counter", &s.dropout_counter},
                                          {"block_list.row_offsets", &s.block_list.row_offsets},
                                          {"block_list.block_index", &s.block_list.block_index},
                                          {"block_list.block_full", &s.block_list.block_full}}};
  for (const Named& output : outputs) {
    require_apart(output, inputs);
    require_apart(output, of_spec);
    require_apart(output, std::span(outputs.begin(), &output));
  }
}

}  // namespace

void require_apart(const AppendTensors& t) {
  const std::array<Named, 5> others = {
      {{"q", &t.q}, {"k", &t.k}, {"v", &t.v}, {"k_cache", &t.k_cache}, {"v_cache", &t.v_cache}}};
  require_apart({"rotated_q", &t.rotated_q}, others);
  for (const Named& cache : std::span(others).last(2)) {
    require_apart(cache, std::span(others).first(3));
  }
}

void require_apart(const ForwardTensors& t, const AttentionSpec& spec) {
  require_apart({{"o", &t.o}, {"lse", &t.lse}}, {{"q", &t.q}, {"k", &t.k}, {"v", &t.v}}, spec);
}

void require_apart(const BackwardTensors& t, const AttentionSpec& spec) {
  require_apart(
      {{"dq", &t.dq}, {"dk", &t.dk}, {"dv", &t.dv}, {"dbias", &t.dbias}, {"dsinks", &t.dsinks}},
      {{"q", &t.q},
       {"k", &t.k},
       {"v", &t.v},
       {"o", &t.o},
       {"lse", &t.lse},
       {"d_o", &t.d_o},
       {"d_lse", &t.d_lse}},
      spec);
}

void require_usable(const char* name, const void* data, std::int64_t bytes, const Problem& p) {
  constexpr std::uintptr_t kAlignment = 256;
  const bool on_gpu = p.device.type == DeviceType::cuda;
  if (on_gpu && reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) {
    throw InvalidArgument(std::string(name) + " is not aligned: expected memory aligned to " +
                          std::to_string(kAlignment) + " bytes");
  }
  // The tensor is only compared: nothing writes through it.
  const Tensor block = Tensor::contiguous(const_cast<void*>(data), DType::uint8, {bytes}, p.device);
  const Place place(block);
  if (place.end == 0) return;
  const std::array<Named, 24> tensors = {{{"q", &p.q},
                                          {"k", &p.k},
                                          {"v", &p.v},
                                          {"o", &p.o},
                                          {"lse", &p.lse},
                                          {"d_o", &p.d_o},
                                          {"d_lse", &p.d_lse},
                                          {"dq", &p.dq},
                                          {"dk", &p.dk},
                                          {"dv", &p.dv},
                                          {"dbias", &p.dbias},
                                          {"dsinks", &p.dsinks},
                                          {"mask", &p.mask},
                                          {"bias", &p.bias},
                                          {"alibi_slopes", &p.alibi_slopes},
                                          {"sinks", &p.sinks},
                                          {"key_lengths", &p.key_lengths},
                                          {"block_table", &p.block_table},
                                          {"cu_seqlens_q", &p.cu_seqlens_q},
                                          {"cu_seqlens_k", &p.cu_seqlens_k},
                                          {"dropout_counter", &p.dropout_counter},
                                          {"block_list.row_offsets", &p.block_list.row_offsets},
                                          {"block_list.block_index", &p.block_list.block_index},
                                          {"block_list.block_full", &p.block_list.block_full}}};
  for (const Named& other : tensors) {
    if (!share_memory(block, place, *other.tensor)) continue;
    throw InvalidArgument(std::string(name) + " shares memory with " + other.name + ": its " +
                          std::to_string(bytes) + " bytes need their own memory");
  }
}

}  // namespace tilewise
