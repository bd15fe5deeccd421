#include "cuda/host/expression_text.h"

#include <array>
#include <vector>

#include "cuda/host/expression_printer.h"
#include "cuda/tile/exact_sum_args.h"

namespace tilewise::cuda {
namespace {

using expression::Node;
using expression::Op;
using expression::Program;
using expression::Type;
using printing::Part;
using printing::Printer;

constexpr const char* kSides =
    "const Place& p, const Uniform& u, const Row& r, const Column& c, const Diagonal& s, int i, "
    "int j";

std::string returned(const std::string& value) { return "    return " + value + ";\n"; }

}  // namespace

std::string expression_refusal(const Program& program) {
  constexpr std::size_t kMostNodes = 512;
  if (program.nodes.size() > kMostNodes) {
    return "expressions of more than " + std::to_string(kMostNodes) +
           " operations are not supported by this kernel";
  }
  for (const Node& n : program.nodes) {
    if (n.op != Op::constant || n.type != Type::integer) continue;
    if (n.integer != static_cast<std::int32_t>(n.integer)) {
      return "integers beyond 32 bits (" + std::to_string(n.integer) +
             ") are not supported by this kernel";
    }
  }
  return "";
}

std::string score_text(const Program& program, const FunctionName& name) {
  Printer printer(program, name);
  printer.want(program.result);
  return printer.text(
      "Score",
      printer.pair_function(std::string("float value(") + kSides + ", float x, const Captures& t)",
                            returned(printer.value(program.result, Part::pair))));
}

std::string slant_text(const expression::Affine& affine, const FunctionName& name) {
  Printer printer(affine.program, name);
  std::string fields;
  const auto add = [&](const char* field, std::int32_t node) {
    if (node < 0) return;
    printer.want(node);
    fields += std::string("    made.") + field + " = " + printer.value(node, Part::uniform) + ";\n";
  };
  add("distance", affine.distance);
  add("ahead", affine.ahead);
  add("row", affine.row);
  add("column", affine.column);
  add("constant", affine.constant);
  const auto add_length = [&](const char* length, std::int64_t factor) {
    if (factor == 0) return std::string();
    return std::string(factor > 0 ? " + " : " - ") + length;
  };
  const std::string shift = integer_text(affine.shift.constant) +
                            add_length("p.query_length", affine.shift.query_length) +
                            add_length("p.key_length", affine.shift.key_length);
  return "template <>\nstruct tilewise::tile::ScoreSlant<" + std::to_string(name.index) +
         "> {\n  static __forceinline__ Slant of(const Place& p, const Captures& t) {\n" +
         printer.uniform_nodes() + "    Slant made;\n" + fields + "    made.shift = " + shift +
         ";\n    return made;\n  }\n};\n";
}

std::string gradient_text(const expression::Gradient& gradient, const FunctionName& name) {
  const Program& program = gradient.program;
  Printer printer(program, name);
  printer.want(program.result);
  printer.want(gradient.of_score);
  return printer.text(
      "Score",
      printer.pair_function(
          std::string("float value(") + kSides + ", float x, const Captures& t, float& of_score)",
          "    of_score = " + printer.value(gradient.of_score, Part::pair) + ";\n" +
              returned(printer.value(program.result, Part::pair))));
}

namespace {

int strip_values(const Printer& printer) {
  constexpr int kWorth = 6;
  constexpr std::size_t kMost = 2;
  const std::vector<const Node*> nodes = printer.diagonal_nodes();
  const bool small = std::all_of(nodes.begin(), nodes.end(),
                                 [](const Node* n) { return n->type != Type::boolean; });
  if (nodes.empty() || nodes.size() > kMost || !small || printer.diagonal_cost() < kWorth) return 0;
  return static_cast<int>(nodes.size());
}

}  // namespace

int strip_values(const Program& program) {
  Printer printer(program, {});
  printer.want(program.result);
  return strip_values(printer);
}

int strip_values(const expression::Gradient& gradient) {
  Printer printer(gradient.program, {});
  printer.want(gradient.program.result);
  printer.want(gradient.of_score);
  return strip_values(printer);
}

std::string captures_text(const expression::Gradient& gradient, const std::vector<bool>& wanted,
                          bool exact, const FunctionName& name) {
  const int floats = exact ? tile::ExactSum::kFloats : 1;
  const Program& program = gradient.program;
  // What both functions need of the parts, and the nodes of each.
  Printer all(program, name), function(program, name), sums(program, name);
  const auto want = [&](Printer& printer, std::int32_t node) {
    all.want(node);
    printer.want(node);
  };
  want(function, program.result);
  std::vector<expression::CaptureTerm> terms;
  unsigned depends = 0;
  for (const expression::CaptureTerm& term : gradient.terms) {
    if (!wanted[static_cast<std::size_t>(term.capture)]) continue;
    terms.push_back(term);
    want(sums, term.value);
    const int rank = program.captures[static_cast<std::size_t>(term.capture)].rank;
    for (int a = 0; a < rank; ++a) {
      const std::int32_t index = term.index[static_cast<std::size_t>(a)];
      want(sums, index);
      depends |= program.nodes[static_cast<std::size_t>(index)].depends;
    }
  }
  const bool by_keys = (depends & expression::kKey) != 0 &&
                       (depends & (expression::kQuery | expression::kDiagonal)) == 0;
  std::string adds;
  for (std::size_t n = 0; n < terms.size(); ++n)
    adds += sums.term(terms[n], static_cast<int>(n), floats);
  const std::string tail = ", float x, const Captures& t";
  return all.text("Score",
                  "  static constexpr int kTerms = " + std::to_string(terms.size()) +
                      ";\n  static constexpr bool kByKeys = " + (by_keys ? "true" : "false") +
                      ";\n  static constexpr bool kExact = " + (exact ? "true" : "false") + ";\n" +
                      function.pair_function(std::string("float value(") + kSides + tail + ")",
                                             returned(function.value(program.result, Part::pair))) +
                      "  template <class Sum>\n" +
                      sums.pair_function(std::string("void terms(") + kSides + tail +
                                             ", float g, Sum (&sums)[kTerms])",
                                         adds));
}

std::string mask_text(const Program& program, const FunctionName& name) {
  Printer printer(program, name);
  printer.want(program.result);
  return printer.text(
      "Mask", printer.pair_function(std::string("bool value(") + kSides + ", const Captures& t)",
                                    returned(printer.value(program.result, Part::pair))));
}

}  // namespace tilewise::cuda
