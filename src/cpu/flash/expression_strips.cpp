/// ExpressionTiles at work on a tile.
#include <algorithm>
#include <bit>
#include <utility>

#include "cpu/flash/expression_tiles.h"
#include "problem/blocks.h"

namespace tilewise::cpu {
namespace {

using expression::Node;
using expression::Op;
using expression::Type;

/// Values of a strip: a few strips and the scores lie in the first-level cache together.
constexpr int kStripValues = 1024;

float as_held(std::int64_t integer) {
  return std::bit_cast<float>(static_cast<std::int32_t>(integer));
}

/// The index that an axis takes: as in expression_ops_impl.h.
std::int64_t wrapped(std::int64_t index, std::int64_t size) {
  return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size - 1);
}

}  // namespace

/// Where a tile's values lie, in memory of the thread. What is uniform comes first and stays from
/// tile to tile of a head.
struct ExpressionTiles::Layout {
  std::vector<float> memory;
  // Whose uniform values these are.
  std::uint64_t owner;
  std::int64_t b, h, query_length, key_length;

  int rows_padded, cols_padded, diagonals;  ///< values of a strip of each domain
  int block_rows;
  // Places in `base` of each value; lanes lie behind one another.
  std::vector<std::int64_t> hoisted;
  std::vector<std::int64_t> broadcast;  ///< block_rows vectors
  float* base;
  float* slots;  ///< block_rows x cols_padded each

  float* hoisted_value(std::int32_t index) const {
    return base + hoisted[static_cast<std::size_t>(index)];
  }
  float* broadcast_value(std::int32_t index) const {
    return base + broadcast[static_cast<std::size_t>(index)];
  }

  int values(Domain domain, int lanes) const {
    switch (domain) {
      case Domain::row:
        return rows_padded;
      case Domain::column:
        return cols_padded;
      case Domain::diagonal:
        return diagonals;
      default:
        return lanes;
    }
  }
};

struct ExpressionTiles::Block {
  const TilePlace& at;
  const Layout& layout;
  const float* score;
  float* target;  ///< where the last value of pairs goes, in place of the score; or null
  int row, rows, vectors;
};

