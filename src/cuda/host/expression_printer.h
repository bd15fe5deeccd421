/// Prints the functions of a program: shared by expression_text.cpp and expression_ranges.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/host/expression_text.h"
#include "cuda/host/expression_words.h"

namespace tilewise::cuda::printing {

using expression::Depends;
using expression::Node;
using expression::Op;
using expression::Program;
using expression::Type;

/// Where a node's value is computed and stored.
enum class Part : std::uint8_t { uniform, row, column, diagonal, pair };

/// By what a node depends on.
inline Part part_of(const Node& n) {
  const unsigned known = expression::kBatch | expression::kHead | expression::kLane;
  const unsigned more = n.depends & ~known;
  if (more == 0) return Part::uniform;
  if (more == expression::kQuery) return Part::row;
  if (more == expression::kKey) return Part::column;
  if (more == expression::kDiagonal) return Part::diagonal;
  return Part::pair;
}

/// 1 for i - j, -1 for j - i, 0 for another node.
inline int distance_sign(const Program& program, const Node& n) {
  if (n.op != Op::subtract) return 0;
  const auto op = [&](int a) {
    return program.nodes[static_cast<std::size_t>(n.args[static_cast<std::size_t>(a)])].op;
  };
  if (op(0) == Op::query && op(1) == Op::key) return 1;
  return op(0) == Op::key && op(1) == Op::query ? -1 : 0;
}

/// The parts of all nodes. What i - j alone decides belongs to the diagonal where it is made of
/// i - j itself, not of i and of j apart.
inline std::vector<Part> parts_of(const Program& program) {
  std::vector<Part> parts;
  for (const Node& n : program.nodes) {
    Part part = part_of(n);
    if (part == Part::diagonal && distance_sign(program, n) == 0) {
      for (int a = 0; a < n.count; ++a) {
        const Part arg = parts[static_cast<std::size_t>(n.args[static_cast<std::size_t>(a)])];
        if (arg != Part::uniform && arg != Part::diagonal) part = Part::pair;
      }
    }
    parts.push_back(part);
  }
  return parts;
}

inline bool is_leaf(Op op) {
  switch (op) {
    case Op::score:
    case Op::batch:
    case Op::head:
    case Op::query:
    case Op::key:
    case Op::query_length:
    case Op::key_length:
    case Op::lane:
    case Op::constant:
      return true;
    default:
      return false;
  }
}
inline bool is_reduction(Op op) { return op == Op::any || op == Op::all || op == Op::sum; }
/// Inside the loop of a reduction.
inline bool is_in_loop(const Node& n) { return (n.depends & expression::kLane) != 0; }

/// Prints the functions of one program.
class Printer {
 public:
  Printer(const Program& program, const FunctionName& name)
      : program_(program),
        name_(name),
        used_(program.nodes.size(), false),
        parts_(parts_of(program)) {}

  /// A node that the function of pairs gives, whatever part it is of.
  void want(std::int32_t node) {
    mark(node);
    asked_.push_back(node);
  }

  std::string text(const std::string& kind, const std::string& pair_functions) const {
    return "template <>\nstruct tilewise::tile::" + kind + "Function<" +
           std::to_string(name_.index) + "> {\n" + parts() + pair_functions + "};\n";
  }

  /// The nodes of a pair, then `last`: `signature` is the function's own.
  std::string pair_function(const std::string& signature, const std::string& last) const {
    return "  static __forceinline__ " + signature + " {\n" + body(Part::pair) + last + "  }\n";
  }

  /// Nodes of the distance that the function of pairs asks for.
  std::vector<const Node*> diagonal_nodes() const {
    std::vector<const Node*> kept;
    for_each_of(Part::diagonal, [&](std::int32_t index, const Node& n) {
      if (is_kept(index, Part::diagonal)) kept.push_back(&n);
    });
    return kept;
  }
  /// What working out the part of the distance takes, in operations.
  int diagonal_cost() const {
    int cost = 0;
    for_each_of(Part::diagonal, [&](std::int32_t, const Node& n) {
      const bool slow = n.op == Op::load || is_reduction(n.op) || n.op >= Op::exp ||
                        n.op == Op::divide || n.op == Op::floor_divide || n.op == Op::modulo ||
                        n.op == Op::power;
      cost += slow && n.op != Op::to_real ? 4 : 1;
    });
    return cost;
  }

