#include "cuda/kernels/bwd_sm90/options.h"

#include <algorithm>

#include "cuda/driver/memory.h"
#include "cuda/host/common.h"
#include "cuda/host/shared_bias.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/rows/convert.h"
#include "problem/blocks.h"

namespace tilewise::cuda {

using bwd_sm90::Config;

namespace {

/// What a bias must be and does not go with here.
std::string bias_refusal(const Problem& p) {
  if (!p.bias.defined()) return {};
  if (std::max(p.head_dim, p.head_dim_v) > 128)
    return "a bias above head dim 128 is not supported by this kernel";
  if (p.packed) return "a bias of packed sequences is not supported by this kernel";
  if (p.block_list.defined() || p.score_function.defined() || p.mask_function.defined())
    return "a bias beside a block list or a function is not supported by this kernel";
  if (dtype_bytes(p.bias.dtype) != 2)
    return "a bias of " + std::string(dtype_name(p.bias.dtype)) +
           " is not supported by this kernel";
  if (p.bias.strides[3] != 1)
    return "a bias whose keys do not lie side by side is not supported by this kernel";
  if (bwd_sm90::SharedPlan(bwd_sm90_config(p)).bytes > bwd_sm90::SharedPlan::kRoom)
    return "a bias of every query beside a softcap above head dim 64 is not supported by this "
           "kernel";
  return bias_map_refusal(p.bias);
}

}  // namespace

std::string bwd_sm90_options_refusal(const Problem& p) {
  if (p.mask.defined() && std::max(p.head_dim, p.head_dim_v) > 128)
    return "a bool mask above head dim 128 is not supported by this kernel";
  if (p.mask.defined() && p.packed)
    return "a bool mask of packed sequences is not supported by this kernel";
  if (p.precision == Precision::refined && (p.packed || p.block_list.defined()))
    return "refined gradients of packed sequences or block lists are not supported by this kernel";
  if (drops(p) && std::max(p.head_dim, p.head_dim_v) > 128)
    return "dropout above head dim 128 is not supported by this kernel";
  if ((p.sinks.defined() || drops(p)) && p.packed && bwd_tiles::is_small(p))
    return "small packed problems with sinks or dropout are left to flash_bwd_sm80";
  return bias_refusal(p);
}

bool bwd_sm90_sums_bias(const Problem& p, const Config& config) {
  return p.dbias.defined() && config.options.pairs.staged && p.dbias.strides[3] != 0 &&
         p.seq_k > 1 && !config.logits.softcap && !config.sums.deterministic && !config.two_plane &&
         !config.large_dim();
}

BiasSumsMaker::BiasSumsMaker(const Problem& p, const Config& config)
    : problem_(p), defined_(config.sums.bias) {
  if (!defined_) return;
  own_ = stored_bias(p.dbias);
  rows_ = round_up(p.seq_q, config.shape.block_m);
  keys_ = round_up(p.seq_k, config.shape.block_n);
}

std::int64_t BiasSumsMaker::floats() const { return own_.sizes[0] * own_.sizes[1] * rows_ * keys_; }

void BiasSumsMaker::add_memory(std::vector<MemoryPart>& items) const {
  if (!defined_) return;
  items.push_back(memory_part("dbias sums", MemoryItem::Role::workspace, DType::float32,
                              {own_.sizes[0], own_.sizes[1], rows_, keys_}));
}

tile::BiasSums BiasSumsMaker::take(WorkspaceCutter& workspace, void* stream) {
  if (!defined_) return {};
  sums_ = workspace.take<float>(floats());
  fill_bytes(sums_, 0, 4 * floats(), problem_.device.index, stream);
  const std::int64_t head = rows_ * keys_;
  return {.sums = sums_,
          .stride_b = own_.sizes[0] > 1 ? own_.sizes[1] * head : 0,
          .stride_h = own_.sizes[1] > 1 ? head : 0,
          .fragments = static_cast<int>(keys_ / 8)};
}

void BiasSumsMaker::make_gradient(void* stream) const {
  if (!defined_) return;
  const SummedGradient sum{sums_, &own_, rows_, static_cast<int>(keys_), 1.0F, 1};
  convert_gradients(problem_, {&sum, 1}, stream);
}

tile::BiasTiles bwd_sm90_bias_tiles(const Problem& p, const Config& config) {
  if (!p.bias.defined()) return {};
  return bias_tiles(p.bias, config.options.pairs.staged ? config.shape.block_m : 1);
}

}  // namespace tilewise::cuda
