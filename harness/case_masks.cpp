#include "harness/case_masks.h"

#include <algorithm>
#include <limits>

#include "problem/arguments.h"
#include "problem/blocks.h"

namespace tilewise {
namespace {

bool inside(const Region& region, std::int64_t b, std::int64_t i, std::int64_t j, double random) {
  if (region.batch >= 0 && region.batch != b) return false;
  switch (region.kind) {
    case Region::Kind::all:
      return true;
    case Region::Kind::rows:
      return i >= region.begin && i <= region.end;
    case Region::Kind::keys:
      return j >= region.begin && j <= region.end;
    case Region::Kind::upper:
      return j > i;
    case Region::Kind::beyond:
      return i >= region.begin || j >= region.begin;
    case Region::Kind::some:
      return random < region.fraction;
  }
  return false;
}

double lowest(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return std::numeric_limits<double>::lowest();
    case DType::bfloat16:
      return -0x1.FEp127;
    case DType::float16:
      return -65504.0;
    default:
      return static_cast<double>(std::numeric_limits<float>::lowest());
  }
}

/// Queries and keys of an entry or a packed sequence.
std::pair<std::int64_t, std::int64_t> lengths_of(const Case& c, std::int64_t b) {
  const auto n = static_cast<std::size_t>(b);
  if (c.packed) return {c.packed->q_lengths[n], c.packed->k_lengths[n]};
  return {c.seq_q, c.key_lengths.empty() ? c.seq_k : c.key_lengths[n]};
}

/// True when block (rows i0.., keys j0..) has no key that causal or window hides, and lies inside
/// the lengths.
bool untouched(const Case& c, std::int64_t b, std::int64_t i0, std::int64_t i1, std::int64_t j0,
               std::int64_t j1) {
  if (c.mask) return false;
  const auto [rows, length] = lengths_of(c, b);
  if (j1 > length || i1 > rows) return false;
  const std::int64_t shift = length - rows;
  if (c.causal == Causal::bottom_right && j1 - 1 > i0 + shift) return false;
  if (c.causal == Causal::top_left && j1 - 1 > i0) return false;
  if (c.window.left && j0 < i1 - 1 + shift - *c.window.left) return false;
  return !c.window.right || j1 - 1 <= i0 + shift + *c.window.right;
}

}  // namespace

CaseRows::CaseRows(const Case& c) {
  if (!c.packed) {
    key_lengths = c.key_lengths;
    if (key_lengths.empty()) key_lengths.assign(static_cast<std::size_t>(c.batch), c.seq_k);
    max_k = c.seq_k;
    return;
  }
  key_lengths = c.packed->k_lengths;
  for (std::int64_t length : key_lengths) max_k = std::max(max_k, length);
  if (c.page_size > 0) max_k = c.seq_k;
  packed_rows.reserve(static_cast<std::size_t>(c.seq_q));
  for (std::size_t b = 0; b < c.packed->q_lengths.size(); ++b) {
    for (std::int64_t i = 0; i < c.packed->q_lengths[b]; ++i) {
      packed_rows.push_back({static_cast<std::int64_t>(b), i});
    }
  }
  packed_rows.resize(static_cast<std::size_t>(c.seq_q));
}

Tensor PairShape::view(void* data, DType dtype, Device device) const {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.device = device;
  tensor.rank = rank;
  const std::int64_t offset = placement.origin * dtype_bytes(dtype);
  tensor.data = data == nullptr ? nullptr : static_cast<std::byte*>(data) + offset;
  const auto first = static_cast<std::size_t>(4 - rank);
  for (std::size_t n = first; n < 4; ++n) {
    tensor.sizes[n - first] = sizes[n];
    tensor.strides[n - first] = placement.strides[n];
  }
  return tensor;
}

PairShape pair_shape(const Case& c, const Axes& axes, View view) {
  const CaseRows rows(c);
  const Sizes full{c.packed ? 1 : c.batch, c.heads_q, c.seq_q, rows.max_k};
  Sizes own{};
  for (std::size_t n = 0; n < 4; ++n) own[n] = axes[n] ? full[n] : 1;
  PairShape shape;
  shape.rank = c.packed ? 3 : 4;
  shape.sizes = view == Layout::expanded ? full : own;
  shape.placement = place(view == Layout::expanded ? Layout::bhsd : view, own);
  if (view == Layout::expanded) {
    for (std::size_t n = 0; n < 4; ++n) {
      if (!axes[n]) shape.placement.strides[n] = 0;
    }
  }
  return shape;
}