  /// Definitions of the nodes that the batch entry and the head decide.
  std::string uniform_nodes() const { return body(Part::uniform); }

  /// What a pair adds to a gradient: `number` counts the sums of a thread, one in memory has so
  /// many floats.
  std::string term(const expression::CaptureTerm& term, int number, int floats) const {
    const int rank = program_.captures[static_cast<std::size_t>(term.capture)].rank;
    const std::string add = "sums[" + std::to_string(number) + "].add(expression::gradient_at<" +
                            std::to_string(floats) + ">(" + capture(term.capture) + ", " +
                            index_text(term.index, rank, Part::pair) + "), g * " +
                            value(term.value, Part::pair) + ");\n";
    if (term.lanes == 1) return "    " + add;
    std::vector<bool> inside(program_.nodes.size(), false);
    mark_loop(term.value, inside);
    for (int a = 0; a < rank; ++a) mark_loop(term.index[static_cast<std::size_t>(a)], inside);
    return lane_loop(term.lanes) + lane_nodes(inside, Part::pair) + "      " + add + "    }\n";
  }

  /// A node's value where the nodes of `in` are worked out.
  std::string value(std::int32_t index, Part in) const {
    const Node& n = node(index);
    switch (n.op) {
      case Op::score:
        return "x";
      case Op::batch:
        return "p.b";
      case Op::head:
        return "p.h";
      case Op::query:
        return "i";
      case Op::key:
        return "j";
      case Op::query_length:
        return "p.query_length";
      case Op::key_length:
        return "p.key_length";
      case Op::lane:
        return "lane";
      case Op::constant:
        return constant_text(n);
      default:
        break;
    }
    std::string own = "v" + std::to_string(index);
    const Part part = parts_[static_cast<std::size_t>(index)];
    // What runs in a loop is worked out where the loop is.
    if (part == in || is_in_loop(n)) return own;
    constexpr std::array<const char*, 4> kPlaces = {"u.", "r.", "c.", "s."};
    return kPlaces[static_cast<std::size_t>(part)] + own;
  }

 protected:
  const Node& node(std::int32_t index) const {
    return program_.nodes[static_cast<std::size_t>(index)];
  }
  void mark(std::int32_t index) {
    if (used_[static_cast<std::size_t>(index)]) return;
    used_[static_cast<std::size_t>(index)] = true;
    const Node& n = node(index);
    for (int a = 0; a < n.count; ++a) mark(n.args[static_cast<std::size_t>(a)]);
  }

  static std::string constant_text(const Node& n) {
    if (n.type == Type::boolean) return n.integer != 0 ? "true" : "false";
    return n.type == Type::integer ? integer_text(n.integer) : real_text(n.real);
  }

  /// Nodes that a part keeps for the others: all that it works out outside of loops.
  template <class Visit>
  void for_each_of(Part part, Visit visit) const {
    for (std::size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& candidate = program_.nodes[n];
      if (!used_[n] || is_leaf(candidate.op) || is_in_loop(candidate)) continue;
      if (parts_[n] == part) visit(static_cast<std::int32_t>(n), candidate);
    }
  }
  /// Nodes of a part that another one asks for.
  bool is_kept(std::int32_t index, Part part) const {
    for (std::size_t n = 0; n < program_.nodes.size(); ++n) {
      if (!used_[n]) continue;
      const Node& user = program_.nodes[n];
      const bool elsewhere = parts_[n] != part || is_in_loop(user);
      for (int a = 0; a < user.count && elsewhere; ++a) {
        if (user.args[static_cast<std::size_t>(a)] == index) return true;
      }
    }
    return std::find(asked_.begin(), asked_.end(), index) != asked_.end();
  }

