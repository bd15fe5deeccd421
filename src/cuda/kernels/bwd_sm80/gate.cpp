#include "cuda/kernels/bwd_sm80/gate.h"

#include <algorithm>
#include <limits>

namespace tilewise::cuda {
namespace {

using bwd_captures_sm80::GateAxis;
using expression::Node;
using expression::Op;

/// An integer constant that an int holds.
std::optional<int> constant(const Node& node) {
  if (node.op != Op::constant || node.type != expression::Type::integer) return std::nullopt;
  if (node.integer < std::numeric_limits<int>::min() ||
      node.integer > std::numeric_limits<int>::max())
    return std::nullopt;
  return static_cast<int>(node.integer);
}

/// What the index of an axis of `size` elements is; false when it is nothing of a gate.
bool read_axis(const expression::Program& program, std::int32_t index, std::int64_t size,
               GateAxis& axis, int& per) {
  const Node& node = program.nodes[static_cast<std::size_t>(index)];
  per = 1;
  if (node.op == Op::batch || node.op == Op::head) {
    axis = node.op == Op::batch ? GateAxis::batch : GateAxis::head;
    return true;
  }
  if (const std::optional<int> at = constant(node)) {
    // A negative one counts from the end; what is outside then is cut to the axis.
    const std::int64_t from = *at < 0 ? *at + size : *at;
    axis = GateAxis::fixed;
    per = static_cast<int>(std::clamp<std::int64_t>(from, 0, size - 1));
    return true;
  }
  if (node.op != Op::floor_divide) return false;
  const Node& of = program.nodes[static_cast<std::size_t>(node.args[0])];
  const std::optional<int> by = constant(program.nodes[static_cast<std::size_t>(node.args[1])]);
  // Smaller blocks would be worked out with the tiles around them again and again.
  constexpr int kLeast = 16;
  if ((of.op != Op::query && of.op != Op::key) || !by.has_value() || *by < kLeast) return false;
  // The last element's rows end before an int does.
  if (size * *by > std::numeric_limits<int>::max() / 2) return false;
  axis = of.op == Op::query ? GateAxis::queries : GateAxis::keys;
  per = *by;
  return true;
}

}  // namespace

std::optional<Gate> gate_of(const Problem& p, std::size_t capture) {
  if (p.packed || p.score_gradient == nullptr) return std::nullopt;
  const Tensor& t = p.dcaptures[capture];
  if (t.numel() == 0 || t.numel() > std::numeric_limits<int>::max()) return std::nullopt;
  const expression::CaptureTerm* term = nullptr;
  for (const expression::CaptureTerm& one : p.score_gradient->terms) {
    if (one.capture != static_cast<std::int32_t>(capture)) continue;
    if (term != nullptr) return std::nullopt;
    term = &one;
  }
  if (term == nullptr || term->lanes != 1) return std::nullopt;
  Gate gate;
  gate.sizes = {1, 1, 1, 1};
  gate.per = {0, 0, 0, 0};
  bool blocks = false;
  for (int axis = 0; axis < t.rank; ++axis) {
    const auto to = static_cast<std::size_t>(4 - t.rank + axis);
    gate.sizes[to] = static_cast<int>(t.sizes[axis]);
    if (!read_axis(p.score_gradient->program, term->index[static_cast<std::size_t>(axis)],
                   t.sizes[axis], gate.axes[to], gate.per[to]))
      return std::nullopt;
    blocks |= gate.axes[to] == GateAxis::queries || gate.axes[to] == GateAxis::keys;
  }
  if (!blocks) return std::nullopt;  // few elements for many pairs
  return gate;
}

}  // namespace tilewise::cuda
