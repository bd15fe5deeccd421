#include "plan/problem_key.h"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "problem/named_tensors.h"

namespace tilewise {
namespace {

/// As far as GPU kernels look at an address: units of vectors and of tensor maps. CPU kernels take
/// any.
constexpr std::uintptr_t kAlignment = 16;

/// The bytes so far, on the stack: a key is made in every call.
class Bytes {
 public:
  template <class T>
  void add(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>, "padding has no fixed bytes");
    add(&value, sizeof value);
  }

  void add(const Tensor& t) {
    add(t.rank);
    if (!t.defined()) return;
    add(t.dtype);
    add(t.device.type);
    add(t.device.index);
    if (t.device.type == DeviceType::cuda)
      add(reinterpret_cast<std::uintptr_t>(t.data) % kAlignment);
    const auto bytes = static_cast<std::size_t>(t.rank) * sizeof(std::int64_t);
    add(t.sizes.data(), bytes);
    add(t.strides.data(), bytes);
  }

  std::string_view view() const { return {bytes_.data(), size_}; }

 private:
  void add(const void* data, std::size_t bytes) {
    assert(size_ + bytes <= bytes_.size());
    std::memcpy(bytes_.data() + size_, data, bytes);
    size_ += bytes;
  }

  static constexpr std::size_t kTensorBytes = 24 + 16 * Tensor::kMaxRank, kNumberBytes = 256;
  static constexpr std::size_t kTensors = kForwardTensors<Problem>.size() +
                                          kGradientTensors<Problem>.size() +
                                          kOptionTensors<Problem>.size() + kListTensors.size();
  static constexpr std::size_t kMost = kTensors * kTensorBytes + kNumberBytes;
  std::size_t size_ = 0;
  std::array<char, kMost> bytes_;  ///< read up to size_
};

void add_tensor(std::string& key, const Tensor& t) {
  Bytes bytes;
  bytes.add(t);
  key.append(bytes.view());
}

/// The text is there once for each of the two functions, and its length before it, so that no two
/// pairs of functions are one key.
void add_function(std::string& key, const expression::Function& function) {
  Bytes bytes;
  bytes.add(function.defined() ? function.program->text.size() : std::size_t{0});
  key.append(bytes.view());
  if (!function.defined()) return;
  key.append(function.program->text);
  for (const Tensor& t : function.captures) add_tensor(key, t);
}

}  // namespace

bool has_values_in_keys(const Problem& p) {
  return p.head_dim_v < p.head_dim && p.v.data == p.k.data && p.v.strides == p.k.strides &&
         p.v.dtype == p.k.dtype;
}

// NOTE: a field that rows read and that is missing here gives a call another call's plan.
std::string problem_key(const Problem& p, std::string_view more) {
  Bytes key;
  for (const std::int64_t size :
       {p.batch, p.heads_q, p.heads_k, p.seq_q, p.seq_k, p.total_q, p.total_k, p.head_dim,
        p.head_dim_v, p.page_size, p.left, p.right, p.block_list.block_q, p.block_list.block_k}) {
    key.add(size);
  }
  for (const double number : {p.scale64, p.softcap, p.dropout.p}) key.add(number);
  // A plan made before saved state has memory knows that it will be given.
  const bool saves = p.saved.data != nullptr || p.saved.bytes > 0;
  // Sequences of queries are those of keys.
  const bool same = p.packed && p.cu_seqlens_q.data == p.cu_seqlens_k.data;
  for (const bool flag : {p.packed, p.paged, p.deterministic, p.score_mod != nullptr, saves,
                          has_values_in_keys(p), same}) {
    key.add(flag);
  }
  key.add(p.pass);
  key.add(p.device.type);
  key.add(p.device.index);
  key.add(p.dtype);
  key.add(p.causal);
  key.add(p.precision);
  const auto add = [&](const char*, const Tensor& t) { key.add(t); };
  for_operands(p, add);
  for_options(p, add);
  std::string made;
  made.reserve(key.view().size() + more.size());
  made.append(key.view());
  add_function(made, p.score_function);
  add_function(made, p.mask_function);
  for (const Tensor& t : p.dcaptures) add_tensor(made, t);
  return made.append(more);
}

bool reads_host_lengths(const Problem& p) {
  for (const Tensor* t :
       {&p.key_lengths, &p.cu_seqlens_q, &p.cu_seqlens_k, &p.block_list.row_offsets}) {
    if (t->defined() && t->device.type == DeviceType::cpu) return true;
  }
  return false;
}

}  // namespace tilewise