  std::string parts() const {
    return part_text(Part::uniform, "Uniform", "uniform(const Place& p, const Captures& t)") +
           part_text(Part::row, "Row",
                     "row(const Place& p, const Uniform& u, int i, const Captures& t)") +
           part_text(Part::column, "Column",
                     "column(const Place& p, const Uniform& u, int j, const Captures& t)") +
           part_text(Part::diagonal, "Diagonal",
                     "diagonal(const Place& p, const Uniform& u, int d, float real_d, "
                     "const Captures& t)");
  }
  std::string part_text(Part part, const std::string& type, const std::string& function) const {
    std::string fields, values;
    for_each_of(part, [&](std::int32_t index, const Node& n) {
      if (!is_kept(index, part)) return;
      fields += std::string("    ") + type_text(n.type) + " v" + std::to_string(index) + ";\n";
      values += (values.empty() ? "" : ", ") + value(index, part);
    });
    std::string made = body(part) + "    return {" + values;
    if (name_.strip && part == Part::uniform) {
      fields += "    const void* strip;\n";
      made += values.empty() ? "" : ", ";
      made += "expression::strip_of(p, t, static_cast<int>(sizeof(Diagonal)))";
    }
    made += "};\n";
    if (name_.strip && part == Part::diagonal)
      made = "    return static_cast<const Diagonal*>(u.strip)[d];\n";
    return "  struct " + type + " {\n" + fields + "  };\n  static __forceinline__ " + type + " " +
           function + " {\n" + made + "  }\n";
  }

  std::string body(Part part) const {
    std::string text;
    for_each_of(part, [&](std::int32_t index, const Node& n) {
      if (is_reduction(n.op)) {
        text += reduction(index, n, part);
      } else {
        text += definition(index, n, part, "    ");
      }
    });
    return text;
  }
  std::string definition(std::int32_t index, const Node& n, Part in,
                         const std::string& indent) const {
    return indent + "const " + type_text(n.type) + " v" + std::to_string(index) + " = " +
           operation(n, in) + ";\n";
  }

  /// Definitions of the nodes of `inside`, which differ by lane.
  std::string lane_nodes(const std::vector<bool>& inside, Part in) const {
    std::string text;
    for (std::size_t at = 0; at < inside.size(); ++at) {
      if (inside[at])
        text += definition(static_cast<std::int32_t>(at), program_.nodes[at], in, "      ");
    }
    return text;
  }
  /// NOTE: a loop for the machine too, unless it is short. Unrolled for every pair, a sum of
  /// eight cosines kept the compiler for minutes.
  static std::string lane_loop(std::int64_t lanes) {
    constexpr std::int64_t kUnrolled = 4;
    return std::string(lanes > kUnrolled ? "#pragma unroll 1\n" : "") +
           "    for (int lane = 0; lane < " + std::to_string(lanes) + "; ++lane) {\n";
  }
  /// A loop over the lanes, with the nodes that differ by lane.
  std::string reduction(std::int32_t index, const Node& n, Part in) const {
    const std::string own = "v" + std::to_string(index);
    const char* start = n.op == Op::all           ? "true"
                        : n.op == Op::any         ? "false"
                        : n.type == Type::integer ? "0"
                                                  : "0.0F";
    std::vector<bool> inside(program_.nodes.size(), false);
    mark_loop(n.args[0], inside);
    std::string text = std::string("    ") + type_text(n.type) + " " + own + " = " + start + ";\n";
    text += lane_loop(n.integer) + lane_nodes(inside, in);
    const std::string term = value(n.args[0], in);
    const char* joins = n.op == Op::all ? " &= " : n.op == Op::any ? " |= " : " += ";
    return text + "      " + own + joins + term + ";\n    }\n";
  }
  void mark_loop(std::int32_t index, std::vector<bool>& inside) const {
    const Node& n = node(index);
    if (!is_in_loop(n) || is_leaf(n.op)) return;
    inside[static_cast<std::size_t>(index)] = true;
    for (int a = 0; a < n.count; ++a) mark_loop(n.args[static_cast<std::size_t>(a)], inside);
  }

  // ---- operations

  /// True where an integer is known not to be negative: then quotients need no floor.
  bool is_natural(std::int32_t index) const {
    const Node& n = node(index);
    const auto arg = [&](int a) { return is_natural(n.args[static_cast<std::size_t>(a)]); };
    switch (n.op) {
      case Op::batch:
      case Op::head:
      case Op::query:
      case Op::key:
      case Op::query_length:
      case Op::key_length:
      case Op::lane:
      case Op::absolute:
        return true;
      case Op::constant:
        return n.type != Type::integer || n.integer >= 0;
      case Op::add:
      case Op::multiply:
      case Op::floor_divide:
      case Op::minimum:
        return arg(0) && arg(1);
      case Op::maximum:
      case Op::bit_and:
        return arg(0) || arg(1);
      case Op::modulo:
        return arg(1);
      case Op::shift_right:
        return arg(0);
      case Op::where:
        return arg(1) && arg(2);
      case Op::to_integer:
        return node(n.args[0]).type == Type::boolean;
      default:
        return false;
    }
  }