ExpressionTiles::Layout& ExpressionTiles::layout_of(const TilePlace& at) const {
  // Those of a call have numbers behind one another: each keeps its own.
  constexpr std::size_t kKept = 4;
  thread_local Layout layouts[kKept] = {};
  Layout& layout = layouts[number_ % kKept];
  const int lanes = ops_.lanes;
  layout.rows_padded = static_cast<int>(round_up(at.rows, lanes));
  layout.cols_padded = static_cast<int>(round_up(at.cols, lanes));
  layout.diagonals = static_cast<int>(round_up(at.rows - 1 + layout.cols_padded, lanes));
  layout.block_rows = std::clamp(kStripValues / std::max(layout.cols_padded, 1), 1, at.rows);
  layout.hoisted.assign(values_.size(), 0);
  layout.broadcast.assign(values_.size(), 0);
  std::int64_t total = 0;
  const auto place = [&](std::int32_t index) {
    const Value& value = values_[static_cast<std::size_t>(index)];
    const std::int64_t copies = std::max(value.lanes, 1);
    layout.hoisted[static_cast<std::size_t>(index)] = total;
    total += copies * layout.values(value.domain, lanes);
    layout.broadcast[static_cast<std::size_t>(index)] = total;
    if (value.broadcast) total += copies * layout.block_rows * lanes;
  };
  for (const std::int32_t index : uniform_) place(index);
  for (const std::int32_t index : hoisted_) place(index);
  const std::int64_t slots = total;
  total += static_cast<std::int64_t>(slots_) * layout.block_rows * layout.cols_padded;
  constexpr std::int64_t kLine = 64 / sizeof(float);
  if (static_cast<std::int64_t>(layout.memory.size()) < total + kLine) {
    layout.memory.resize(static_cast<std::size_t>(total + kLine));
    layout.owner = 0;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(layout.memory.data());
  layout.base = layout.memory.data() + (64 - address % 64) % 64 / sizeof(float);
  layout.slots = layout.base + slots;
  return layout;
}

void ExpressionTiles::run(const TilePlace& at, const float* score, const Use& use) const {
  run(at, score, nullptr, use);
}

void ExpressionTiles::replace(const TilePlace& at, float* score) const {
  const std::int32_t result = group_values_[0][0];
  // Nothing reads the score behind the last value; a reduction reads it once a lane.
  const bool in_place = !pairs_.empty() && pairs_.back() == result &&
                        values_[static_cast<std::size_t>(result)].step != Step::reduce;
  const StripFunction copy = ops_.function(Op::to_real, Type::real);
  run(at, score, in_place ? score : nullptr, [&](const Strips& strips) {
    if (in_place) return;
    copy({.rows = strips.rows,
          .vectors = strips.vectors,
          .in = {strips.values[0]},
          .out = {score + strips.row * at.ld, at.ld}});
  });
}

void ExpressionTiles::hide(const TilePlace& at, float* score) const {
  run(at, score, nullptr, [&](const Strips& strips) {
    float* rows = score + strips.row * at.ld;
    const StripIn scores{rows, at.ld, ops_.lanes};
    ops_.hide({.rows = strips.rows,
               .vectors = strips.vectors,
               .in = {scores, strips.values[0], strips.values[0]},
               .out = {rows, at.ld}});
  });
}

void ExpressionTiles::run(const TilePlace& at, const float* score, float* target,
                          const Use& use) const {
  Layout& layout = layout_of(at);
  const Sequence& sequence = at.sequence;
  if (layout.owner != number_ || layout.b != at.b || layout.h != at.h ||
      layout.query_length != sequence.q_length || layout.key_length != sequence.k_length) {
    hoist(uniform_, at, layout);
    layout.owner = number_;
    layout.b = at.b;
    layout.h = at.h;
    layout.query_length = sequence.q_length;
    layout.key_length = sequence.k_length;
  }
  hoist(hoisted_, at, layout);
  thread_local std::vector<StripIn> values;
  for (int row = 0; row < at.rows; row += layout.block_rows) {
    const Block block{.at = at,
                      .layout = layout,
                      .score = score,
                      .target = target,
                      .row = row,
                      .rows = std::min(layout.block_rows, at.rows - row),
                      .vectors = layout.cols_padded / ops_.lanes};
    broadcast_rows(block);
    for (const std::int32_t index : pairs_) work_out(index, block, 0);
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (int lane = 0; lane < groups_[group].lanes; ++lane) {
        for (const std::int32_t index : group_bodies_[group]) work_out(index, block, lane);
        values.clear();
        for (const std::int32_t root : group_values_[group]) {
          values.push_back(input(root, block, lane));
        }
        use({.group = group,
             .row = row,
             .rows = block.rows,
             .vectors = block.vectors,
             .lane = lane,
             .values = values});
      }
    }
  }
}

/// Values of strips, in order.
void ExpressionTiles::hoist(std::span<const std::int32_t> values, const TilePlace& at,
                            const Layout& layout) const {
  for (const std::int32_t index : values) {
    const Value& value = values_[static_cast<std::size_t>(index)];
    float* out = layout.hoisted_value(index);
    const int size = layout.values(value.domain, ops_.lanes);
    if (value.step == Step::leaf) {
      fill_leaf(at, value, out, size);
      continue;
    }
    for (int lane = 0; lane < std::max(value.lanes, 1); ++lane) {
      hoist_lane(value, layout, lane, {out + lane * size, 0});
    }
  }
}

