#include "cuda/kernels/textbook/textbook.h"

#include <limits>

#include "cuda/host/fill.h"
#include "cuda/host/refusal.h"

namespace tilewise::cuda {

std::string textbook_refusal(const Problem& p) {
  std::string reason = option_refusal(p);
  if (!reason.empty()) return reason;
  if (p.key_lengths.defined()) return "key lengths are not supported by this kernel";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t size : {p.seq_q * p.group(), p.seq_k, p.head_dim, p.head_dim_v}) {
    if (size > kMost)
      return "lengths and head dims above " + std::to_string(kMost) +
             " are not supported by this kernel";
  }
  if (score_rows(p) > kMost)
    return "more than " + std::to_string(kMost) +
           " rows of scores are not supported by this kernel";
  return "";
}

std::string storage_config(DType dtype) {
  const char* name = dtype == DType::float32    ? "float32"
                     : dtype == DType::bfloat16 ? "bf16"
                                                : "fp16";
  return std::string(".storage = tilewise::textbook::Storage::") + name;
}

textbook::LogitRule logit_rule(const Problem& p) {
  textbook::LogitRule rule;
  rule.scale = p.scale;
  rule.softcap = static_cast<float>(p.softcap);
  host::fill_alibi(rule, p);
  rule.left = p.left;
  rule.right = p.right;
  rule.top_left = p.causal == Causal::top_left;
  rule.heads = static_cast<int>(p.heads_q);
  rule.seq_q = static_cast<int>(p.seq_q);
  rule.seq_k = static_cast<int>(p.seq_k);
  return rule;
}

textbook::RowView row_view(const Tensor& t) {
  if (!t.defined()) return {};
  return {static_cast<float*>(t.data), t.strides[0], t.strides[1], t.strides[2]};
}

tile::View4 view4(const Tensor& t) {
  return {t.data, t.strides[0], t.strides[1], t.strides[2], t.strides[3]};
}

std::int64_t score_rows(const Problem& p) { return p.batch * p.heads_q * p.seq_q; }

}  // namespace tilewise::cuda