  std::string quotient(const Node& n, const std::string& a, const std::string& b) const {
    const bool divides = n.op == Op::floor_divide;
    const char* const word = divides ? "expression::floor_divide(" : "expression::modulo(";
    if (n.type != Type::integer) return word + a + ", " + b + ")";
    const Node& divisor = node(n.args[1]);
    const int shift = divisor.op == Op::constant ? log2_of(divisor.integer) : -1;
    if (shift >= 0) {
      // An arithmetic shift floors.
      return divides ? a + " >> " + std::to_string(shift)
                     : a + " & " + std::to_string(divisor.integer - 1);
    }
    if (is_natural(n.args[0]) && is_natural(n.args[1])) return a + (divides ? " / " : " % ") + b;
    return word + a + ", " + b + ")";
  }

  /// A score has its rounding already: by a constant it is multiplied. Other quotients may be
  /// floored or compared later, so that they must be exact.
  std::string ratio(const Node& n, const std::string& a, const std::string& b) const {
    const Node& divisor = node(n.args[1]);
    const bool of_score = (node(n.args[0]).depends & expression::kScore) != 0;
    if (of_score && divisor.op == Op::constant && divisor.type == Type::real) {
      const double inverse = 1.0 / divisor.real;
      const double size = std::fabs(inverse);
      if (size > 1e-30 && size < 1e30) return a + " * " + real_text(inverse);
    }
    const auto real = [&](int arg, const std::string& text) {
      return node(n.args[static_cast<std::size_t>(arg)]).type == Type::real
                 ? text
                 : "static_cast<float>(" + text + ")";
    };
    return real(0, a) + " / " + real(1, b);
  }

  std::string load(const Node& n, Part in) const {
    const expression::CaptureType& type = program_.captures[static_cast<std::size_t>(n.capture)];
    return std::string("expression::load<expression::Stored::") + stored_text(type.dtype) + ">(" +
           capture(n.capture) + ", " + index_text(n.args, n.count, in) + ")";
  }
  std::string capture(std::int32_t index) const {
    return "t.at[" + std::to_string(name_.first_capture + index) + "]";
  }
  std::string index_text(const std::array<std::int32_t, 4>& args, int count, Part in) const {
    std::string values;
    unsigned natural = 0;
    for (int a = 0; a < count; ++a) {
      const std::int32_t arg = args[static_cast<std::size_t>(a)];
      values += (a > 0 ? ", " : "") + value(arg, in);
      natural |= (is_natural(arg) ? 1U : 0U) << a;
    }
    return "expression::Index<" + std::to_string(count) + ", " + std::to_string(natural) + ">{{" +
           values + "}}";
  }

  /// "d" and "real_d" for i - j as an integer and as a real, less work than to convert it for every
  /// pair; empty for another node.
  std::string distance(const Node& n, Part in) const {
    if (in != Part::diagonal) return "";
    if (const int sign = distance_sign(program_, n); sign != 0) return sign > 0 ? "d" : "-d";
    if (n.op != Op::to_real) return "";
    const Node& arg = node(n.args[0]);
    if (const int sign = distance_sign(program_, arg); sign != 0)
      return sign > 0 ? "real_d" : "-real_d";
    const bool far = arg.op == Op::absolute && distance_sign(program_, node(arg.args[0])) != 0;
    return far ? "fabsf(real_d)" : "";
  }

  std::string operation(const Node& n, Part in) const {
    if (std::string text = distance(n, in); !text.empty()) return text;
    if (n.op == Op::load) return load(n, in);
    std::array<std::string, 3> args;
    for (std::size_t a = 0; a < std::min<std::size_t>(n.count, args.size()); ++a)
      args[a] = value(n.args[a], in);
    const auto& [a, b, c] = args;
    if (n.op == Op::divide) return ratio(n, a, b);
    if (n.op == Op::floor_divide || n.op == Op::modulo) return quotient(n, a, b);
    return expression_operation(n, node(n.args[0]).type, a, b, c);
  }

  const Program& program_;
  const FunctionName name_;
  std::vector<bool> used_;
  const std::vector<Part> parts_;
  std::vector<std::int32_t> asked_;
};

}  // namespace tilewise::cuda::printing