void fill_mask(const Tensor& tensor, const Case& c, std::uint64_t seed) {
  const CaseRows rows(c);
  const MaskCase& mask = *c.mask;
  Random random(seed, Stream::mask_region);
  set_elements(tensor, [&](std::int64_t b, std::int64_t, std::int64_t i, std::int64_t j,
                           std::int64_t n) {
    const CaseRows::Row row = rows.row(b, i);
    const double draw = random.uniform(n);
    const bool hidden = std::any_of(mask.hide.begin(), mask.hide.end(), [&](const Region& region) {
      return inside(region, row.sequence, row.i, j, draw);
    });
    return hidden ? 0.0 : 1.0;
  });
}

void fill_bias(const Tensor& tensor, const Case& c, std::uint64_t seed) {
  const CaseRows rows(c);
  const BiasCase& bias = *c.bias;
  Random random(seed, Stream::bias_region);
  const std::int64_t longest =
      rows.key_lengths.empty()
          ? 0
          : *std::max_element(rows.key_lengths.begin(), rows.key_lengths.end());
  Random values(seed, Stream::bias);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  set_elements(tensor,
               [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t n) {
                 const CaseRows::Row row = rows.row(b, i);
                 const bool own_row = c.packed ? bias.axes[2] : bias.axes[0];
                 if (own_row && row.sequence < 0) return nan;
                 const std::int64_t length =
                     own_row ? rows.key_lengths[static_cast<std::size_t>(row.sequence)] : longest;
                 if (bias.axes[3] && j >= length) return nan;
                 const double draw = random.uniform(n);
                 for (auto over = bias.overrides.rbegin(); over != bias.overrides.rend(); ++over) {
                   if (inside(over->region, row.sequence, row.i, j, draw)) {
                     return over->lowest ? lowest(tensor.dtype) : over->value;
                   }
                 }
                 return fill_value(bias.fill, values, h, i, j, n);
               });
}

BlockArrays make_blocks(const Case& c, std::uint64_t seed) {
  const BlocksCase& blocks = *c.blocks;
  BlockArrays arrays;
  if (blocks.block_q < 1 || blocks.block_k < 1) {
    throw InvalidArgument("case: blocks= needs block sizes above 0");
  }
  if (!(blocks.density >= 0.0 && blocks.density <= 1.0)) {  // NaN neither
    throw InvalidArgument("case: blocks= needs a density of 0 to 1");
  }
  arrays.batch = blocks.per_batch ? c.batch : 1;
  arrays.heads = blocks.per_head ? c.heads_q : 1;
  const std::int64_t seq_q = c.packed ? std::ranges::max(c.packed->q_lengths) : c.seq_q;
  const bool packed_keys = c.packed && c.page_size == 0;
  const std::int64_t seq_k = packed_keys ? std::ranges::max(c.packed->k_lengths) : c.seq_k;
  arrays.query_blocks = ceil_div(seq_q, blocks.block_q);
  const std::int64_t key_blocks = ceil_div(seq_k, blocks.block_k);
  Random random(seed, Stream::blocks);
  std::int64_t n = 0;
  for (std::int64_t b = 0; b < arrays.batch; ++b) {
    for (std::int64_t h = 0; h < arrays.heads; ++h) {
      for (std::int64_t row = 0; row < arrays.query_blocks; ++row) {
        arrays.offsets.push_back(static_cast<std::int32_t>(arrays.index.size()));
        for (std::int64_t column = 0; column < key_blocks; ++column, ++n) {
          if (random.uniform(n) >= blocks.density && row != blocks.dense_row) continue;
          arrays.index.push_back(static_cast<std::int32_t>(column));
          const std::int64_t i1 = std::min(seq_q, (row + 1) * blocks.block_q);
          const std::int64_t j1 = std::min(seq_k, (column + 1) * blocks.block_k);
          // What a mask expression shows is not worked out here.
          bool full = c.mask_expression.empty();
          for (std::int64_t entry = 0; entry < c.batch; ++entry) {
            if (blocks.per_batch && entry != b) continue;
            full =
                full && untouched(c, entry, row * blocks.block_q, i1, column * blocks.block_k, j1);
          }
          arrays.full.push_back(full ? 1 : 0);
        }
      }
      arrays.offsets.push_back(static_cast<std::int32_t>(arrays.index.size()));
    }
  }
  return arrays;
}

}  // namespace tilewise
