#include "cuda/host/expression_ranges.h"

#include <array>

#include "cuda/host/expression_printer.h"

namespace tilewise::cuda {
namespace {

using expression::Node;
using expression::Op;
using expression::Program;
using expression::Type;
using printing::Part;

const char* range_type(Type type) {
  return type == Type::boolean   ? "expression::Truth"
         : type == Type::integer ? "expression::Ints"
                                 : "expression::Reals";
}

/// The function of ranges that an operation is; null: nothing is known of its result.
const char* range_word(Op op) {
  switch (op) {
    case Op::add:
      return "add";
    case Op::subtract:
      return "subtract";
    case Op::multiply:
      return "multiply";
    case Op::floor_divide:
      return "floor_divide";
    case Op::modulo:
      return "modulo";
    case Op::negate:
      return "negate";
    case Op::absolute:
      return "absolute";
    case Op::minimum:
      return "minimum";
    case Op::maximum:
      return "maximum";
    case Op::equal:
      return "equal";
    case Op::not_equal:
      return "not_equal";
    case Op::less:
      return "less";
    case Op::less_equal:
      return "less_equal";
    case Op::logical_and:
      return "both";
    case Op::logical_or:
      return "either";
    case Op::logical_xor:
      return "one_of";
    case Op::logical_not:
      return "opposite";
    case Op::bit_and:
      return "bit_and";
    case Op::bit_or:
      return "bit_or";
    case Op::bit_xor:
      return "bit_xor";
    case Op::bit_not:
      return "bit_not";
    case Op::shift_left:
      return "shift_left";
    case Op::shift_right:
      return "shift_right";
    case Op::where:
      return "choose";
    case Op::floor:
      return "floor_of";
    case Op::ceil:
      return "ceil_of";
    case Op::to_boolean:
      return "to_boolean";
    case Op::to_integer:
      return "to_integer";
    case Op::to_real:
      return "to_real";
    default:
      return nullptr;
  }
}

/// Prints the ranges of one mask.
class RangePrinter : public printing::Printer {
 public:
  using Printer::Printer;

  std::string text() const {
    const std::string index = std::to_string(name_.index);
    const std::string function = "MaskFunction<" + index + ">";
    std::string over;
    for (std::size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& candidate = program_.nodes[n];
      const bool of_pair = parts_[n] == Part::pair || parts_[n] == Part::diagonal;
      if (!used_[n] || !of_pair || printing::is_leaf(candidate.op) ||
          printing::is_in_loop(candidate))
        continue;
      const auto node_index = static_cast<std::int32_t>(n);
      over += printing::is_reduction(candidate.op) ? reduced(node_index, candidate)
                                                   : defined(node_index, candidate, "    ");
    }
    return "template <>\nstruct tilewise::tile::MaskRanges<" + index + "> {\n" +
           side_text(Part::row, "Row", function) + side_text(Part::column, "Column", function) +
           "  static __forceinline__ expression::Truth over(const Place& p, const " + function +
           "::Uniform& u, const Row& r, const Column& c, const expression::Ints& i, const "
           "expression::Ints& j, const Captures& t) {\n" +
           over + "    return " + range(program_.result) + ";\n  }\n};\n";
  }

 private:
  /// The ranges of what a part keeps, over the lanes of a warp and over several of its values.
  std::string side_text(Part part, const std::string& type, const std::string& function) const {
    std::string fields, taken, joined, gathered;
    for_each_of(part, [&](std::int32_t index, const Node& n) {
      if (!is_kept(index, part)) return;
      const std::string own = "v" + std::to_string(index);
      fields += std::string("    ") + range_type(n.type) + " " + own + ";\n";
      taken += (taken.empty() ? "" : ", ") + ("expression::range_of(x." + own + ")");
      joined += "      " + own + ".join(other." + own + ");\n";
      gathered += "      " + own + ".gather(lane);\n";
    });
    const std::string open = "  struct " + type + " {\n" + fields;
    return open + "    static __forceinline__ " + type + " of(const " + function + "::" + type +
           "& x) {\n      return {" + taken + "};\n    }\n    __forceinline__ void join(const " +
           type + "& other) {\n" + joined + "    }\n    __forceinline__ void gather(int lane) {\n" +
           gathered + "    }\n  };\n";
  }

  std::string range(std::int32_t index) const {
    const Node& n = node(index);
    switch (n.op) {
      case Op::query:
        return "i";
      case Op::key:
        return "j";
      case Op::score:
      case Op::batch:
      case Op::head:
      case Op::query_length:
      case Op::key_length:
      case Op::lane:
      case Op::constant:
        return "expression::range_of(" + value(index, Part::pair) + ")";
      default:
        break;
    }
    const std::string own = "v" + std::to_string(index);
    if (printing::is_in_loop(n)) return own;
    switch (parts_[static_cast<std::size_t>(index)]) {
      case Part::uniform:
        return "expression::range_of(u." + own + ")";
      case Part::row:
        return "r." + own;
      case Part::column:
        return "c." + own;
      default:
        return own;
    }
  }

  std::string ranges(const Node& n) const {
    std::string list;
    for (int a = 0; a < n.count; ++a)
      list += (a > 0 ? ", " : "") + range(n.args[static_cast<std::size_t>(a)]);
    return list;
  }
  std::string operation_range(const Node& n) const {
    if (n.op == Op::load) {
      const DType dtype = program_.captures[static_cast<std::size_t>(n.capture)].dtype;
      return std::string("expression::load_range<expression::Stored::") + stored_text(dtype) +
             ", " + std::to_string(n.count) + ">(" + capture(n.capture) + ", {" + ranges(n) + "})";
    }
    const char* const word = range_word(n.op);
    if (word == nullptr) return std::string(range_type(n.type)) + "::unknown()";
    return std::string("expression::") + word + "(" + ranges(n) + ")";
  }
  std::string defined(std::int32_t index, const Node& n, const std::string& indent) const {
    return indent + "const " + range_type(n.type) + " v" + std::to_string(index) + " = " +
           operation_range(n) + ";\n";
  }
  std::string reduced(std::int32_t index, const Node& n) const {
    const std::string own = "v" + std::to_string(index);
    const char* start = n.op == Op::all           ? "true"
                        : n.op == Op::any         ? "false"
                        : n.type == Type::integer ? "0"
                                                  : "0.0F";
    const char* joins = n.op == Op::all ? "both" : n.op == Op::any ? "either" : "add";
    std::vector<bool> inside(program_.nodes.size(), false);
    mark_loop(n.args[0], inside);
    std::string text = std::string("    ") + range_type(n.type) + " " + own +
                       " = expression::range_of(" + start + ");\n#pragma unroll 1\n" +
                       "    for (int lane = 0; lane < " + std::to_string(n.integer) +
                       "; ++lane) {\n";
    for (std::size_t at = 0; at < inside.size(); ++at) {
      if (inside[at]) text += defined(static_cast<std::int32_t>(at), program_.nodes[at], "      ");
    }
    return text + "      " + own + " = expression::" + joins + "(" + own + ", " + range(n.args[0]) +
           ");\n    }\n";
  }
};

}  // namespace

std::string mask_ranges_text(const Program& program, const FunctionName& name) {
  RangePrinter printer(program, name);
  printer.want(program.result);
  return printer.text();
}

}  // namespace tilewise::cuda
