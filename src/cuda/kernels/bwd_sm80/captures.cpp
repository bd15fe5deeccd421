#include "cuda/kernels/bwd_sm80/captures.h"

#include <algorithm>
#include <string>

#include "cuda/driver/memory.h"
#include "cuda/host/common.h"
#include "cuda/host/expression_text.h"
#include "cuda/host/expressions.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/bwd_sm80/capture_store_args.h"
#include "cuda/kernels/bwd_sm80/gate.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/tile/exact_sum_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using bwd_capture_store::Type;

std::vector<bool> wanted(const Problem& p) {
  std::vector<bool> which;
  for (const Tensor& t : p.dcaptures) which.push_back(t.defined());
  return which;
}

/// With `deterministic` sums that have several writers are exact, and their order does not show.
bool is_exact(const Problem& p, std::size_t capture) {
  return p.deterministic && !gate_of(p, capture);
}

Type type_of(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return Type::bf16;
    case DType::float16:
      return Type::fp16;
    case DType::float64:
      return Type::float64;
    default:
      return Type::float32;
  }
}

KernelUnit store_unit(const bwd_capture_store::Config& c) {
  return {.stem = "bwd_capture_store",
          .file = "bwd_sm80/capture_store",
          .config = ".type = static_cast<Type>(" + std::to_string(static_cast<int>(c.type)) + ")" +
                    (c.exact ? flag_text("exact", true) : ""),
          .threads = bwd_capture_store::kThreads};
}

}  // namespace

void store_capture(const float* sums, bool exact, const Tensor& to, int device, void* stream) {
  if (to.numel() == 0) return;
  bwd_capture_store::Args args;
  args.sums = sums;
  args.to = to.data;
  args.elements = to.numel();
  for (int axis = 0; axis < to.rank; ++axis) {
    args.sizes[axis] = to.sizes[axis];
    args.strides[axis] = to.strides[axis];
  }
  // Axes that a tensor of lower rank lacks come first.
  std::rotate(args.sizes, args.sizes + to.rank, args.sizes + 4);
  std::rotate(args.strides, args.strides + to.rank, args.strides + 4);
  const Kernel kernel = load(store_unit({type_of(to.dtype), exact}), device);
  launch(kernel, {.x = ceil_div(args.elements, bwd_capture_store::kThreads)}, stream, args);
}

namespace {

/// The gradients of some captured tensors.
KernelUnit unit_of(const bwd_sm80::Config& config, int min_blocks, const Problem& p,
                   const std::vector<bool>& which, bool exact) {
  KernelUnit made = bwd_tiles::query_unit(config, min_blocks);
  made.stem = "bwd_captures_sm80";
  made.file = "bwd_sm80/captures";
  return with_functions(std::move(made), p, captures_text(*p.score_gradient, which, exact));
}

std::string key_of(const Problem& p, const std::vector<bool>& which) {
  std::string key = expressions_key(p);
  for (const bool one : which) key += one ? '1' : '0';
  return key;
}

void launch_gate(const Problem& p, const bwd_sm80::Args& pass, const bwd_sm80::Config& config,
                 int min_blocks, std::size_t capture, const tile::Captures& captures,
                 void* stream) {
  const Gate gate = *gate_of(p, capture);
  std::vector<bool> which(p.dcaptures.size(), false);
  which[capture] = true;
  bwd_captures_sm80::BlockArgs args;
  args.pass = pass;
  args.capture = static_cast<int>(capture);
  args.batch = static_cast<int>(p.batch);
  for (int axis = 0; axis < 4; ++axis) {
    args.axes[axis] = gate.axes[axis];
    args.sizes[axis] = gate.sizes[axis];
    args.per[axis] = gate.per[axis];
  }
  const Kernel kernel =
      load_by_key("blocks " + key_of(p, which), config, p.device.index,
                  [&](const bwd_sm80::Config& c) { return gate_unit(c, min_blocks, p, capture); });
  launch(kernel, {.x = p.dcaptures[capture].numel()}, stream,
         tile::Expressed<bwd_captures_sm80::BlockArgs>{args, captures});
}

}  // namespace

