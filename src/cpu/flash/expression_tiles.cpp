#include "cpu/flash/expression_tiles.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <utility>

#include "problem/blocks.h"

namespace tilewise::cpu {
namespace {

using expression::Node;
using expression::Op;
using expression::Type;

constexpr int kDomains = 5;

CaptureView view_of(const Tensor& t) {
  CaptureView view{.data = t.data, .dtype = t.dtype, .rank = t.rank};
  std::copy_n(t.sizes.begin(), t.rank, view.sizes);
  std::copy_n(t.strides.begin(), t.rank, view.strides);
  return view;
}

bool is_reduction(Op op) { return op == Op::any || op == Op::all || op == Op::sum; }

}  // namespace

ExpressionTiles::ExpressionTiles(const expression::Program& program,
                                 std::span<const Tensor> captures,
                                 std::vector<ExpressionRoots> groups, const ExpressionOps& ops)
    : program_(program),
      ops_(ops),
      groups_(std::move(groups)),
      lanes_(program.nodes.size(), 0),
      made_(program.nodes.size() * kDomains, -1) {
  static std::atomic<std::uint64_t> numbers{0};
  number_ = ++numbers;
  for (const Tensor& capture : captures) captures_.push_back(view_of(capture));
  for (const Node& node : program.nodes) {
    if (is_reduction(node.op)) mark_lanes(node.args[0], static_cast<int>(node.integer));
  }
  for (const ExpressionRoots& group : groups_) {
    for (const std::int32_t root : group.nodes) mark_lanes(root, group.lanes);
  }
  for (const ExpressionRoots& group : groups_) {
    std::vector<std::int32_t> values;
    for (const std::int32_t root : group.nodes) {
      values.push_back(value_of(root, domain(root)));
      if (domain(root) == Domain::row) values_[values.back()].broadcast = true;
    }
    group_bodies_.push_back(changed_by_lane(values));
    group_values_.push_back(std::move(values));
  }
  assign_slots();
}

ExpressionTiles::Domain ExpressionTiles::domain(std::int32_t node) const {
  const std::uint8_t depends = program_.nodes[static_cast<std::size_t>(node)].depends;
  const bool query = (depends & expression::kQuery) != 0;
  const bool key = (depends & expression::kKey) != 0;
  const bool diagonal = (depends & expression::kDiagonal) != 0;
  if ((depends & expression::kScore) != 0 || query + key + diagonal > 1) return Domain::pair;
  if (query) return Domain::row;
  if (key) return Domain::column;
  return diagonal ? Domain::diagonal : Domain::uniform;
}

/// How many lanes each node under a reduction is wanted for.
void ExpressionTiles::mark_lanes(std::int32_t index, int lanes) {
  const Node& node = program_.nodes[static_cast<std::size_t>(index)];
  int& marked = lanes_[static_cast<std::size_t>(index)];
  if ((node.depends & expression::kLane) == 0 || marked >= lanes) return;
  marked = lanes;
  for (int n = 0; n < node.count; ++n) {
    mark_lanes(node.args[static_cast<std::size_t>(n)], lanes);
  }
}

std::int32_t ExpressionTiles::value_of(std::int32_t node, Domain domain) {
  const std::size_t at =
      static_cast<std::size_t>(node) * kDomains + static_cast<std::size_t>(domain);
  if (made_[at] >= 0) return made_[at];
  Value value = made_of(node, domain);
  const auto index = static_cast<std::int32_t>(values_.size());
  if (domain == Domain::uniform) {
    uniform_.push_back(index);
  } else if (domain != Domain::pair) {
    hoisted_.push_back(index);
  } else if (value.lanes == 0 && value.step != Step::score) {
    pairs_.push_back(index);
  }
  values_.push_back(std::move(value));
  made_[at] = index;
  return index;
}

/// The value that a user in a domain reads of a node.
std::int32_t ExpressionTiles::argument_of(std::int32_t node, Domain user) {
  const Domain own = domain(node);
  const bool along = user == Domain::diagonal && own != Domain::uniform;
  const std::int32_t value = value_of(node, along ? Domain::diagonal : own);
  if (user == Domain::pair && own == Domain::row) {
    values_[static_cast<std::size_t>(value)].broadcast = true;
  }
  return value;
}

ExpressionTiles::Value ExpressionTiles::made_of(std::int32_t index, Domain domain) {
  const Node& node = program_.nodes[static_cast<std::size_t>(index)];
  Value value{.node = index, .domain = domain, .count = node.count};
  value.lanes = lanes_[static_cast<std::size_t>(index)];
  for (std::size_t n = 0; n < node.count; ++n) value.in[n] = argument_of(node.args[n], domain);
  if (node.op == Op::score) {
    value.step = Step::score;
  } else if (node.op == Op::load) {
    value.step = domain == Domain::pair && loads_rows(node) ? Step::load_row : Step::load;
    value.function = ops_.load;
  } else if (node.count > 0) {
    const std::int32_t last = node.args[node.count - 1U];
    const Type operands = program_.nodes[static_cast<std::size_t>(last)].type;
    value.step = is_reduction(node.op) ? Step::reduce : Step::function;
    value.function = ops_.function(node.op, operands);
    if (value.step == Step::reduce && domain == Domain::pair) {
      value.body = changed_by_lane(std::span(value.in).first(1));
      if (node.op == Op::sum && value.body.size() == 1) take_products(value);
    }
  }
  return value;
}

/// A sum of products of what is hoisted: one pass for all lanes.
void ExpressionTiles::take_products(Value& value) const {
  const Value& body = values_[static_cast<std::size_t>(value.body[0])];
  const Node& node = program_.nodes[static_cast<std::size_t>(body.node)];
  const auto is_pair = [&](std::int32_t index) {
    return values_[static_cast<std::size_t>(index)].domain == Domain::pair;
  };
  if (node.op != Op::multiply || node.type != Type::real) return;
  if (is_pair(body.in[0]) || is_pair(body.in[1])) return;
  value.step = Step::dot;
  value.function = ops_.dot;
  value.count = 2;
  value.in = body.in;
  value.body.clear();
}

/// True for an element at j along one axis and at the same place for a whole row along the others.
bool ExpressionTiles::loads_rows(const Node& node) const {
  int keys = 0;
  for (std::size_t n = 0; n < node.count; ++n) {
    const bool key = program_.nodes[static_cast<std::size_t>(node.args[n])].op == Op::key;
    const Domain own = domain(node.args[n]);
    if (!key && own != Domain::uniform && own != Domain::row) return false;
    keys += key ? 1 : 0;
  }
  return keys == 1;
}

/// Values of pairs that a lane changes and that the roots are made from, arguments first.
std::vector<std::int32_t> ExpressionTiles::changed_by_lane(
    std::span<const std::int32_t> roots) const {
  std::vector<std::int32_t> found;
  const auto visit = [&](const auto& self, std::int32_t index) -> void {
    const Value& value = values_[static_cast<std::size_t>(index)];
    if (value.domain != Domain::pair || value.lanes == 0) return;
    if (std::find(found.begin(), found.end(), index) != found.end()) return;
    for (std::size_t n = 0; n < static_cast<std::size_t>(value.count); ++n) {
      self(self, value.in[n]);
    }
    found.push_back(index);
  };
  for (const std::int32_t root : roots) visit(visit, root);
  return found;
}

/// Strips for the values of pairs: a strip is free again behind the last use of its value.
void ExpressionTiles::assign_slots() {
  constexpr std::size_t kAlways = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> last_use(values_.size(), 0);
  const auto use = [&](const Value& value, std::size_t when) {
    for (std::size_t n = 0; n < static_cast<std::size_t>(value.count); ++n) {
      std::size_t& last = last_use[static_cast<std::size_t>(value.in[n])];
      last = std::max(last, when);
    }
  };
  for (std::size_t when = 0; when < pairs_.size(); ++when) {
    const Value& value = values_[static_cast<std::size_t>(pairs_[when])];
    use(value, when);
    for (const std::int32_t inner : value.body) {
      use(values_[static_cast<std::size_t>(inner)], when);
    }
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (const std::int32_t root : group_values_[group]) {
      last_use[static_cast<std::size_t>(root)] = kAlways;
    }
    for (const std::int32_t inner : group_bodies_[group]) {
      use(values_[static_cast<std::size_t>(inner)], kAlways);
    }
  }
  std::vector<int> free;
  const auto take = [&] {
    if (free.empty()) return slots_++;
    const int slot = free.back();
    free.pop_back();
    return slot;
  };
  const auto release = [&](const Value& user, std::size_t when) {
    for (std::size_t n = 0; n < static_cast<std::size_t>(user.count); ++n) {
      Value& value = values_[static_cast<std::size_t>(user.in[n])];
      const std::size_t index = static_cast<std::size_t>(user.in[n]);
      if (value.slot < 0 || value.lanes > 0 || last_use[index] != when) continue;
      free.push_back(value.slot);
      last_use[index] = kAlways;  // released once
    }
  };
  for (Value& value : values_) {  // written once a lane: theirs alone
    if (value.domain == Domain::pair && value.lanes > 0) value.slot = slots_++;
  }
  for (std::size_t when = 0; when < pairs_.size(); ++when) {
    Value& value = values_[static_cast<std::size_t>(pairs_[when])];
    const bool in_place = value.step != Step::reduce;
    if (in_place) release(value, when);
    value.slot = take();
    if (!in_place) release(value, when);
    for (const std::int32_t inner : value.body) {
      release(values_[static_cast<std::size_t>(inner)], when);
    }
  }
}

}  // namespace tilewise::cpu
