#include "cuda/kernels/rows/merge.h"

#include <string>

#include "cuda/host/common.h"
#include "cuda/jit/config_text.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using merge_rows::Config;
using merge_rows::Type;

KernelUnit unit(const Config& config) {
  const char* const type = config.type == Type::bf16   ? "bf16"
                           : config.type == Type::fp16 ? "fp16"
                                                       : "float32";
  return {.stem = "merge_rows",
          .file = "rows/merge",
          .config = std::string(".type = Type::") + type + flag_text("vectors", config.vectors) +
                    number_text("lanes", config.lanes),
          .threads = merge_rows::kThreads};
}

merge_rows::RowStatistics statistics(const Tensor& t) {
  return {.data = static_cast<float*>(t.data),
          .stride_b = t.strides[0],
          .stride_h = t.strides[1],
          .stride_s = t.strides[2]};
}

}  // namespace

Config merge_config(const Tensor& o, const Tensor& o_other) {
  const std::int64_t dim = o.sizes[3], chunks = ceil_div(dim, 8);
  Config config;
  config.type = o.dtype == DType::bfloat16  ? Type::bf16
                : o.dtype == DType::float16 ? Type::fp16
                                            : Type::float32;
  config.vectors = dim % 8 == 0 && host::has_vectors(o) && host::has_vectors(o_other);
  config.lanes = chunks <= 4 ? 4 : chunks <= 8 ? 8 : chunks <= 16 ? 16 : 32;
  return config;
}

merge_rows::Args merge_args(const Tensor& o, const Tensor& lse, const Tensor& o_other,
                            const Tensor& lse_other) {
  return {.o = host::view4(o),
          .other = host::view4(o_other),
          .lse = statistics(lse),
          .other_lse = statistics(lse_other),
          .rows = o.sizes[0] * o.sizes[1] * o.sizes[2],
          .heads = static_cast<int>(o.sizes[1]),
          .seq_q = static_cast<int>(o.sizes[2]),
          .head_dim_v = static_cast<int>(o.sizes[3])};
}

void merge(const Tensor& o, const Tensor& lse, const Tensor& o_other, const Tensor& lse_other,
           void* stream) {
  if (o.numel() == 0) return;
  const int device = o.device.index;
  const Config config = merge_config(o, o_other);
  const merge_rows::Args args = merge_args(o, lse, o_other, lse_other);
  const std::int64_t blocks = ceil_div(args.rows * config.lanes, merge_rows::kThreads);
  launch(host::load_config(config, device, unit), host::following(blocks, device), stream, args);
}

}  // namespace tilewise::cuda