void ExpressionTiles::fill_leaf(const TilePlace& at, const Value& value, float* out,
                                int size) const {
  const Node& node = program_.nodes[static_cast<std::size_t>(value.node)];
  const auto fill = [&](std::int64_t first, std::int64_t step) {
    for (int n = 0; n < size; ++n) out[n] = as_held(first + n * step);
  };
  const bool along = value.domain == Domain::diagonal;
  switch (node.op) {
    case Op::constant:
      if (node.type == Type::real) {
        std::fill_n(out, size, static_cast<float>(node.real));
        return;
      }
      return fill(node.type == Type::boolean ? -node.integer : node.integer, 0);
    case Op::batch:
      return fill(at.b, 0);
    case Op::head:
      return fill(at.h, 0);
    case Op::query_length:
      return fill(at.sequence.q_length, 0);
    case Op::key_length:
      return fill(at.sequence.k_length, 0);
    case Op::query:  // along the diagonals of key j0, from the last row down
      return along ? fill(at.i0 + at.rows - 1, -1) : fill(at.i0, 1);
    case Op::key:
      return fill(at.j0, along ? 0 : 1);
    default:  // lane
      for (int lane = 0; lane < value.lanes; ++lane) {
        std::fill_n(out + lane * size, size, as_held(lane));
      }
  }
}

void ExpressionTiles::hoist_lane(const Value& value, const Layout& layout, int lane,
                                 StripOut out) const {
  const auto strip = [&](std::int32_t index, int of_lane) -> StripIn {
    const Value& from = values_[static_cast<std::size_t>(index)];
    const int size = layout.values(from.domain, ops_.lanes);
    const float* data = layout.hoisted_value(index);
    return {data + (from.lanes > 0 ? of_lane * size : 0), 0,
            from.domain == Domain::uniform ? 0 : ops_.lanes};
  };
  StripOp op{
      .rows = 1, .vectors = layout.values(value.domain, ops_.lanes) / ops_.lanes, .out = out};
  const Node& node = program_.nodes[static_cast<std::size_t>(value.node)];
  if (value.step == Step::reduce) {
    op.in[0] = strip(value.in[0], 0);
    ops_.function(Op::to_real, Type::real)(op);
    op.in[0] = {out.data, 0, ops_.lanes};
    for (int of_lane = 1; of_lane < node.integer; ++of_lane) {
      op.in[1] = strip(value.in[0], of_lane);
      value.function(op);
    }
    return;
  }
  for (std::size_t n = 0; n < static_cast<std::size_t>(value.count); ++n) {
    op.in[n] = strip(value.in[n], lane);
  }
  if (value.step == Step::load) op.capture = &captures_[static_cast<std::size_t>(node.capture)];
  value.function(op);
}

/// A vector for each row of the block, of values that a row has.
void ExpressionTiles::broadcast_rows(const Block& block) const {
  const Layout& layout = block.layout;
  for (const std::int32_t index : hoisted_) {
    const Value& value = values_[static_cast<std::size_t>(index)];
    if (!value.broadcast) continue;
    const float* from = layout.hoisted_value(index) + block.row;
    float* to = layout.broadcast_value(index);
    for (int lane = 0; lane < std::max(value.lanes, 1); ++lane) {
      for (int r = 0; r < block.rows; ++r) {
        std::fill_n(to + (lane * layout.block_rows + r) * ops_.lanes, ops_.lanes,
                    from[lane * layout.rows_padded + r]);
      }
    }
  }
}

StripIn ExpressionTiles::input(std::int32_t index, const Block& block, int lane) const {
  const Value& value = values_[static_cast<std::size_t>(index)];
  const Layout& layout = block.layout;
  if (value.step == Step::score) {
    return {block.score + block.row * block.at.ld, block.at.ld, ops_.lanes};
  }
  if (value.domain == Domain::pair) {
    const StripOut out = output(index, block);
    return {out.data, out.row, ops_.lanes};
  }
  const bool row = value.domain == Domain::row;
  const int strip = row ? layout.block_rows * ops_.lanes : layout.values(value.domain, ops_.lanes);
  const int lane_step = value.lanes > 0 ? strip : 0;
  const float* data = row ? layout.broadcast_value(index) : layout.hoisted_value(index);
  StripIn in{.data = data + lane * lane_step, .lane = lane_step};
  switch (value.domain) {
    case Domain::row:
      in.row = ops_.lanes;
      break;
    case Domain::diagonal:
      in.data += block.at.rows - 1 - block.row;
      in.row = -1;
      in.col = ops_.lanes;
      break;
    case Domain::column:
      in.col = ops_.lanes;
      break;
    default:
      break;
  }
  return in;
}

