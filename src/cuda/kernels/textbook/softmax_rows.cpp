#include "cuda/kernels/textbook/softmax_rows.h"

#include "cuda/jit/kernel.h"
#include "cuda/kernels/textbook/textbook.h"

namespace tilewise::cuda {
namespace {

KernelUnit step_unit(const char* entry, DType dtype) {
  return {.stem = "softmax_rows",
          .file = "textbook/softmax_rows",
          .config = storage_config(dtype),
          .threads = textbook::kThreads,
          .entry = entry};
}

/// How a row is spread over a block: as many elements a thread as its registers keep.
struct RowShape {
  int threads, items;
  int min_blocks;  ///< on a multiprocessor: one block's reductions hide behind another's loads
  std::int64_t longest() const { return static_cast<std::int64_t>(threads) * items; }
};
constexpr RowShape kShapes[] = {{256, 4, 8}, {256, 16, 4}, {512, 16, 2}, {1024, 16, 1}};
constexpr RowShape kAnyLength = {1024, 0, 1};

RowShape row_shape(std::int64_t n) {
  for (const RowShape& shape : kShapes) {
    if (n <= shape.longest()) return shape;
  }
  return kAnyLength;
}

KernelUnit one_pass_unit(const char* entry, DType dtype, RowShape shape) {
  return {.stem = "softmax_rows",
          .file = "textbook/softmax_rows",
          .config = storage_config(dtype) + ", .threads = " + std::to_string(shape.threads) +
                    ", .items = " + std::to_string(shape.items),
          .threads = shape.threads,
          .min_blocks = shape.min_blocks,
          .entry = entry};
}

void start(const KernelUnit& unit, const Problem& p, const softmax_rows::Args& args, void* stream) {
  launch(load(unit, p.device.index), {.x = score_rows(p)}, stream, args);
}

}  // namespace

void softmax_forward(const Problem& p, const softmax_rows::Args& args, bool one_pass,
                     void* stream) {
  if (one_pass)
    return start(one_pass_unit("forward", p.dtype, row_shape(p.seq_k)), p, args, stream);
  for (const char* entry : {"logits", "statistics", "probabilities"}) {
    start(step_unit(entry, p.dtype), p, args, stream);
  }
}

void softmax_backward(const Problem& p, const softmax_rows::Args& args, bool one_pass,
                      void* stream) {
  if (one_pass)
    return start(one_pass_unit("backward", p.dtype, row_shape(p.seq_k)), p, args, stream);
  for (const char* entry : {"row_delta", "score_gradient", "scale_gradient"}) {
    start(step_unit(entry, p.dtype), p, args, stream);
  }
}

Walks softmax_walks(Pass pass, bool one_pass, DType dtype) {
  if (pass == Pass::forward) return one_pass ? Walks{1.0, 1.0} : Walks{5.0, 1.0};
  // In 16 bits P comes from S.
  if (dtype != DType::float32) return one_pass ? Walks{2.0, 1.0} : Walks{7.0, 1.0};
  return one_pass ? Walks{1.0, 2.0} : Walks{5.0, 3.0};
}

void add_softmax_units(std::vector<PackUnit>& units) {
  // One of each kind: they compile in a tenth of a second, and the pack's room belongs to flash.
  const DType dtype = DType::float32;
  const RowShape shape = row_shape(4096);
  units.push_back({.unit = step_unit("logits", dtype), .row = "eager_fwd_cuda"});
  units.push_back({.unit = step_unit("scale_gradient", dtype), .row = "eager_bwd_cuda"});
  units.push_back({.unit = one_pass_unit("forward", dtype, shape), .row = "fused_fwd_cuda"});
  units.push_back({.unit = one_pass_unit("backward", dtype, shape), .row = "fused_bwd_cuda"});
}

}  // namespace tilewise::cuda
