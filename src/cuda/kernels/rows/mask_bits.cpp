#include "cuda/kernels/rows/mask_bits.h"

#include "cuda/host/common.h"
#include "cuda/jit/config_text.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using mask_bits::Config;
using mask_bits::Way;

KernelUnit unit(const Config& config) {
  return {.stem = "mask_bits",
          .file = "rows/mask_bits",
          .config = ".way = static_cast<Way>(" + std::to_string(static_cast<int>(config.way)) +
                    ")" + number_text("block", config.block),
          .threads = mask_bits::kThreads};
}

/// True when the lines' first elements, and all strides but one, are whole multiples of `bytes`.
bool is_aligned(const mask_bits::Args& args, std::int64_t stride, std::uintptr_t bytes) {
  const auto whole = static_cast<std::int64_t>(bytes);
  return reinterpret_cast<std::uintptr_t>(args.mask) % bytes == 0 && args.stride_b % whole == 0 &&
         args.stride_h % whole == 0 && stride % whole == 0;
}

}  // namespace

MaskBitsMaker::MaskBitsMaker(const Problem& p, int block, bool by_keys)
    : defined_(p.mask.defined()), device_(p.device.index) {
  if (!defined_) return;
  const Tensor& mask = p.mask;
  const auto size = [&](std::size_t axis, std::int64_t all) {
    return static_cast<int>(mask.strides[axis] == 0 ? 1 : all);
  };
  const int queries = size(2, p.total_q), keys = size(3, p.seq_k);
  args_.mask = static_cast<const unsigned char*>(mask.data);
  args_.stride_b = mask.strides[0];
  args_.stride_h = mask.strides[1];
  args_.stride_line = mask.strides[by_keys ? 3 : 2];
  args_.stride_element = mask.strides[by_keys ? 2 : 3];
  args_.batch = size(0, p.batch);
  args_.heads = size(1, p.heads_q);
  args_.lines = by_keys ? keys : queries;
  // An axis that broadcasts is one block of elements that are all alike.
  args_.elements = by_keys ? queries : keys;
  if (args_.stride_element == 0) args_.elements = block;
  args_.blocks = static_cast<int>(ceil_div(args_.elements, block));
  config_ = {.way = Way::single, .block = block};
  if (args_.stride_element == 1 && is_aligned(args_, args_.stride_line, 16)) {
    config_.way = Way::along;
  } else if (args_.stride_line == 1 && args_.lines % 4 == 0 &&
             is_aligned(args_, args_.stride_element, 4)) {
    config_.way = Way::across;
  }
}

std::int64_t MaskBitsMaker::words() const {
  return std::int64_t{4} * args_.batch * args_.heads * args_.lines * args_.blocks;
}

double MaskBitsMaker::bytes() const {
  if (!defined_) return 0.0;
  const double elements = static_cast<double>(args_.elements);
  return static_cast<double>(std::int64_t{args_.batch} * args_.heads * args_.lines) * elements +
         4.0 * static_cast<double>(words());
}

void MaskBitsMaker::add_memory(std::vector<MemoryPart>& items) const {
  if (!defined_) return;
  items.push_back(
      memory_part("bits of the mask", MemoryItem::Role::workspace, DType::int32, {words()}));
}

void MaskBitsMaker::take(WorkspaceCutter& workspace) {
  if (defined_) args_.words = workspace.take<unsigned>(words());
}

std::int64_t MaskBitsMaker::blocks() const {
  const std::int64_t lines = ceil_div(args_.lines, mask_bits::lines(config_.way));
  const std::int64_t threads = std::int64_t{args_.batch} * args_.heads * lines * args_.blocks *
                               mask_bits::threads(config_.way);
  return ceil_div(threads, mask_bits::kThreads);
}

tile::MaskBits MaskBitsMaker::bits() const {
  if (!defined_) return {};
  const auto stride = [](int size, std::int64_t words) { return size > 1 ? words : 0; };
  const std::int64_t line = std::int64_t{4} * args_.blocks, head = line * args_.lines;
  return {.words = args_.words,
          .stride_b = stride(args_.batch, head * args_.heads),
          .stride_h = stride(args_.heads, head),
          .stride_line = stride(args_.lines, line),
          .stride_block = stride(args_.blocks, 4)};
}

void MaskBitsMaker::make(void* stream) const {
  if (!defined_) return;
  launch(host::load_config(config_, device_, unit), {.x = blocks()}, stream, args_);
}

double mask_bits_ms(const MaskBitsMaker& maker, double bandwidth_gbps) {
  if (maker.bytes() == 0.0) return 0.0;
  return host::kKernelMs + 1e-6 * maker.bytes() / bandwidth_gbps;
}

}  // namespace tilewise::cuda