StripOut ExpressionTiles::output(std::int32_t index, const Block& block) const {
  if (block.target != nullptr && index == pairs_.back()) {
    return {block.target + block.row * block.at.ld, block.at.ld};
  }
  const int cols = block.layout.cols_padded;
  const int slot = values_[static_cast<std::size_t>(index)].slot;
  return {block.layout.slots + static_cast<std::int64_t>(slot) * block.layout.block_rows * cols,
          cols};
}

void ExpressionTiles::work_out(std::int32_t index, const Block& block, int lane) const {
  const Value& value = values_[static_cast<std::size_t>(index)];
  const StripOut out = output(index, block);
  if (value.step == Step::reduce) return reduce(value, block, out);
  const Node& node = program_.nodes[static_cast<std::size_t>(value.node)];
  if (value.step == Step::load_row) return load_rows(value, block, out, lane);
  StripOp op{.rows = block.rows, .vectors = block.vectors, .out = out};
  for (std::size_t n = 0; n < static_cast<std::size_t>(value.count); ++n) {
    op.in[n] = input(value.in[n], block, lane);
  }
  if (value.step == Step::load) op.capture = &captures_[static_cast<std::size_t>(node.capture)];
  if (value.step == Step::dot) op.lanes = static_cast<int>(node.integer);
  value.function(op);
}

void ExpressionTiles::reduce(const Value& value, const Block& block, const StripOut& out) const {
  const Node& node = program_.nodes[static_cast<std::size_t>(value.node)];
  StripOp op{.rows = block.rows, .vectors = block.vectors, .out = out};
  for (int lane = 0; lane < node.integer; ++lane) {
    for (const std::int32_t inner : value.body) work_out(inner, block, lane);
    const StripIn body = input(value.in[0], block, lane);
    if (lane == 0) {
      op.in[0] = body;
      ops_.function(Op::to_real, Type::real)(op);
      op.in[0] = {out.data, out.row, ops_.lanes};
      continue;
    }
    op.in[1] = body;
    value.function(op);
  }
}

/// Elements that lie behind one another along j, while the axis has as many.
void ExpressionTiles::load_rows(const Value& value, const Block& block, const StripOut& out,
                                int lane) const {
  const Node& node = program_.nodes[static_cast<std::size_t>(value.node)];
  const CaptureView& capture = captures_[static_cast<std::size_t>(node.capture)];
  const Layout& layout = block.layout;
  std::size_t key_axis = 0;
  bool empty = false;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(value.count); ++axis) {
    const Value& index = values_[static_cast<std::size_t>(value.in[axis])];
    if (program_.nodes[static_cast<std::size_t>(index.node)].op == Op::key) key_axis = axis;
    empty = empty || capture.sizes[axis] == 0;
  }
  const std::int64_t here =
      std::min<std::int64_t>(block.at.cols, capture.sizes[key_axis] - block.at.j0);
  if (empty || here < block.at.cols) {  // the last key again and again, as load has it
    StripOp op{.rows = block.rows, .vectors = block.vectors, .out = out, .capture = &capture};
    for (std::size_t n = 0; n < static_cast<std::size_t>(value.count); ++n) {
      op.in[n] = input(value.in[n], block, lane);
    }
    return ops_.load(op);
  }
  for (int r = 0; r < block.rows; ++r) {
    std::int64_t offset = block.at.j0 * capture.strides[key_axis];
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(value.count); ++axis) {
      if (axis == key_axis) continue;
      const Value& index = values_[static_cast<std::size_t>(value.in[axis])];
      const float* strip = layout.hoisted_value(value.in[axis]);
      const int size = layout.values(index.domain, ops_.lanes);
      const int at =
          (index.lanes > 0 ? lane * size : 0) + (index.domain == Domain::row ? block.row + r : 0);
      offset += wrapped(std::bit_cast<std::int32_t>(strip[at]), capture.sizes[axis]) *
                capture.strides[axis];
    }
    ops_.load_row(capture, offset, capture.strides[key_axis], block.at.cols,
                  out.data + r * out.row);
  }
}

}  // namespace tilewise::cpu
