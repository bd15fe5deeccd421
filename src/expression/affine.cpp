#include "expression/affine.h"

#include <array>

#include "expression/nodes.h"

namespace tilewise::expression {
namespace {

constexpr std::uint8_t kPair = kQuery | kKey | kDiagonal | kScore | kLane;

/// A real as the sum of terms, each with a coefficient: what Affine has, its distance subtracted.
struct Sum {
  enum Kind : std::size_t { score, distance, ahead, row, column, constant, kKinds };
  std::array<std::int32_t, kKinds> of = {-1, -1, -1, -1, -1, -1};  ///< nodes; -1: none
  Linear shift;
};

bool is_difference(const Linear& x) { return x.query != 0 && x.key == -x.query; }

class Reader {
 public:
  explicit Reader(const Program& program) : program_(program), table_(program) {}

  std::optional<Sum> read(std::int32_t index) {
    const Node& n = at(index);
    if (n.type != Type::real) return std::nullopt;
    if ((n.depends & kPair) == 0) return one(Sum::constant, index);
    switch (n.op) {
      case Op::score:
        return one(Sum::score, table_.real(1.0));
      case Op::add:
        return add(read(n.args[0]), read(n.args[1]));
      case Op::subtract:
        return add(read(n.args[0]), negated(read(n.args[1])));
      case Op::negate:
        return negated(read(n.args[0]));
      case Op::multiply:
        if (is_factor(n.args[1])) return scaled(read(n.args[0]), n.args[1]);
        if (is_factor(n.args[0])) return scaled(read(n.args[1]), n.args[0]);
        return std::nullopt;
      case Op::divide:
        if (!is_factor(n.args[1])) return std::nullopt;
        return scaled(read(n.args[0]), table_.make(Op::divide, {table_.real(1.0), n.args[1]}));
      case Op::to_real:
        return position(n.args[0]);
      case Op::absolute:  // of a real that is an integer
        return at(n.args[0]).op == Op::to_real ? distance(at(n.args[0]).args[0]) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

  NodeTable& table() { return table_; }

 private:
  const Node& at(std::int32_t node) const { return program_.nodes[static_cast<std::size_t>(node)]; }
  bool is_factor(std::int32_t node) const {
    return at(node).type == Type::real && (at(node).depends & kPair) == 0;
  }
  static Sum one(Sum::Kind kind, std::int32_t coefficient) {
    Sum sum;
    sum.of[kind] = coefficient;
    return sum;
  }

  std::optional<Sum> position(std::int32_t integer) {
    if (at(integer).op == Op::absolute) return distance(at(integer).args[0]);
    const std::optional<Linear> x = linear_form(program_, integer);
    if (!x) return std::nullopt;
    Sum sum;
    const auto real = [&](std::int64_t value) {
      return value == 0 ? -1 : table_.real(static_cast<double>(value));
    };
    if (is_difference(*x)) {
      sum.of[Sum::ahead] = real(x->key);
    } else {
      sum.of[Sum::row] = real(x->query);
      sum.of[Sum::column] = real(x->key);
    }
    const Linear rest = {
        .query_length = x->query_length, .key_length = x->key_length, .constant = x->constant};
    if (rest != Linear{}) sum.of[Sum::constant] = number(rest);
    return sum;
  }
  /// |integer|, where that is +-(i - j) and what lengths decide.
  std::optional<Sum> distance(std::int32_t integer) {
    const std::optional<Linear> x = linear_form(program_, integer);
    if (!x || !is_difference(*x)) return std::nullopt;
    Sum sum = one(Sum::distance, table_.real(-1.0));
    sum.shift = {.query_length = x->query * x->query_length,
                 .key_length = x->query * x->key_length,
                 .constant = x->query * x->constant};
    return sum;
  }
  /// What lengths and a constant decide, as a real.
  std::int32_t number(const Linear& x) {
    std::int32_t sum = table_.integer(x.constant);
    const auto add_length = [&](Op length, std::int64_t factor) {
      if (factor == 0) return;
      sum = table_.make(factor > 0 ? Op::add : Op::subtract, {sum, table_.leaf(length)});
    };
    add_length(Op::query_length, x.query_length);
    add_length(Op::key_length, x.key_length);
    return table_.make(Op::to_real, {sum});
  }

  std::optional<Sum> scaled(std::optional<Sum> sum, std::int32_t factor) {
    if (!sum) return sum;
    for (std::int32_t& node : sum->of) {
      if (node >= 0) node = table_.make(Op::multiply, {node, factor});
    }
    return sum;
  }
  std::optional<Sum> negated(std::optional<Sum> sum) {
    if (!sum) return sum;
    for (std::int32_t& node : sum->of) {
      if (node >= 0) node = table_.make(Op::negate, {node});
    }
    return sum;
  }
  std::optional<Sum> add(std::optional<Sum> a, const std::optional<Sum>& b) {
    if (!a || !b) return std::nullopt;
    const bool both = a->of[Sum::distance] >= 0 && b->of[Sum::distance] >= 0;
    if (both && a->shift != b->shift) return std::nullopt;
    if (b->of[Sum::distance] >= 0) a->shift = b->shift;
    for (std::size_t kind = 0; kind < Sum::kKinds; ++kind) {
      std::int32_t& to = a->of[kind];
      const std::int32_t more = b->of[kind];
      to = to < 0 ? more : more < 0 ? to : table_.make(Op::add, {to, more});
    }
    return a;
  }

  const Program& program_;
  NodeTable table_;
};

}  // namespace

std::optional<Affine> affine_of(const Program& score) {
  Reader reader(score);
  const std::optional<Sum> sum = reader.read(score.result);
  if (!sum || sum->of[Sum::score] < 0) return std::nullopt;
  const Node& factor = reader.table()[sum->of[Sum::score]];
  if (factor.op != Op::constant || factor.real != 1.0) return std::nullopt;
  Affine affine;
  affine.shift = sum->shift;
  affine.distance = sum->of[Sum::distance];
  affine.ahead = sum->of[Sum::ahead];
  affine.row = sum->of[Sum::row];
  affine.column = sum->of[Sum::column];
  affine.constant = sum->of[Sum::constant];
  std::vector<std::int32_t*> roots;
  for (std::int32_t* node :
       {&affine.distance, &affine.ahead, &affine.row, &affine.column, &affine.constant}) {
    if (*node >= 0) roots.push_back(node);
  }
  if (roots.empty()) return std::nullopt;
  affine.program = reader.table().finish(roots);
  affine.program.result = *roots.front();
  return affine;
}

}  // namespace tilewise::expression