bool wants_captures(const Problem& p) {
  return std::any_of(p.dcaptures.begin(), p.dcaptures.end(),
                     [](const Tensor& t) { return t.defined(); });
}

KernelUnit captures_unit(const bwd_sm80::Config& config, int min_blocks, const Problem& p) {
  return unit_of(config, min_blocks, p, wanted(p), p.deterministic);
}

KernelUnit gate_unit(const bwd_sm80::Config& config, int min_blocks, const Problem& p,
                     std::size_t capture) {
  std::vector<bool> which(p.dcaptures.size(), false);
  which[capture] = true;
  KernelUnit unit = unit_of(config, min_blocks, p, which, false);
  unit.entry = "blocks";
  unit.args = "tilewise::tile::Expressed<BlockArgs>";
  return unit;
}

void add_capture_memory(const Problem& p, std::vector<MemoryPart>& items) {
  for (std::size_t n = 0; n < p.dcaptures.size(); ++n) {
    const Tensor& t = p.dcaptures[n];
    if (!t.defined()) continue;
    const std::int64_t floats = is_exact(p, n) ? tile::ExactSum::kFloats : 1;
    items.push_back(memory_part("gradient of a captured tensor", MemoryItem::Role::workspace,
                                DType::float32, {t.numel(), floats}));
  }
}

void capture_gradients(const Problem& p, const bwd_sm80::Args& pass, const bwd_sm80::Config& config,
                       int min_blocks, WorkspaceCutter& workspace, void* stream) {
  if (!wants_captures(p)) return;
  bwd_sm80::Args args = pass;
  tile::Captures captures = captures_of(p);
  std::vector<bool> which(p.dcaptures.size(), false), gates = which;
  for (std::size_t n = 0; n < p.dcaptures.size(); ++n) {
    const Tensor& t = p.dcaptures[n];
    if (!t.defined()) continue;
    gates[n] = gate_of(p, n).has_value();
    which[n] = !gates[n];
    const std::int64_t floats = t.numel() * (is_exact(p, n) ? tile::ExactSum::kFloats : 1);
    captures.at[n].gradient = workspace.take<float>(floats);
    fill_bytes(captures.at[n].gradient, 0, floats * 4, p.device.index, stream);
  }
  const std::int64_t heads = p.stored_batch() * p.heads_q;
  const std::int64_t blocks = host::query_blocks(p, config.shape.block_m);
  args.order = {.blocks = static_cast<unsigned>(blocks),
                .splits = 1,
                .heads = static_cast<unsigned>(heads),
                .section = 1,
                .last_first = p.has_positional_mask()};
  const bool any = blocks * heads > 0 && p.seq_k > 0;
  if (any && std::find(which.begin(), which.end(), true) != which.end()) {
    const bool exact = p.deterministic;
    const Kernel kernel = load_by_key(
        (exact ? "exact " : "") + key_of(p, which), config, p.device.index,
        [&](const bwd_sm80::Config& c) { return unit_of(c, min_blocks, p, which, exact); });
    const Grid grid = {.x = blocks * heads};
    if (p.packed) {
      const bwd_sm80::RaggedArgs ragged = bwd_tiles::ragged_args(p, args);
      launch(kernel, grid, stream, tile::Expressed<bwd_sm80::RaggedArgs>{ragged, captures});
    } else {
      launch(kernel, grid, stream, tile::Expressed<bwd_sm80::Args>{args, captures});
    }
  }
  for (std::size_t n = 0; n < gates.size() && any; ++n) {
    if (gates[n]) launch_gate(p, args, config, min_blocks, n, captures, stream);
  }
  for (std::size_t n = 0; n < p.dcaptures.size(); ++n) {
    if (p.dcaptures[n].defined())
      store_capture(captures.at[n].gradient, is_exact(p, n), p.dcaptures[n], p.device.index,
                    stream);
  }
}

}  // namespace tilewise::cuda
